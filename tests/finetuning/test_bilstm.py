"""A BiLSTM on tasks: where the second text of a pair begins, what is learned, and a run that is killed."""

import random
from pathlib import Path

import pytest
import torch

import bertree
from bertree.batch import Batch
from bertree.finetuning import config
from bertree.interop.folder import read_architecture
from bertree.tasks import registry
from bertree.tasks.batches import collate
from bertree.text.framing import Frame
from bertree.text.tokenizer import Encoded, Tokenizer
from tests.support import learnable, runs
from tests.support.command import Command
from tests.support.learnable import KINDS, Trained
from tests.support.shared import suite_has

SETTINGS = ("device=cpu", "lr=1e-2", "dropout=0", "classifier_dropout=0", "batch=16", "epochs=8")
PAIRS = (("The boat went on.", "He saw the old house by the sea."), ("Yes.", "No, never again!"))


def parts(sequence: Encoded) -> tuple[list[int], list[int]]:
    """The two texts as the model will read them."""
    batch = Batch.pack([sequence.ids], [sequence.segments], [sequence.second]).split_pairs()
    first, second = batch.split(batch.ids)
    assert batch.positions.tolist() == [*range(len(first)), *range(len(second))]
    return first.tolist(), second.tolist()


def test_a_pair_is_cut_where_its_second_text_begins(tokenizer: Tokenizer) -> None:
    backend = tokenizer.backend
    special = {tokenizer.id_of(kind) for kind in ("cls", "sep")}
    frame = Frame(tokenizer, pair=True)
    for longest in (None, 12):
        for pair, encoded in zip(PAIRS, tokenizer.encode(PAIRS, max_length=longest), strict=True):
            ids = [backend.encode(text, add_special_tokens=False).ids for text in pair]
            assert encoded.is_pair
            inner = [[token for token in part if token not in special] for part in parts(encoded)]
            assert all(part == own[: len(part)] and part for part, own in zip(inner, ids, strict=True))
            if longest is None:
                assert inner == ids
                assert frame.wrap(*ids) == encoded, "both ways to a pair say the same"
            else:
                assert encoded.dropped or inner == ids
    (alone,) = tokenizer.encode(["The boat went on."])
    assert not alone.is_pair
    assert parts(alone) == (alone.ids, [])


def test_empty_texts_are_pairs_or_not_but_never_a_mistake(tokenizer: Tokenizer) -> None:
    special = {tokenizer.id_of(kind) for kind in ("cls", "sep")}
    for encoded in tokenizer.encode([("", "The boat."), ("The boat.", ""), ("", "")]):
        first, second = parts(encoded)
        assert first + second == encoded.ids
    first, second = parts(tokenizer.encode([("", "The boat.")])[0])
    assert set(first) <= special
    assert not set(second) <= special
    assert set(parts(tokenizer.encode([("The boat.", "")])[0])[1]) <= special


def test_segments_stay_what_the_tokenizer_says(tokenizers: dict[str, Tokenizer]) -> None:
    (pair,) = tokenizers["bpe"].encode(PAIRS[:1])
    assert not any(pair.segments)
    assert pair.second > 0
    (pair,) = tokenizers["wordpiece"].encode(PAIRS[:1])
    assert any(pair.segments)
    assert pair.second == 0
    task = registry.make_task("classification", pair="two")
    for kind, has_places in (("wordpiece", False), ("bpe", True)):
        examples = [task.parse({"text": left, "two": right}) for left, right in PAIRS]
        units, _ = task.units(examples, tokenizers[kind], 64)
        batch = collate(units, "sequence")
        assert (batch.second is not None) == has_places
        assert (batch.segments.any().item()) != has_places


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    axes = {"body": "bilstm", "width": 32, "embedding_width": 24, "ffn_width": 16, "init_std": 0.3}
    return learnable.model(tmp_path_factory.mktemp("bilstm") / "start", learnable.tokenizer(), 1, {}, **axes)


def arguments(start: Path, name: str, root: Path, out: Path) -> list[str]:
    data = learnable.prepared(KINDS[name], root / "data")
    return [*map(str, ("finetune", start, *KINDS[name].options, "--data", data, "--out", out)), *SETTINGS]


HEADS = [("classification", "relu"), ("pair", "compare"), ("regression", "relu"), ("ner", "relu"), ("squad", "relu"),
         ("choice", "compare")]  # fmt: skip


