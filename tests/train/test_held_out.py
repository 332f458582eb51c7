"""Held-out figures against a computation by hand; going on from a model; what else the command refuses."""

import json
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import BertreeWarning, UserError
from bertree.interop import folder
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build as assembly
from bertree.pretraining import recipe
from bertree.train.held_out import MaskSamples, evaluate_held_out
from bertree.train.metrics_log import MetricsLog
from tests.support import runs
from tests.support.batches import fresh


@pytest.fixture(scope="module")
def held(token_store: Path) -> Stream:
    return Stream(Store.open(token_store), format="segment-pair+sop", batch_tokens=400, max_length=40)


def test_figures_by_hand(held: Stream) -> None:
    network = fresh(vocab_size=held.store.vocab_size, dropout=0.2).train()
    objective = pretraining_objective(mlm=2.0, sop=0.5)
    found = evaluate_held_out(network, objective, held, 900, nullcontext)
    assert evaluate_held_out(network, objective, held, 900, nullcontext) == found
    assert network.training, "as it was before"
    network.eval()
    words, pairs, read = [], [], 0
    for batch in held.one_epoch():
        with torch.no_grad():
            hidden = network(batch)
            scores = network.mask_logits(hidden, batch.masked).log_softmax(-1)
            sides = network.class_logits("pair", hidden, batch).log_softmax(-1)
        for row, target in zip(scores, batch.targets.tolist(), strict=True):
            words.append((-float(row[target]), int(row.argmax()) == target))
        for row, target in zip(sides, batch.pairs.tolist(), strict=True):
            if target != -100:
                pairs.append((-float(row[target]), int(row.argmax()) == target))
        read += batch.ids.numel()
        if read >= 900:
            break
    mlm, sop = (sum(loss for loss, _ in rows) / len(rows) for rows in (words, pairs))
    assert found == pytest.approx(
        {
            "loss": 2 * mlm + 0.5 * sop,
            "mlm": mlm,
            "sop": sop,
            "perplexity": math.exp(mlm),
            "accuracy": sum(right for _, right in words) / len(words),
            "sop_accuracy": sum(right for _, right in pairs) / len(pairs),
        },
        rel=1e-5,
    )
    assert read < held.epoch_tokens, "the rest is not read"


def test_samples_are_the_same_texts_every_time(held: Stream) -> None:
    network = fresh(vocab_size=held.store.vocab_size, max_positions=64)
    one, other = MaskSamples(held)(network), MaskSamples(held)(network)
    assert one == other
    assert len(one) == 4
    for sample in one:
        assert sample["text"].count("[MASK]") == len(sample["masks"]) > 0
        assert all(0 < mask["probability"] <= 1 for mask in sample["masks"])


def test_the_true_words_stand_in_a_sample(held: Stream) -> None:
    samples = MaskSamples(held)
    for example, shown in zip(samples.examples, samples(fresh(vocab_size=held.store.vocab_size)), strict=True):
        hidden = [mask["gold"] for mask in shown["masks"]]
        assert len(hidden) == int((example.ids == held.store.special["mask"]).sum())


# Going on from a model.


