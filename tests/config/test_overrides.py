"""Single settings from the command line and from Python: with and without their section."""

import re
from pathlib import Path
from typing import Any

import pytest

from bertree.config.overrides import ELSEWHERE, Override, overrides_of, parse
from bertree.errors import UserError
from bertree.finetuning import config as finetuning
from bertree.pretraining import recipe
from bertree.tasks.registry import make_task

BASE = """
[model]
preset = "bert-tiny"
[[phases]]
steps = 10
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    (tmp_path / "base.toml").write_text(BASE)
    return str(tmp_path / "base.toml")


@pytest.fixture
def student(tmp_path: Path) -> str:
    (tmp_path / "student.toml").write_text(BASE + "[distill]\nce = 1.0\n")
    return str(tmp_path / "student.toml")


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("lr=0.5", "optim.lr=0.5"),
        ("seed=3", "run.seed=3"),
        ("layers=3", "model.layers=3"),
        ("preset=bert-mini", "model.preset=bert-mini"),
        ("warmup=2", "schedule.warmup=2"),
        ("steps=7", "phases.0.steps=7"),
        ("batch_tokens=512", "phases.0.batch_tokens=512"),
        ("mlm=2", "objective.mlm=2"),
        ("store=some/where", "data.store=some/where"),
        ("name=mine", "name=mine"),
        ("precision=float32", "run.precision=fp32"),
        ("run.precision=bfloat16", "run.precision=bf16"),
    ],
)
def test_the_section_may_be_left_out(short: str, full: str, base: str) -> None:
    loaded = recipe.load(base, [short])
    assert loaded == recipe.load(base, [full])
    assert loaded != recipe.load(base)
    assert loaded.overridden == {full.partition("=")[0]}


def test_a_key_of_two_sections_is_refused(base: str, student: str) -> None:
    with pytest.raises(UserError, match=r"mask_rate: could be data.mask_rate or phases.0.mask_rate"):
        recipe.load(base, ["mask_rate=0.3"])
    with pytest.raises(UserError, match=r"layers: could be model.layers or distill.layers"):
        recipe.load(student, ["layers=3"])
    two = [Override("phases", [{"steps": 1}, {"steps": 2}])]
    with pytest.raises(UserError, match=r"steps: could be phases.0.steps or phases.1.steps"):
        recipe.load(base, [*two, "steps=3"])
    with pytest.raises(UserError, match="learning_rate: unknown setting, did you mean 'lr'"):
        recipe.load(base, ["learning_rate=3"])
    with pytest.raises(UserError, match="warm_up: unknown setting, did you mean 'warmup'"):
        recipe.load(base, ["warm_up=3"])
    with pytest.raises(UserError, match="max_steps: unknown setting, did you mean 'steps'"):
        recipe.load(base, ["max_steps=3"])


def test_a_distill_section_makes_the_recipe_of_a_student(base: str, student: str, tmp_path: Path) -> None:
    assert recipe.load(student, overrides_of({"distill": {"cos": 3}})) == recipe.load(student, ["distill.cos=3"])
    (tmp_path / "student.toml").write_text(BASE + "[distill]\nce = 1.0\n")
    assert recipe.load(student) == recipe.load(base, ["distill.ce=1.0", "name=student"])


GIVEN: list[dict[str, Any]] = [
    {"optim": {"lr": 0.5, "betas": (0.5, 0.6)}, "model": {"layers": 3}, "store": Path("a/b")},
    {"optim.lr": 0.5, "optim.betas": [0.5, 0.6], "model.layers": 3, "data.store": "a/b"},
    {"lr": 0.5, "betas": (0.5, 0.6), "layers": 3, "data": {"store": "a/b"}},
]


@pytest.mark.parametrize("arguments", GIVEN)
def test_settings_from_python(arguments: dict[str, Any], base: str) -> None:
    text = ["optim.lr=0.5", "optim.betas=[0.5, 0.6]", "model.layers=3", "data.store=a/b"]
    loaded = recipe.load(base, overrides_of(arguments))
    assert loaded == recipe.load(base, text)
    assert loaded.overridden == recipe.load(base, text).overridden
    assert [phase.steps for phase in recipe.load(base, overrides_of({"phases": [{"steps": 1}]})).phases] == [1]


def test_values_from_python_are_not_parsed(base: str) -> None:
    assert recipe.load(base, overrides_of({"data": {"store": "7"}})).data.store == "7"
    with pytest.raises(UserError, match=r"data\.store: must be text, not 7"):
        recipe.load(base, overrides_of({"store": 7}))
    with pytest.raises(UserError, match=r"optim\.lr: must be a number, not None"):
        recipe.load(base, overrides_of({"lr": None}))


def test_fine_tuning_has_the_same_grammar() -> None:
    task = make_task("ner")
    text = finetuning.load(["lr=1e-3", "epochs=2", "dropout=0", "name=lamb", "crf=true", "precision=float32"], task)
    python = {"optim": {"lr": 1e-3, "name": "lamb"}, "epochs": 2, "dropout": 0, "task.crf": True}
    assert text == finetuning.load(overrides_of(python | {"run": {"precision": "fp32"}}), task)
    assert text.task == {"crf": True}
    assert text.overridden == {
        "optim.lr", "train.epochs", "model.dropout", "optim.name", "task.crf", "run.precision",
    }  # fmt: skip
    assert finetuning.load_task_distill(["distill.alpha=0.3"], task).distill.alpha == 0.3
    with pytest.raises(UserError, match="epoch: unknown setting, did you mean 'epochs'"):
        finetuning.load(["epoch=3"], task)
    for name in ELSEWHERE.keys() - {"max_steps"}:
        with pytest.raises(UserError, match=f"{name}: unknown setting, did you mean '{ELSEWHERE[name]}'"):
            finetuning.load([f"{name}=3"], task)


@pytest.mark.parametrize("text", ["note=" + "[" * 50_000, "optim.lr=" + "9" * 5000])
def test_extreme_values(text: str, base: str) -> None:
    with pytest.raises(UserError, match="nested too deeply or has too many digits") as caught:
        recipe.load(base, [text])
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("word", ["²", "٣", "9" * 5000, "-0", "1_0"])
def test_odd_entries_of_a_list(word: str, base: str) -> None:
    with pytest.raises(UserError, match="is not one of the 1 entries"):
        recipe.load(base, [f"phases.{word}.steps=3"])
    with pytest.raises(UserError, match="is not one of the 1 entries"):
        recipe.load(base, [f"phases.{word}="])


@pytest.mark.parametrize("key", [".lr", "optim.", "phases..steps", "."])
def test_a_key_with_an_empty_part_is_shown_as_it_was_written(key: str, base: str) -> None:
    with pytest.raises(UserError, match=rf"^'{re.escape(key)}': is not a key"):
        recipe.load(base, [f"{key}=3"])
    with pytest.raises(UserError, match=rf"^'{re.escape(key)}': is not a key"):
        recipe.load(base, [Override(key, 3)])


def test_a_bare_word_needs_no_quotes() -> None:
    assert parse("data.store=a b/c") == Override("data.store", "a b/c")
    assert parse("x=") == Override("x", "")
    assert parse("x=1_000") == Override("x", 1000)
