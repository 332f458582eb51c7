"""Recipes: read, laid over each other, checked, written out again."""

from pathlib import Path

import pytest

from bertree.config import settings
from bertree.errors import BertreeWarning, UserError
from bertree.pretraining import recipe
from tests.support.command import Command

BASE = """
note = "ä \\"quoted\\" note"
[model]
preset = "bert-tiny"
layers = 3
[optim]
betas = [0.8, 1e-3]
[[phases]]
steps = 10
[[phases]]
steps = 5
max_length = 64
batch_tokens = 640
mask_rate = 0.3
"""


@pytest.fixture
def base(tmp_path: Path) -> str:
    (tmp_path / "base.toml").write_text(BASE)
    return str(tmp_path / "base.toml")


@pytest.mark.parametrize("name", recipe.bundled_recipes())
def test_shipped_recipes_load_and_round_trip(name: str, tmp_path: Path) -> None:
    loaded = recipe.load(name)
    assert loaded.name == name
    assert loaded.note
    (tmp_path / "again.toml").write_text(settings.as_toml(loaded))
    assert recipe.load(str(tmp_path / "again.toml")) == loaded


def test_every_value_survives_writing(base: str, tmp_path: Path) -> None:
    changes = ["data.store=\"a 'b' \\\\ 😀\"", "run.tensorboard=true", "optim.lr=1e-05", "optim.clip=3", "run.seed=7"]
    loaded = recipe.load(base, [*changes, "model.dropout=0.1", "model.pooler=false", "objective.mlm=0.3"])
    assert loaded.data.store == "a 'b' \\ 😀"
    assert loaded.optim.clip == 3.0
    (tmp_path / "again.toml").write_text(settings.as_toml(loaded))
    again = recipe.load(str(tmp_path / "again.toml"))
    assert again == loaded
    assert settings.differences(loaded, again) == []


