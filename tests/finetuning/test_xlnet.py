"""Fine-tuning and use of XLNet: what can be learned is learned, and the summary is read where <cls> stands."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.model import Model
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.architecture import Transformer
from bertree.model.pooling import PoolingConfig
from bertree.tasks.batches import logits
from bertree.tasks.registry import make_task
from tests.support import learnable
from tests.support.batches import axes_of
from tests.support.command import Command
from tests.support.learnable import KINDS, SETTINGS, Trained
from tests.support.shared import make_once, suite_has
from tests.support.xlnet_folder import save_xlnet, xlnet_tokenizer

SEP, CLS = "<sep>", "<cls>"
PAIR = ("the boat", "a red lamp")


@pytest.fixture(scope="session")
def xlnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained XLNet."""
    return make_once(tmp_path_factory.mktemp("xlnet") / "start", save_xlnet)


@pytest.fixture
def model(xlnet: Path) -> Model:
    return bertree.load(xlnet)


def finetune(command: Command, start: Path, name: str, where: Path, *settings: str) -> Path:
    kind = KINDS[name]
    data = learnable.prepared(kind, where / "data")
    arguments = ("finetune", start, *kind.options, "--data", data, "--out", where / "out")
    command.well(*arguments, *SETTINGS, *kind.settings, *settings)
    return where / "out"


