"""A student's shape and first weights."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from bertree.batch import Batch
from bertree.distillation.copy_weights import copy_weights
from bertree.distillation.student import halve, last_layers, parse_layers, spread_evenly
from bertree.errors import UserError
from bertree.inference.load import random_model
from bertree.model.architecture import Architecture
from bertree.model.presets import preset

SMALL = {"width": 32, "heads": 2, "vocab_size": 50, "max_positions": 16}


def point(name: str, **axes: object) -> Architecture:
    return preset(name).architecture.with_values(SMALL | axes)


def test_half_of_bert_is_distilbert() -> None:
    assert halve(preset("bert-base").architecture).differences(preset("distilbert-base").architecture) == {
        "classifier_dropout": (0.2, 0.1)
    }


def test_half_of_others_keeps_what_they_are() -> None:
    assert halve(preset("roberta-base").architecture) == preset("distilroberta").architecture
    albert: Any = halve(preset("albert-base").architecture)
    assert (albert.layers, albert.sharing, albert.segments) == (6, "all", 2)
    megatron = halve(preset("megatron-bert").architecture)
    assert megatron == preset("megatron-bert").architecture.with_values({"layers": megatron.layers})
    with pytest.raises(UserError, match="one layer only"):
        halve(point("bert-base", layers=1))


@pytest.mark.parametrize("name", ["bert-base", "megatron-bert", "roberta-base", "albert-base"])
def test_half_of_a_family_of_transformers_is_read_by_transformers(name: str, tmp_path: Path) -> None:
    teacher = random_model(point(name, layers=4), {"mask": 0}, seed=1)
    student = random_model(halve(teacher.architecture), {"mask": 0}, seed=2)
    copied = copy_weights(student.network, teacher.network, [1, 3])
    assert copied.layers == 2
    student.save(tmp_path / "half")
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "half").eval()
    ids = [5, 6, 7, 8, 9]
    with torch.no_grad():
        expected = theirs(input_ids=torch.tensor([ids])).logits[0]
        batch = Batch.pack([ids])
        output = student.network.mask_logits(student.network(batch), torch.arange(len(ids)))
    assert (output - expected).abs().max() < 1e-5


def test_layers_are_spread_evenly() -> None:
    assert spread_evenly(12, 6) == [1, 3, 5, 7, 9, 11]
    assert spread_evenly(12, 4) == [1, 4, 7, 10]
    assert spread_evenly(4, 4) == [1, 2, 3, 4]
    assert spread_evenly(2, 3) == [1, 1, 2]
    assert last_layers(12, 6) == [2, 4, 6, 8, 10, 12]
    assert last_layers(12, 4) == [3, 6, 9, 12]
    assert last_layers(2, 4) == [1, 1, 1, 2]
    assert parse_layers("4,2", 4, 2, "layers") == [4, 2]
    for layers, why in (("1,2,3", "give 2 numbers"), ("0,1", "not one of"), ("1,5", "not one of"), ("a,b", "numbers")):
        with pytest.raises(UserError, match=why):
            parse_layers(layers, 4, 2, "layers")


def test_warm_start_takes_the_layers_named() -> None:
    teacher = random_model(point("bert-base", layers=4), {"mask": 0}, seed=1).network
    student = random_model(halve(point("bert-base", layers=4)), {"mask": 0}, seed=2).network
    assert copy_weights(student, teacher, [4, 2])[:3] == (len(student.state_dict()), 2, "")
    for mine, teacher_layer in ((0, 3), (1, 1)):
        for part in ("attention", "ffn"):
            copy = getattr(student.encoder.stack, part)[mine]
            original = getattr(teacher.encoder.stack, part)[teacher_layer]
            assert all(torch.equal(a, b) for a, b in zip(copy.parameters(), original.parameters(), strict=True))
    assert torch.equal(student.heads["mask"].dense.weight, teacher.heads["mask"].dense.weight)


def test_layers_of_other_parts_are_not_copied() -> None:
    """The same shapes, but other norms or positions: the layers would not do what they did."""
    teacher = random_model(point("bert-base", layers=2, norm_bias=False), {"mask": 0}, seed=1).network
    for axes in ({"norm": "rms"}, {"norm_bias": False, "positions": "rotary"}):
        student = random_model(point("bert-base", layers=2, **axes), {"mask": 0}, seed=2).network
        copied = copy_weights(student, teacher, [1, 2])
        assert copied.layers == 0
        assert "differ in the components of their layers" in copied.misfit


def test_without_segments_the_first_one_is_not_lost() -> None:
    teacher = random_model(point("bert-base", layers=2), {"mask": 0}, seed=1).network.eval()
    student = random_model(
        point("bert-base", layers=2, segments=0, pooler=False, sequence_head="relu"), {"mask": 0}, seed=2
    ).network.eval()
    copy_weights(student, teacher, [1, 2])
    batch = Batch.pack([[1, 2, 3], [4, 5]])
    with torch.no_grad():
        assert torch.allclose(student(batch), teacher(batch), atol=1e-5), "all layers are there, so it is the teacher"


def test_positions_are_known_if_they_were_copied_or_are_not_learned() -> None:
    for axes, expected in (({}, True), ({"max_positions": 32}, False)):
        teacher = random_model(point("bert-base", layers=2), {"mask": 0}, seed=1).network
        student = random_model(point("bert-base", layers=2, **axes), {"mask": 0}, seed=2).network
        assert copy_weights(student, teacher, [1, 2]).positions is expected
    rotary = [random_model(point("modernbert-base", layers=n), {"mask": 0}, seed=n).network for n in (4, 2)]
    copied = copy_weights(rotary[1], rotary[0], [1, 4])
    assert (copied.layers, copied.positions) == (2, True)


def test_shared_layers_are_given_once() -> None:
    a = point("albert-base", layers=4, embedding_width=16)
    teacher, student = (random_model(a.with_values({"layers": n}), {"mask": 0}, seed=n).network for n in (4, 2))
    assert copy_weights(student, teacher, [1, 3])[:3] == (len(student.state_dict()), 2, "")
    unshared = random_model(point("bert-base", layers=4), {"mask": 0}, seed=1).network
    shared = random_model(point("bert-base", layers=4, sharing="all"), {"mask": 0}, seed=2).network
    copy_weights(shared, unshared, [2, 3, 4, 1])
    first = unshared.encoder.stack.attention[1]
    assert torch.equal(shared.encoder.stack.attention[0].part.qkv.weight, first.part.qkv.weight)


def test_what_does_not_fit_is_left_alone() -> None:
    teacher = random_model(point("bert-base", layers=4), {"mask": 0}, seed=1).network
    other = random_model(point("bert-base", layers=2, width=16), {"mask": 0}, seed=2)
    before = {name: tensor.clone() for name, tensor in other.network.state_dict().items()}
    copied = copy_weights(other.network, teacher, [1, 3])
    changed = [name for name, tensor in other.network.state_dict().items() if not torch.equal(tensor, before[name])]
    assert (copied.tensors, copied.layers) == (0, 0)
    assert "width" in copied.misfit
    assert not changed
    # Layers that join the residual in another way are of no use, embeddings are.
    pre = random_model(point("bert-base", layers=2, residual="pre-norm"), {"mask": 0}, seed=2).network
    layers = pre.encoder.stack.attention[0].part.qkv.weight.clone()
    assert copy_weights(pre, teacher, [1, 3]).layers == 0
    assert torch.equal(pre.encoder.embeddings.tokens.weight, teacher.encoder.embeddings.tokens.weight)
    assert torch.equal(pre.encoder.stack.attention[0].part.qkv.weight, layers)
    # Layers of other heads have the same shapes and another meaning.
    heads = random_model(point("bert-base", layers=2, heads=4), {"mask": 0}, seed=2).network
    assert "heads" in copy_weights(heads, teacher, [1, 3]).misfit


def test_fewer_positions_are_the_first_ones() -> None:
    teacher = random_model(point("bert-base", layers=2), {"mask": 0}, seed=1).network.eval()
    short = point("bert-base", layers=2, segments=0, pooler=False, sequence_head="relu", max_positions=8)
    student = random_model(short, {"mask": 0}, seed=2).network.eval()
    assert copy_weights(student, teacher, [1, 2]).tensors == len(student.state_dict())
    batch = Batch.pack([[1, 2, 3], [4, 5]])
    with torch.no_grad():
        assert torch.allclose(student(batch), teacher(batch), atol=1e-5)