# What the papers print; Devlin et al. 2018 A.2, Liu et al. 2019 table 9, Lan et al. 2019 4.1, Yang et al.
# 2019 table 7.
PUBLISHED = {
    "bert-base": {
        "optim.name": "adamw", "optim.lr": 1e-4, "optim.betas": (0.9, 0.999), "optim.weight_decay": 0.01,
        "schedule.shape": "linear", "schedule.warmup": 10_000, "data.mask_rate": 0.15,
        "phases": [(900_000, 128, 256 * 128), (100_000, 512, 256 * 512)],
        "objective": (1.0, 1.0, 0.0), "data.format": "segment-pair+nsp", "data.masking": "token+static10",
    },
    "roberta-base": {
        "optim.name": "adamw", "optim.lr": 6e-4, "optim.betas": (0.9, 0.98), "optim.weight_decay": 0.01,
        "optim.eps": 1e-6, "optim.clip": 0.0, "schedule.shape": "linear", "schedule.warmup": 24_000,
        "phases": [(500_000, 512, 8192 * 512)], "data.mask_rate": 0.15,
        "objective": (1.0, 0.0, 0.0), "data.format": "full-sentences", "data.masking": "token",
    },
    "roberta-large": {
        "optim.lr": 4e-4, "optim.betas": (0.9, 0.98), "optim.clip": 0.0, "schedule.warmup": 30_000,
        "phases": [(500_000, 512, 8192 * 512)],
    },
    "xlnet-large": {
        "optim.lr": 4e-4, "optim.eps": 1e-6, "optim.weight_decay": 0.01, "schedule.shape": "linear",
        "schedule.warmup": 40_000, "phases": [(500_000, 512, 8192 * 512)], "data.partial": 6,
    },
    "albert-base": {
        "optim.name": "lamb", "optim.lr": 0.00176, "schedule.shape": "linear", "schedule.warmup": 3_125,
        "phases": [(125_000, 512, 4096 * 512)], "data.mask_rate": 0.15,
        "objective": (1.0, 0.0, 1.0), "data.format": "segment-pair+sop", "data.masking": "ngram",
    },
    "gpt1": {
        "optim.name": "adamw", "optim.lr": 2.5e-4, "optim.weight_decay": 0.01, "optim.clip": 1.0,
        "schedule.shape": "cosine", "schedule.warmup": 2000, "phases": [(3_000_000, 512, 64 * 512)],
        "objective": (1.0, 0.0, 0.0), "data.format": "stream", "data.masking": "next",
    },
    "transformer-xl-base": {
        "optim.name": "adamw", "optim.lr": 2.5e-4, "optim.weight_decay": 0.0, "optim.clip": 0.25,
        "schedule.shape": "cosine", "schedule.warmup": 0, "phases": [(200_000, 150, 60 * 150)],
        "objective": (1.0, 0.0, 0.0), "data.format": "lanes", "data.masking": "next",
    },
    "ctrl": {
        "optim.clip": 0.25, "schedule.warmup": 25_000, "phases": [(800_000, 256, 1024 * 256)],
        "objective": (1.0, 0.0, 0.0), "data.format": "stream", "data.masking": "next",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_papers_settings(name: str) -> None:
    loaded = recipe.load(name)
    for key, value in PUBLISHED[name].items():
        if key == "phases":
            assert [(p.steps, p.max_length, p.batch_tokens) for p in loaded.phases] == value
        elif key == "objective":
            assert tuple(loaded.objective[name] for name in ("mlm", "nsp", "sop")) == value
        else:
            section, field = key.split(".")
            assert getattr(getattr(loaded, section), field) == value, key
    assert loaded.model["preset"] == name
    assert loaded.schedule.growth == 1


def test_a_recipe_holds_its_differences(base: str, tmp_path: Path) -> None:
    child = tmp_path / "child.toml"
    child.write_text('extends = "base.toml"\n[model]\nlayers = 4\n[optim]\nlr = 0.5\n')
    loaded, parent = recipe.load(str(child)), recipe.load(base)
    assert settings.differences(loaded, parent) == ["model.layers", "name", "optim.lr"]
    assert loaded.optim.betas == (0.8, 1e-3)
    child.write_text('extends = "base"\n[[phases]]\nsteps = 1\n')
    with pytest.raises(UserError, match=r"child\.toml: extends: 'base': no such recipe, did you mean 'bert-base'"):
        recipe.load(str(child))
    child.write_text('extends = "bert-base"\n[[phases]]\nsteps = 1\n[schedule]\nwarmup = 1\n')
    assert len(recipe.load(str(child)).phases) == 1, "phases are replaced as a whole"


def test_a_short_run_has_a_short_warmup(tmp_path: Path) -> None:
    with pytest.warns(BertreeWarning, match=r"schedule.warmup: 2 of 40 steps, scaled from the recipe's 100 of 2,000"):
        assert recipe.load("bert-base-tiny", ["steps=40"]).schedule.warmup == 2
    assert recipe.load("bert-base-tiny", ["steps=200"]).schedule.warmup == 100, "it fits"
    with pytest.raises(UserError, match=r"schedule.warmup: 41 is more than the run's 40 steps"):
        recipe.load("bert-base-tiny", ["steps=40", "warmup=41"])
    child = tmp_path / "child.toml"
    child.write_text('extends = "bert-base-tiny"\n[[phases]]\nsteps = 40\nmax_length = 32\nbatch_tokens = 1024\n')
    with pytest.warns(BertreeWarning, match="scaled from the recipe's 100"):
        assert recipe.load(str(child)).schedule.warmup == 2
    child.write_text(child.read_text() + "[schedule]\nwarmup = 100\n")
    with pytest.raises(UserError, match=r"schedule.warmup: 100 is more than the run's 40 steps"):
        recipe.load(str(child))


def test_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('extends = "b.toml"\n')
    (tmp_path / "b.toml").write_text('extends = "a.toml"\n')
    with pytest.raises(UserError, match="extend each other in a circle"):
        recipe.load(str(tmp_path / "a.toml"))
    (tmp_path / "a.toml").write_text("extends = 3\n")
    with pytest.raises(UserError, match="extends: must be the name"):
        recipe.load(str(tmp_path / "a.toml"))


def test_overrides(base: str) -> None:
    loaded = recipe.load(
        base,
        ["phases.1.steps=7", "optim.name=lamb", "optim.betas=[0.5, 0.6]", "data.store=some/where", "data.held_out="],
    )
    assert [phase.steps for phase in loaded.phases] == [10, 7]
    assert (loaded.optim.name, loaded.optim.betas, loaded.data.store) == ("lamb", (0.5, 0.6), "some/where")
    assert loaded.data.held_out == ""
    assert settings.differences(loaded, recipe.load(base)) == [
        "data.store", "optim.betas", "optim.name", "phases.1.steps",
    ]  # fmt: skip


WRONG = {
    "optim.lr": "expected key=value",
    "=3": "expected key=value",
    "optim.weight_decy=3": "optim.weight_decy: unknown key, did you mean 'weight_decay'",
    "optin.lr=3": "optin: unknown key, did you mean 'optim'",
    "optim.lr.x=3": "optim.lr.*: is a single value|optim.lr: must be a number",
    "optim.lr=fast": "optim.lr: must be a number, not 'fast'",
    "optim.lr=true": "optim.lr: must be a number, not True",
    "optim.lr=0": "optim.lr: must be above 0",
    "optim.lr=inf": "optim.lr: must be finite",
    "optim.lr=nan": "optim.lr: must be finite",
    "optim=3": "optim: must be a table",
    "optim.betas=0.9": "optim.betas: must be a list",
    "optim.betas=[0.9]": "optim.betas: must be a list of 2 values, not 1",
    "optim.betas=[0.9, 1.0]": r"optim.betas: must lie in \[0, 1\)",
    "optim.name=adamm": "optim.name: unknown value 'adamm', did you mean 'adam'",
    "schedule.shape=linar": "did you mean 'linear'",
    "schedule.warmup=16": "schedule.warmup: 16 is more than the run's 15 steps",
    "schedule.warmup=1.5": "schedule.warmup: must be a whole number, not 1.5",
    "schedule.growth=0": "schedule.growth: must be at least 1",
    "run.seed=-1": "run.seed: must not be negative",
    "run.tensorboard=1": "run.tensorboard: must be true or false, not 1",
    "data.store=7": "data.store: must be text, not 7",
    "phases=[]": "phases: there is none",
    "phases.2.steps=7": "phases.2.steps: '2' is not one of the 2 entries",
    "phases.x.steps=7": "'x' is not one of the 2 entries",
    "phases.-1.steps=7": "'-1' is not one of the 2 entries",
    "phases.0.steps=0": "phases.0.steps: must be at least 1",
    "phases.0.step=3": "phases.0.step: unknown key, did you mean 'steps'",
    "objective.mlm=0": "there is nothing to learn",
    "objective.nsp=1": r"objective.nsp: needs a format .*segment-pair\+nsp, not full-sentences",
    "objective.sop=-1": "objective.sop: must not be negative",
    "objective.mln=1": "did you mean 'mlm'",
    'model={""=1}': r'model\."": unknown key',
}


@pytest.mark.parametrize("override", WRONG)
def test_mistakes_are_named(override: str, base: str) -> None:
    with pytest.raises(UserError, match=WRONG[override]) as caught:
        recipe.load(base, [override])
    assert "\n" not in str(caught.value)


def test_a_list_in_the_place_of_a_section_is_named_with_its_file(base: str) -> None:
    Path(base).write_text(f"{BASE}\n[[data]]\nstore = 'there'\n")
    with pytest.raises(UserError, match=r"base\.toml: data: must be a table"):
        recipe.load(base, ["data.store=here"])


def test_two_questions_about_one_pair(base: str) -> None:
    with pytest.raises(UserError, match="objective: nsp and sop"):
        recipe.load(base, ["objective.nsp=1", "objective.sop=1", "data.format=segment-pair+nsp"])
    with pytest.raises(UserError, match=r"objective.sop: needs a format .*not segment-pair\+nsp"):
        recipe.load(base, ["objective.sop=1", "data.format=segment-pair+nsp"])


def test_files_that_are_not_recipes(tmp_path: Path) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text("[optim\n")
    with pytest.raises(UserError, match="is not valid TOML"):
        recipe.load(str(broken))
    with pytest.raises(UserError, match="no such recipe file"):
        recipe.load(str(tmp_path / "nowhere.toml"))
    with pytest.raises(UserError, match="did you mean 'bert-base'"):
        recipe.load("bert-bse")


def test_config_prints_what_will_be_run(tmp_path: Path, command: Command) -> None:
    shown = tmp_path / "shown.toml"
    shown.write_text(command.well("recipe", "show", "bert-base-tiny", "optim.lr=2e-4").out)
    assert recipe.load(str(shown)) == recipe.load("bert-base-tiny", ["optim.lr=2e-4"])
    listed = command.well("recipe", "list").out
    assert all(name in listed for name in recipe.bundled_recipes())
    wrong = command("recipe", "show", "bert-base", "optim.lr=x")
    assert wrong.code == 2
    assert wrong.err == "bertree: bert-base: optim.lr: must be a number, not 'x'\n"