@pytest.fixture(scope="module")
def tuned(xlnet: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """XLNets, fine-tuned on each kind of task."""
    return Trained(tmp_path_factory.mktemp("tuned"), xlnet)


# Texts alone are pairs without the second one; a CRF stands on the same states.
@pytest.mark.parametrize("name", suite_has(("beam",), sorted(KINDS.keys() - {"classification", "crf"})))
def test_what_can_be_learned_is_learned(name: str, tuned: Trained, command: Command) -> None:
    out, kind = tuned(name), KINDS[name]
    metrics = json.loads((out / "metrics.json").read_text())[kind.metric]
    assert metrics >= kind.bar - 0.05
    result = command.well("evaluate", out / "model", *kind.options, "--data", out.parent / "data", "--json")
    assert result.json[kind.metric] == pytest.approx(metrics, abs=1e-6)


def test_a_memory_is_not_used_by_tasks(xlnet: Path, command: Command, tmp_path: Path) -> None:
    contents = folder.read(xlnet)
    contents.architecture = contents.architecture.with_values({"memory": 16})
    folder.write(contents, tmp_path / "memory")
    weights = []
    for start, where in ((xlnet, tmp_path / "without"), (tmp_path / "memory", tmp_path / "with")):
        out = finetune(command, start, "classification", where, "epochs=0.5")
        weights.append(bertree.load(out / "model").network.state_dict())
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_both_texts_and_the_summary_are_told_apart(model: Model) -> None:
    assert model.tokens(PAIR) == ["the", "boat", SEP, "a", "red", "lamp", SEP, CLS]
    (pair,) = model.tokenize([PAIR])
    assert pair.segments == [0, 0, 0, 1, 1, 1, 1, 2]
    (single,) = model.tokenize([PAIR[0]])
    assert single.segments == [0, 0, 0, 2]
    assert (pair.is_pair, single.is_pair) == (True, False)


def test_tasks_read_the_last_token(model: Model) -> None:
    """Chosen tokens are those of the words and the context; "no answer" is <cls>."""
    words, squad = xlnet_tokenizer(), make_task("squad2")
    asked = [squad.parse({"question": "which colour ?", "context": "a red lamp on the road"})]
    (unit,), _ = squad.units(asked, words, 40)
    ids = unit.sequences[0].ids
    tokens = [words.backend.id_to_token(ids[place]) for place in unit.chosen]
    assert tokens == [CLS, "a", "red", "lamp", "on", "the", "road"]
    tags = make_task("tagging")
    (unit,), _ = tags.units([tags.parse({"words": ["a", "red", "lamp"]})], words, 40)
    assert [words.backend.id_to_token(unit.sequences[0].ids[place]) for place in unit.chosen] == ["a", "red", "lamp"]
    assert unit.sequences[0].segments == [0, 0, 0, 0, 2]
    options = make_task("choice")
    (unit,), _ = options.units(
        [options.parse({"context": "a lamp", "question": "", "options": ["red", "blue"]})], words, 40
    )
    assert [s.ids[-1] for s in unit.sequences] == [words.id_of("cls")] * 2
    assert model.task == {}


def test_windows_of_long_contexts_end_in_the_summary() -> None:
    task: Any = make_task("squad")
    words, squad = xlnet_tokenizer(), replace(task, stride=4)
    asked = [squad.parse({"question": "which colour ?", "context": "the red lamp on the road " * 5})]
    units, _ = squad.units(asked, words, 20)
    assert len(units) > 2
    for unit in units:
        (sequence,) = unit.sequences
        assert len(sequence.ids) <= 20
        assert unit.chosen[0] == len(sequence.ids) - 1
        assert sequence.ids[-2:] == [words.id_of("sep"), words.id_of("cls")]


def test_the_state_of_a_sequence_is_that_of_its_last_token(model: Model) -> None:
    texts = ["the boat is red", "a lamp", PAIR]
    batch = model.batch(texts)
    with torch.no_grad():
        states = model.network(batch)
        assert torch.equal(model.network.sequence_states(states, batch), states[batch.last])
        assert torch.equal(model.network.encoder.summary_index(batch), batch.last)


@pytest.mark.parametrize("pooling", ["cls", "last", "mean", "mean+cls", "weighted"])
def test_vectors_pool_the_summary_where_it_stands(pooling: str, xlnet: Path, tmp_path: Path) -> None:
    model, texts = bertree.load(xlnet), ["the boat is red", "a lamp"]
    model.vector = PoolingConfig(pooling)
    hidden = model.hidden(texts)
    parts = {
        "cls": lambda x: x[-1], "last": lambda x: x[-1], "mean": lambda x: x.mean(0),
        "weighted": lambda x: (x * torch.arange(1, len(x) + 1)[:, None]).sum(0) / (len(x) * (len(x) + 1) / 2),
    }  # fmt: skip
    expected = [torch.cat([parts[name](x) for name in pooling.split("+")]).numpy() for x in hidden]
    assert np.allclose(model.embed(texts), expected, atol=1e-5)
    model.save(tmp_path / "saved")
    assert np.allclose(bertree.load(tmp_path / "saved").embed(texts), expected, atol=1e-5)


def test_sentence_transformers_pools_the_same_token(xlnet: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    model, texts = bertree.load(xlnet), ["the boat is red", "a lamp", "red"]
    model.vector = PoolingConfig("cls", normalize=True)
    folder.write(Contents(model.architecture, model.network, model.tokenizer), tmp_path / "st", to="huggingface")
    theirs = library.SentenceTransformer(str(tmp_path / "st"), device="cpu").encode(texts)
    assert np.allclose(theirs, model.embed(texts), atol=1e-5)
    assert np.allclose(bertree.load(tmp_path / "st").embed(texts), theirs, atol=1e-5)
    config = tmp_path / "st" / "1_Pooling" / "config.json"
    flags = json.loads(config.read_text()) | {"pooling_mode_cls_token": True, "pooling_mode_lasttoken": False}
    config.write_text(json.dumps(flags))
    with pytest.raises(UserError, match=r"st: pools the first token \(cls\), but the last one is this model's <cls>"):
        bertree.load(tmp_path / "st")


def test_a_mask_is_filled_from_both_sides_and_not_from_the_mask_itself(model: Model) -> None:
    candidates = {
        text: model.fill_mask(text, 3) for text in ("the <mask> is red", "the [MASK] is red", "a <mask> is red")
    }
    assert candidates["the <mask> is red"] == candidates["the [MASK] is red"] != candidates["a <mask> is red"]
    assert model.fill_mask("the <mask> is blue", 3) != candidates["the <mask> is red"]
    with torch.no_grad():
        model.network.encoder.embeddings.tokens.weight[model.tokenizer.id_of("mask")] += 5.0
        again = model.fill_mask("the <mask> is red", 3)
    others = [c for c in again if c.token != "<mask>"]
    ids = {c.id for c in candidates["the <mask> is red"]}
    assert others[0].id in ids, "the mask's own embedding is not read"
    two = model.fill_mask("the <mask> is <mask>", 2)
    assert [len(some) for some in two] == [2, 2]


def test_texts_may_be_longer_than_usual(xlnet: Path, command: Command, tmp_path: Path) -> None:
    """Relative positions have no end: 64 is what texts are cut to unless a length is given."""
    model, text = bertree.load(xlnet), "the boat is red " * 40
    assert (model.max_length, model.architecture.longest_input > 10**6) == (64, True)
    with pytest.warns(UserWarning, match="64 tokens"):
        (short,) = model.hidden([text])
    (long,) = model.hidden([text], max_length=200)
    assert (len(short), len(long)) == (64, 162)
    out = finetune(command, xlnet, "classification", tmp_path, "epochs=0.2", "max_length=128")
    assert bertree.load(out / "model").task["max_length"] == 128
    learned = Transformer()
    assert learned.longest_input == learned.max_positions


def test_the_fast_engine_leaves_it_to_the_network(model: Model) -> None:
    """Vectors are those of the plain states, whatever engine is there."""
    texts = ["the boat is red", "a lamp"]
    expected = [states.mean(0).numpy() for states in model.hidden(texts)]
    assert np.allclose(model.embed(texts), expected, atol=1e-5)


def test_a_pair_in_the_other_order_is_another_input(model: Model) -> None:
    forward, swapped = model.hidden([PAIR, PAIR[::-1]])
    assert not torch.allclose(forward[-1], swapped[-1], atol=1e-4)
    (encoded,) = model.tokenize([PAIR])
    flat = Batch.pack([encoded.ids], [[0] * len(encoded.ids)])
    with torch.no_grad():
        assert not torch.allclose(model.network(flat)[-1], forward[-1], atol=1e-4), "segments are read"


def test_a_student_of_an_xlnet(tuned: Trained, command: Command, tmp_path: Path) -> None:
    teacher = tuned("squad")
    data, small = teacher.parent / "data", ("epochs=1", "batch=16", *SETTINGS)
    arguments = ("distill", teacher / "model", "--task", "squad", "--data", data, "--student", "half", "--seconds", "0")
    out = tmp_path / "half"
    command.well(*arguments, "--out", out, *small)
    assert json.loads((out / "metrics.json").read_text())["f1"] > 0.9
    student = bertree.load(out / "model")
    assert (student.architecture.layers, axes_of(student).query_stream) == (1, True)
    result = command(*arguments, "--out", tmp_path / "beam", *small, "head=beam")
    assert result.code == 2
    assert "head: beam finds the end of an answer given its start" in result.lines[-1]


def test_a_teacher_with_a_beam_is_refused(tuned: Trained, command: Command, tmp_path: Path) -> None:
    teacher, data = tuned("beam") / "model", tuned.root / "beam" / "data"
    result = command(
        "distill", teacher, "--task", "squad2", "--data", data, "--student", "half", "--out", tmp_path / "o"
    )
    assert result.code == 2
    assert "scores the end of an answer given its start (head=beam)" in result.lines[-1]
    (line,) = bertree.load(teacher).predict({"question": "which colour is it ?", "context": "the red boat"})
    assert set(line) >= {"predicted", "null_odds", "score"}


def test_logits_do_not_depend_on_the_batch(tuned: Trained) -> None:
    """The beam of a question is its own, whatever else is in the batch."""
    model = bertree.load(tuned("beam") / "model")
    task = model.find_task()
    examples = task.read([tuned.root / "beam" / "data" / "dev-v2.0.json"])
    units, _ = task.units(examples, model.required_tokenizer, 64)
    together, alone = logits(model.network, task.head, units), [logits(model.network, task.head, [u])[0] for u in units]
    for left, right in zip(together, alone, strict=True):
        assert np.allclose(left, right, atol=1e-4)