@pytest.mark.parametrize(("name", "head"), suite_has((HEADS[3],), HEADS))
def test_what_can_be_learned_is_learned(name: str, head: str, start: Path, tmp_path: Path, command: Command) -> None:
    kind, out = KINDS[name], tmp_path / "out"
    result = command(*arguments(start, name, tmp_path, out))
    assert result.code == 0, result.err
    assert read_architecture(out / "model").sequence_head == head
    result = command("evaluate", out / "model", *kind.options, "--data", tmp_path / "data", "--json")
    assert result.code == 0, result.err
    assert result.json[kind.metric] >= kind.bar - 0.05, result.out


def test_it_predicts_and_goes_on_with_another_kind(start: Path, tmp_path: Path, command: Command) -> None:
    assert command(*arguments(start, "pair", tmp_path, tmp_path / "pairs")).code == 0
    model = bertree.load(tmp_path / "pairs" / "model")
    answers = model.predict([("a boat is here", "happy tree"), ("a boat is here", "gloomy tree")])
    assert [line["predicted"] for line in answers] == ["good", "bad"]
    assert [state.shape for state in model.hidden(["a boat"])] == [(4, 32)]
    again = tmp_path / "single"
    result = command(*arguments(tmp_path / "pairs" / "model", "classification", tmp_path / "other", again), "epochs=2")
    assert result.code == 0, result.err
    assert read_architecture(again / "model").sequence_head == "relu"
    result = command("convert", again / "model", tmp_path / "theirs", "--to", "huggingface")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "Hugging Face has no such model" in result.err


def test_a_preset_takes_the_vocabulary_of_its_tokenizer(start: Path, tmp_path: Path, command: Command) -> None:
    values = arguments(Path("bilstm"), "classification", tmp_path, tmp_path / "out")
    result = command(*values, "--tokenizer", str(start), "epochs=1")
    assert result.code == 0, result.err
    a = read_architecture(tmp_path / "out" / "model")
    assert (a.vocab_size, a.width) == (learnable.tokenizer().size, 400)


def test_a_rate_of_its_own() -> None:
    task = registry.make_task("classification")
    asked = config.load([], task)
    assert config.learning_rate(asked, bertree.load("bilstm").architecture) == 1e-3
    assert config.learning_rate(config.load(["lr=5e-4"], task), bertree.load("bilstm").architecture) == 5e-4


def test_it_is_not_pretrained(token_store: Path, start: Path, tmp_path: Path, command: Command) -> None:
    for axes in ("model.preset=bilstm", f"model.start={start}", "model.body=bilstm"):
        out = tmp_path / "out"
        result = command("pretrain", "bert-base-tiny", "--store", token_store, "--out", out, "run.device=cpu", axes)
        reason = "bertree: bert-base-tiny: model.body: a bilstm is not pretrained; it learns a task (bertree finetune)"
        assert result.code == 2
        assert [line.startswith(reason) for line in result.lines if "note:" not in line] == [True], result.err


@pytest.mark.proof  # test_resume.py kills the same loop
def test_killed_and_resumed(start: Path, tmp_path: Path) -> None:
    whole, out, log = tmp_path / "whole", tmp_path / "out", tmp_path / "log"
    dropouts = ("dropout=0.1", "classifier_dropout=0.1", "epochs=2")
    assert runs.finish(*arguments(start, "pair", tmp_path, whole), *dropouts, log=log) == 0, log.read_text()
    values = [*arguments(start, "pair", tmp_path, out), *dropouts, "--resume"]
    runs.kill(*values, log=log, after=(9, 5), moments=random.Random(0), fault="pause:0")
    assert runs.finish(*values, log=log, fault="pause:0") == 0, log.read_text()
    runs.assert_same_run(out, whole)


def test_attention_is_not_needed_for_the_parts(trained: Trained) -> None:
    """A transformer takes no notice of where the second text begins."""
    model = bertree.load(trained("pair") / "model")
    batch = Batch.pack([[5, 6, 7, 8], [9, 10]], [[0, 0, 1, 1], None])
    placed = Batch.pack([[5, 6, 7, 8], [9, 10]], [[0, 0, 1, 1], None], [3, 0])
    assert torch.equal(model.network(batch), model.network(placed))
