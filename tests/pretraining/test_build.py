"""The parts of a run: a model that starts from another, what does not fit, what the command refuses."""

import json
import math
from pathlib import Path

import pytest
import torch

from bertree.batch import PretrainingLabels
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import BertreeWarning, UserError, install_hint
from bertree.interop import folder
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build as assembly
from bertree.pretraining import recipe
from bertree.pretraining.held_out import held_out_questions
from bertree.pretraining.sections import DataSettings
from tests.support import runs


@pytest.fixture(scope="module")
def started(token_store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe and a trained model."""
    place = tmp_path_factory.mktemp("started")
    path = runs.recipe("bert", place)
    arguments = ("pretrain", str(path), "--store", str(token_store), "--out", str(place / "out"), "optim.lr=1e-2")
    assert runs.finish(*arguments, log=place / "log") == 0, (place / "log").read_text()
    return path, place / "out" / "model"


def test_going_on_keeps_the_weights(started: tuple[Path, Path], token_store: Path, tmp_path: Path) -> None:
    path, model = started
    changes = [f"data.store={token_store}", f"model.start={model}", "model.dropout=0.0", "optim.lr=1e-9"]
    settings = recipe.load(str(path), changes)
    store, _ = assembly.open_stores(settings.data)
    contents = assembly.build_model(settings, store)
    before = folder.read(model)
    assert before.network.state_dict().keys() == contents.network.state_dict().keys()
    for name, tensor in before.network.state_dict().items():
        assert torch.equal(tensor, contents.network.state_dict()[name]), name
    assert contents.architecture.dropout == 0.0
    out = tmp_path / "out"
    assert runs.finish("pretrain", str(path), *changes, "--out", str(out), log=tmp_path / "log") == 0
    first = next(line for line in map(json.loads, (out / "metrics.jsonl").open()) if line["kind"] == "train")
    micro = [
        Stream(
            store,
            format=settings.data.format,
            masking=settings.data.masking,
            batch_tokens=512,
            max_length=32,
            rank=rank,
            world=2,
        )[0]
        for rank in range(2)
    ]
    objective = pretraining_objective(mlm=1.0, nsp=1.0)
    with torch.no_grad():
        losses = [objective(before.network.eval(), batch).losses for batch in micro]
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
    from bertree.data.store_builder import build_store
    from bertree.text import tokenizer_training
    from bertree.text.corpus import Corpus

    path, model = started
    texts = ["One text. And another sentence of it.", "A second document. It is short."] * 5
    (tmp_path / "text.txt").write_text("\n\n".join(texts))
    build_store(
        Corpus([str(tmp_path / "text.txt")]),
        tokenizer_training.train(lambda: texts, "wordpiece", 60),
        tmp_path / "other",
    )

    def build(store: Path, *changes: str) -> None:
        settings = recipe.load(str(path), [f"data.store={store}", *changes])
        assembly.build_model(settings, Store.open(store))

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
    with pytest.raises(UserError, match=rf"^{path}: model\.preset: bert-bse: no such preset"):
        build(token_store, "model.preset=bert-bse")
    with pytest.raises(UserError, match=rf"^{path}: model: .*5 heads cannot divide a width"):
        build(token_store, "model.heads=5")
    with pytest.raises(UserError, match=rf"^{path}: model: .*dropout"):
        build(token_store, start, "model.dropout=2.0")
    data = DataSettings(store=str(token_store), held_out=str(tmp_path / "other"))
    with pytest.raises(UserError, match="another tokenizer than"):
        assembly.open_stores(data)


# The command.


def test_same_seed_same_bytes(started: tuple[Path, Path], token_store: Path, tmp_path: Path) -> None:
    arguments = ("pretrain", str(started[0]), "--store", str(token_store), "optim.lr=1e-2", "--out")
    again, other = tmp_path / "again", tmp_path / "other"
    assert runs.finish(*arguments, str(again), log=tmp_path / "log") == 0
    assert runs.results(again) == runs.results(started[1].parent)
    assert runs.finish(*arguments, str(other), "run.seed=1", log=tmp_path / "log") == 0
    assert runs.results(other)["model"] != runs.results(again)["model"]


WRONG = {
    "no store": ((), "data.store: is not set"),
    "odd name": (("--store", "😀"), "😀: is not a token store"),
    "not a store": (("--store", "."), "is not a token store"),
    "too long": (("--store", "STORE", "phases.1.max_length=65"), "phases.1.max_length: 65 is more than the model's 64"),
    "device": (("--store", "STORE", "run.device=warp"), "run.device 'warp': cannot be used here"),
    "no masks": (("--store", "STORE", "data.masking=none"), "data.masking: pretraining needs masks"),
    "few tokens": (("--store", "STORE", "phases.0.batch_tokens=16"), "batch_tokens 16: too few"),
    "too short": (("--store", "STORE", "phases.0.max_length=5"), "phases: max_length 5: too short"),
    "masks": (("--store", "STORE", "data.masking=TOKEN"), "data: masking 'TOKEN': unknown"),
    "a file": (("--store", "STORE", "--out", "FILE"), "FILE: cannot be written"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line(case: str, token_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("FILE").write_text("")
    arguments, reason = WRONG[case]
    words = [str(token_store) if word == "STORE" else word for word in arguments]
    recipe_file = runs.recipe("bert", tmp_path)
    assert runs.finish("pretrain", str(recipe_file), *words, log=tmp_path / "log") == 2
    log = (tmp_path / "log").read_text()
    assert reason in log
    assert (f"{recipe_file}: " in log) == (case not in ("odd name", "not a store", "a file"))
    assert len(log.splitlines()) == 1
    assert not list(tmp_path.rglob("recipe.toml")), "nothing is begun"


def test_tensorboard_without_the_package(token_store: Path, tmp_path: Path) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    recipe_file = str(runs.recipe("bert", tmp_path))
    arguments = ("pretrain", recipe_file, "--store", str(token_store), "--out", str(out))
    assert runs.finish(*arguments, "run.tensorboard=true", log=log, fault="no tensorboard:1") == 2
    line = f"bertree: {recipe_file}: run.tensorboard: the package is not installed; "
    line += install_hint("tensorboard") + "\n"
    assert log.read_text() == line
    assert not (out / "recipe.toml").exists(), "the folder is still free for a run without it"


HELD_OUT_RECIPES = (
    ("bert-base-tiny", "run.seed=1"),
    ("bert-base-tiny", "data.format=sentence-pair+nsp"),
    ("roberta-base-tiny", "run.seed=5"),
    ("albert-base-tiny", "data.masking=word"),
    ("albert-base-tiny", "data.masking=ngram", "data.mask_rate=0.3", "data.mask=0.5", "data.ngram=2"),
    ("bert-base-tiny", "data.format=doc-sentences", "objective.nsp=0", "phases.0.max_length=64"),
)


def test_recipes_are_evaluated_on_the_same_masked_tokens(token_store: Path) -> None:
    """Whatever the seed, format, masking unit, rate and length, so that their losses can be compared."""
    store = Store.open(token_store)
    asked = set()
    for name, *overrides in HELD_OUT_RECIPES:
        loaded = recipe.load(name, [f'data.store="{token_store}"', "run.eval_tokens=3000", *overrides])
        objective = pretraining_objective(**loaded.objective)
        questions = held_out_questions(loaded, store, loaded.phases[0], objective)
        masked = next(question.text for question in questions if "mlm" in question.terms.terms)
        asked.add(tuple(t for batch in masked.one_epoch() for t in PretrainingLabels.of(batch).predicted[1].tolist()))
    assert len(asked) == 1


def test_share_takes_part_of_the_training_documents_and_the_same_held_out_text(token_store: Path) -> None:
    stores = {}
    for share in (1.0, 0.3):
        stores[share] = assembly.open_stores(DataSettings(store=str(token_store), held_out_share=0.1, share=share))
    assert stores[0.3][1].fingerprint == stores[1.0][1].fingerprint
    assert 0.2 < stores[0.3][0].tokens / stores[1.0][0].tokens < 0.4
