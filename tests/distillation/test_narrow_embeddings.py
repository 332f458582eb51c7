"""A student whose embeddings are narrower than its teacher's begins with their principal components."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from bertree.batch import Batch
from bertree.distillation.copy_weights import copy_weights, narrow
from bertree.inference.load import random_model
from bertree.model.architecture import Architecture
from bertree.model.network import Network
from bertree.model.presets import preset

VOCABULARY, NARROW = 400, 24
SHAPE = {"layers": 2, "width": 48, "heads": 4, "vocab_size": VOCABULARY, "max_positions": 64, "dropout": 0.0}


def point(**axes: Any) -> Architecture:
    return preset("bert-base").architecture.with_values(SHAPE | axes)


def network(seed: int, **axes: Any) -> Network:
    return random_model(point(**axes), {"mask": 0}, seed=seed).network.eval()


@pytest.fixture
def teacher() -> Network:
    """A network whose embeddings have a few large directions and many small ones, as trained ones have."""
    model = network(1)
    draw = torch.Generator().manual_seed(5)
    sizes_h = 0.9 ** torch.arange(48)
    with torch.no_grad():
        for table, scale in ((model.encoder.embeddings.tokens, 1.0), (model.encoder.embeddings.positions, 0.2)):
            drawn = torch.randn(table.weight.shape, generator=draw)
            table.weight.copy_(scale * drawn * sizes_h)
        model.encoder.embeddings.norm.weight.uniform_(0.5, 1.5, generator=draw)
        model.encoder.embeddings.norm.bias.normal_(generator=draw)
    return model


def inputs(model: Network, ids: Tensor) -> Tensor:
    """Return what the first layer reads of tokens, each in a sequence of its own."""
    with torch.no_grad():
        return model.encoder.embeddings(Batch.pack([[3, int(token), 4] for token in ids]))[1::3]


def distance(student: Network, teacher: Network, ids: Tensor) -> float:
    """Return the share of the teacher's variance that the student does not have."""
    mine, teacher_inputs = inputs(student, ids), inputs(teacher, ids)
    return float((mine - teacher_inputs).square().sum() / (teacher_inputs - teacher_inputs.mean(0)).square().sum())


@pytest.mark.parametrize("segments", [0, 2])
def test_the_first_layer_reads_nearly_what_the_teachers_reads(teacher: Network, segments: int) -> None:
    student = network(2, embedding_width=NARROW, segments=segments)
    ids = torch.arange(5, 200)
    before = distance(student, teacher, ids)
    assert narrow(student.encoder.embeddings, teacher.encoder.embeddings) == len(
        student.encoder.embeddings.state_dict()
    )
    assert before > 0.9
    assert distance(student, teacher, ids) < 0.1
    mine, teacher_inputs = inputs(student, ids), inputs(teacher, ids)
    assert (mine - teacher_inputs).mean(0).abs().max() < 0.1 * teacher_inputs.std()  # least squares leave no offset


def test_the_same_teacher_gives_the_same_student(teacher: Network) -> None:
    students = [network(seed, embedding_width=NARROW) for seed in (2, 3, 4, 5)]
    for student in students:
        narrow(student.encoder.embeddings, teacher.encoder.embeddings)
    ids = torch.arange(5, 200)
    for student in students[1:]:
        assert torch.allclose(inputs(student, ids), inputs(students[0], ids), atol=1e-5)


def test_tokens_that_are_frequent_in_the_text_come_nearer(teacher: Network) -> None:
    frequent, all_once = network(2, embedding_width=8), network(2, embedding_width=8)
    ids = torch.arange(10, 30)
    narrow(all_once.encoder.embeddings, teacher.encoder.embeddings)
    narrow(frequent.encoder.embeddings, teacher.encoder.embeddings, torch.cat([ids.repeat(200), torch.arange(400)]))
    assert distance(frequent, teacher, ids) < 0.8 * distance(all_once, teacher, ids)


@pytest.mark.parametrize(
    "axes",
    [
        {},  # as wide as the teacher's
        {"embedding_width": NARROW, "vocab_size": 300},
        {"embedding_width": NARROW, "max_positions": 128},
        {"embedding_width": NARROW, "position_offset": 2},
        {"embedding_width": NARROW, "width": 32},
        {"embedding_width": NARROW, "norm": "rms"},
        {"embedding_width": NARROW, "positions": "rotary"},
    ],
)
def test_what_does_not_fit_is_left_as_it_is(teacher: Network, axes: dict[str, Any]) -> None:
    student = network(2, **axes)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    assert narrow(student.encoder.embeddings, teacher.encoder.embeddings) == 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in student.state_dict().items())


def test_embeddings_of_width_one_keep_no_direction(teacher: Network) -> None:
    student = network(2, embedding_width=1)
    assert narrow(student.encoder.embeddings, teacher.encoder.embeddings) > 0
    mine = inputs(student, torch.arange(5, 9))
    assert torch.allclose(mine, mine[:1].expand_as(mine), atol=1e-5), "the same input for every token, but a finite one"


def test_the_teacher_is_not_changed(teacher: Network) -> None:
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    narrow(network(2, embedding_width=NARROW).encoder.embeddings, teacher.encoder.embeddings)
    assert all(torch.equal(tensor, before[name]) for name, tensor in teacher.state_dict().items())
    assert all(tensor.dtype == before[name].dtype for name, tensor in teacher.state_dict().items())


def test_a_student_with_all_layers_begins_close_to_its_teacher_and_transformers_reads_it(
    teacher: Network, tmp_path: Path
) -> None:
    model = random_model(point(embedding_width=NARROW), {"mask": 0}, seed=2)
    copied = copy_weights(model.network, teacher, [1, 2])
    assert copied.layers == 2
    assert copied.positions
    ids = [5, 6, 7, 8, 9]
    with torch.no_grad():
        mine, teacher_states = model.network.eval()(Batch.pack([ids])), teacher(Batch.pack([ids]))
    assert torch.cosine_similarity(mine, teacher_states).min() > 0.9
    model.save(tmp_path / "narrow")
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "narrow").eval()
    assert theirs.config.model_type == "albert"
    with torch.no_grad():
        assert (theirs(torch.tensor([ids])).last_hidden_state[0] - mine).abs().max() < 1e-5