@pytest.fixture(scope="module")
def started(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and a trained model."""
    place = tmp_path_factory.mktemp("started")
    path = runs.recipe("bert", place)
    given = ("pretrain", str(path), "--store", str(token_store), "--out", str(place / "out"), "optim.lr=1e-2")
    assert runs.finish(*given, said=place / "said") == 0, (place / "said").read_text()
    return path, place / "out" / "model"


def test_going_on_keeps_the_weights(started: tuple[Path, Path], token_store: Path, tmp_path: Path) -> None:
    path, model = started
    changes = [f"data.store={token_store}", f"model.start={model}", "model.dropout=0.0", "optim.lr=1e-9"]
    given = recipe.load(str(path), changes)
    store, _ = assembly.open_stores(given.data)
    contents = assembly.build_model(given, store)
    before = folder.read(model)
    assert before.network.state_dict().keys() == contents.network.state_dict().keys()
    for name, tensor in before.network.state_dict().items():
        assert torch.equal(tensor, contents.network.state_dict()[name]), name
    assert contents.architecture.dropout == 0.0
    out = tmp_path / "out"
    assert runs.finish("pretrain", str(path), *changes, "--out", str(out), said=tmp_path / "said") == 0
    first = next(line for line in map(json.loads, (out / "metrics.jsonl").open()) if line["kind"] == "train")
    micro = [
        Stream(
            store,
            format=given.data.format,
            masking=given.data.masking,
            batch_tokens=512,
            max_length=32,
            rank=rank,
            world=2,
        )[0]
        for rank in range(2)
    ]
    objective = pretraining_objective(mlm=1.0, nsp=1.0)
    with torch.no_grad():
        losses = [objective(before.network.eval(), batch) for batch in micro]
    expected = sum(
        sum(float(loss[term].sum) for loss in losses) / sum(objective.counts(batch)[term] for batch in micro)
        for term in ("mlm", "nsp")
    )
    assert first["loss"] == pytest.approx(expected, abs=2e-5)
    assert first["loss"] < math.log(store.vocab_size) + math.log(2) - 0.5, "which had learned something"


def test_a_new_head_is_fresh_and_the_rest_is_kept(started: tuple[Path, Path], token_store: Path) -> None:
    path, model = started
    changes = [f"data.store={token_store}", f"model.start={model}"]
    plain = [*changes, "objective.nsp=0", "data.format=full-sentences"]
    contents = assembly.build_model(recipe.load(str(path), plain), Store.open(token_store))
    assert list(contents.network.heads) == ["mask"]


def test_what_does_not_fit_is_refused(started: tuple[Path, Path], token_store: Path, tmp_path: Path) -> None:
    from bertree.data.prepare import prepare
    from bertree.text import tokenizer_training
    from bertree.text.corpus import Corpus

    path, model = started
    texts = ["One text. And another sentence of it.", "A second document. It is short."] * 5
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    prepare(
        Corpus([str(tmp_path / "text.txt")]),
        tokenizer_training.train(lambda: texts, "wordpiece", 60),
        tmp_path / "other",
    )

    def build(store: Path, *changes: str) -> None:
        given = recipe.load(str(path), [f"data.store={store}", *changes])
        assembly.build_model(given, Store.open(store))

    start = f"model.start={model}"
    build(token_store, start)
    with pytest.raises(UserError, match="made with another tokenizer"):
        build(tmp_path / "other", start)
    with pytest.warns(BertreeWarning, match=r"model\.layers: stays 2, as in .*the recipe's 3 is for a new model"):
        build(token_store, start, "model.layers=3")
    with pytest.raises(UserError, match="no such model folder"):
        build(token_store, f"model.start={tmp_path}/nowhere")
    with pytest.raises(UserError, match=r"vocab_size: 100 is less than the 500 tokens"):
        build(token_store, "model.vocab_size=100")
    with pytest.raises(UserError, match="did you mean 'layers'"):
        build(token_store, "model.layer=3")
    with pytest.raises(UserError, match="no such preset"):
        build(token_store, "model.preset=bert-bse")
    data = recipe.DataSettings(store=str(token_store), held_out=str(tmp_path / "other"))
    with pytest.raises(UserError, match="another tokenizer than"):
        assembly.open_stores(data)


# The command.


def test_same_seed_same_bytes(started: tuple[Path, Path], token_store: Path, tmp_path: Path) -> None:
    given = ("pretrain", str(started[0]), "--store", str(token_store), "optim.lr=1e-2", "--out")
    again, other = tmp_path / "again", tmp_path / "other"
    assert runs.finish(*given, str(again), said=tmp_path / "said") == 0
    assert runs.results(again) == runs.results(started[1].parent)
    assert runs.finish(*given, str(other), "run.seed=1", said=tmp_path / "said") == 0
    assert runs.results(other)["model"] != runs.results(again)["model"]


WRONG = {
    "no store": ((), "data.store: is not set"),
    "odd name": (("--store", "😀"), "😀: is not a token store"),
    "not a store": (("--store", "."), "is not a token store"),
    "too long": (("--store", "STORE", "phases.1.max_length=65"), "phases.1.max_length: 65 is more than the model's 64"),
    "device": (("--store", "STORE", "run.device=warp"), "run.device 'warp': cannot be used here"),
    "no masks": (("--store", "STORE", "data.masking=none"), "data.masking: pretraining needs masks"),
    "few tokens": (("--store", "STORE", "phases.0.batch_tokens=16"), "batch_tokens 16: too few"),
    "a file": (("--store", "STORE", "--out", "FILE"), "FILE: cannot be written"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(case: str, token_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("")
    arguments, reason = WRONG[case]
    words = [str(token_store) if word == "STORE" else word for word in arguments]
    assert runs.finish("pretrain", str(runs.recipe("bert", tmp_path)), *words, said=tmp_path / "said") == 2
    said = (tmp_path / "said").read_text()
    assert reason in said
    assert len(said.splitlines()) == 1
    assert not list(tmp_path.rglob("recipe.toml")), "nothing is begun"


def test_tensorboard_without_the_package(token_store: Path, tmp_path: Path) -> None:
    said, out = tmp_path / "said", tmp_path / "out"
    given = ("pretrain", str(runs.recipe("bert", tmp_path)), "--store", str(token_store), "--out", str(out))
    assert runs.finish(*given, "run.tensorboard=true", said=said, fault="no tensorboard:1") == 2
    line = "bertree: run.tensorboard: the package is not installed; pip install tensorboard\n"
    assert said.read_text() == line
    assert not (out / "recipe.toml").exists(), "the folder is still free for a run without it"


def test_a_record_goes_on(tmp_path: Path) -> None:
    record = MetricsLog(tmp_path)
    for step in (1, 2, 3):
        record.write("train", step, {"loss": math.inf if step == 2 else 1 / 3})
    record.write("end", 3, {})
    record.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "st')  # killed while writing
    record = MetricsLog(tmp_path, 2)
    record.write("train", 3, {"loss": 0.5})
    record.close()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.333333), (2, None), (3, 0.5)]
