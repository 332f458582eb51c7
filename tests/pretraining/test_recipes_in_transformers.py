"""A few steps of every built-in recipe, in small with its own layout: transformers opens the model and computes the
same states, or the run says before its first step why it will not, and with which setting it would."""

import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import transformers

import bertree
from bertree.batch import Batch
from bertree.data.store_builder import build_store
from bertree.errors import UserError
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.pretraining import recipe as recipes
from bertree.text.corpus import Corpus
from bertree.text.tokenizer import Tokenizer
from tests.support.shared import common_folder, make_once, suite_has

FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"
SMALL = ["model.layers=2", "model.width=32", "model.heads=2", "run.device=cpu", "run.minutes=0", "run.eval_tokens=64"]
SMALL += ["data.held_out_share=0.1", "schedule.warmup=1"]
LENGTHS = ["max_length=32", "batch_tokens=64", "steps=2"]


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory, tokenizers: Mapping[str, Tokenizer]) -> dict[str, Path]:
    """A small token store for each kind of tokenizer."""
    text = Path(__file__).parents[2] / "corpus" / "books.txt"

    def make(where: Path) -> None:
        where.mkdir()
        (where / "text.txt").write_text("\n\n".join(text.read_text().split("\n\n")[:30]))
        for kind in ("wordpiece", "bpe"):
            build_store(Corpus([str(where / "text.txt")]), tokenizers[kind], where / kind)

    root = make_once(common_folder(tmp_path_factory) / "recipe-stores", make)
    return {kind: root / kind for kind in ("wordpiece", "bpe")}


def documented() -> dict[str, tuple[bool, str]]:
    """Each recipe of the table in docs/formats.md: whether transformers opens it, and the class or setting named."""
    table = FORMATS.read_text().split("## What transformers opens")[1].split("\n## ")[0]
    rows: dict[str, tuple[bool, str]] = {}
    for recipe, outcome in re.findall(r"^\| (`.*?) \| (.*?) \|$", table, re.MULTILINE):
        named = re.search("`(.*?)`", outcome)
        assert named, outcome
        rows |= dict.fromkeys(re.findall("`(.*?)`", recipe), (not outcome.startswith("no"), named[1]))
    return rows


RECIPES = documented()
FIRST = {outcome: name for name, outcome in reversed(RECIPES.items()) if not name.endswith("large")}.values()
SUITE = list(FIRST)[::2]  # every other kind of outcome; the others are proofs


def overrides(name: str) -> list[str]:
    settings = recipes.load(name)
    values = [*SMALL, *(f"phases.{i}.{v}" for i in range(len(settings.phases)) for v in LENGTHS)]
    axes = {**settings.model}
    if "embedding_width" in axes or name.startswith("albert"):
        values.append("model.embedding_width=16")
    if "ffn_width" in axes or name.startswith(("ctrl", "transformer-xl", "xlnet")):
        values.append("model.ffn_width=64")
    if "memory" in axes:
        values.append("model.memory=16")
    if name.startswith("transformer-xl"):
        values += ["model.cutoffs=", "model.memory=16"]
    if name.startswith("elmo"):
        values += ["model.ffn_width=32", "model.filters=1:8"]
    if name.startswith("reformer"):
        values += ["model.axial_shape=8,8", "model.ffn_chunk=0"]
    return values


# A large member differs from its base in size, which is set here, and in settings that no model has.
@pytest.mark.parametrize("name", suite_has(SUITE, (name for name in RECIPES if not name.endswith("large"))))
def test_transformers_opens_what_a_recipe_trains(name: str, stores: dict[str, Path], tmp_path: Path) -> None:
    store, out = stores["bpe" if name.startswith("roberta") else "wordpiece"], tmp_path / "run"
    small = overrides(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if isinstance(recipes.load(name), recipes.DistillRecipe):
            bertree.load("bert-tiny", tokenizer=store / "tokenizer").save(tmp_path / "teacher")
            bertree.distill(tmp_path / "teacher", student=name, store=store, out=out, seconds=0, overrides=small)
        else:
            bertree.pretrain(name, store=store, out=out, overrides=small)
        contents = folder.read(out / "model")
        opens, named = RECIPES[name]
        if opens:
            bertree.convert(out / "model", tmp_path / "hf", "hf")
    notes = [str(warning.message) for warning in caught if "will not open" in str(warning.message)]
    if not opens:
        assert len(notes) == 1
        assert named in notes[0]
        return
    assert not notes
    (kind,) = json.loads((tmp_path / "hf" / "config.json").read_text())["architectures"]
    assert kind == named
    theirs, loading = getattr(transformers, kind).from_pretrained(tmp_path / "hf", output_loading_info=True)
    assert not loading["missing_keys"]
    ids = torch.arange(8, 28)
    with torch.no_grad():
        expected = theirs.eval().base_model(input_ids=ids[None]).last_hidden_state[0]
        states = contents.network.eval()(Batch.pack([ids.tolist()]))
    assert (states - expected).abs().max() < 1e-5
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert contents.tokenizer is not None
    text = "The captain went down to the sea."
    assert tokenizer(text)["input_ids"] == contents.tokenizer.encode([text])[0].ids


def test_the_table_has_every_recipe() -> None:
    assert set(RECIPES) == set(recipes.bundled_recipes())


def test_the_refusal_names_the_setting_too(tmp_path: Path) -> None:
    model = bertree.load("bert-tiny")
    a = model.architecture.with_values({"residual": "pre-norm", "embedding_norm": True, "vocab_size": 99})
    contents = Contents(a, bertree.load("bert-tiny").network)
    with pytest.raises(UserError, match=r"transformers opens one trained with model\.embedding_norm=false"):
        folder.check_huggingface(contents, tmp_path)
