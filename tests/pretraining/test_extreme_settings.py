"""Settings that nobody means: one line that names the file and the key, at once, and nothing is left behind."""

import os
from pathlib import Path

import pytest

from bertree.errors import UserError
from bertree.pretraining import recipe
from tests.support import runs

DEEP, DIGITS = "[" * 50_000, "9" * 5000
OVERRIDES = {
    "phases.²=": "phases.²",
    "phases.0.batch_tokens=9223372036854775808": "phases.0.batch_tokens: must be at most",
    "phases.0.batch_tokens=9223372036854775807": "phases.0.batch_tokens: must be at most",
    "phases.0.steps=9223372036854775807": "phases",
    "phases.0.max_length=9223372036854775807": "phases.0.max_length",
    "run.seed=9223372036854775807": "run.seed: must be at most",
    f"optim.lr={DIGITS}": "optim.lr",
    f"phases={DIGITS}": "phases",
    f"note={DEEP}": "note",
    "data.store=a\udcff": "data.store: must be valid Unicode text",
    "name=\udcff": "name: must be valid Unicode text",
    "model.\udcff=3": "is not a key",
    "model.width=[[1]]": "model.width: must be a whole number",
    "model.preset=3": "model.preset: must be text",
    f"model.layers={'x' * 5000}": "model.layers: must be a whole number",
}


@pytest.mark.parametrize("override", OVERRIDES, ids=range(len(OVERRIDES)))
def test_overrides(override: str, token_store: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    arguments = ("pretrain", str(runs.recipe("bert", tmp_path)), "--store", str(token_store), "--out", str(out))
    assert runs.finish(*arguments, override, log=log) == 2, log.read_text()
    lines = log.read_text().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("bertree: ")
    assert OVERRIDES[override].replace("\udcff", "\\udcff") in lines[0]
    assert len(lines[0]) < 1000
    assert not (out / "model").exists()


FILES = {
    "deep": (f"x = {DEEP}", "mine.toml: is not valid TOML (nested too deeply)"),
    "digits": (f"name = {DIGITS}", "mine.toml: is not valid TOML (a number has too many digits)"),
    "long": ("a" * 3_000_000, "mine.toml: is not valid TOML"),
    "axis": ('name = "bert-base"\n[model]\npreset = "bert-tiny"\nwidth = "x"\n[[phases]]\nsteps = 1\n',
             "mine.toml: model.width: must be a whole number, not 'x'"),
    "unknown axis": ('name = "bert-base"\n[model]\nwidht = 3\n[[phases]]\nsteps = 1\n',
                     "mine.toml: model.widht: unknown key, did you mean 'width'?"),
    "what it extends": ('extends = "other.toml"\n', "mine.toml: extends: "),
    "a device": ('extends = "/dev/zero"\n', "mine.toml: extends: /dev/zero: no such recipe file"),
    "not TOML": ('extends = "/etc/passwd"\n', "mine.toml: extends: /etc/passwd: is not valid TOML"),
    "nothing": ('extends = ""\n', "mine.toml: extends: '': no such recipe"),
    "a zero": ('extends = "\\u0000"\n', "mine.toml: extends: "),
    "a long name": (f'extends = "{"x" * 5000}"\n', "mine.toml: extends: "),
    "a value of what it extends": ('extends = "wrong.toml"\n', "mine.toml: optim.lr: must be above 0"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_files(kind: str, tmp_path: Path) -> None:
    """A message names the user's file, not the one it extends."""
    text, message = FILES[kind]
    (tmp_path / "mine.toml").write_text(text)
    (tmp_path / "other.toml").write_text("x = [")
    (tmp_path / "wrong.toml").write_text("[optim]\nlr = 0\n[[phases]]\nsteps = 1\n")
    with pytest.raises(UserError) as caught:
        recipe.load(str(tmp_path / "mine.toml"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    with pytest.raises(UserError, match=r"pipe\.toml: no such recipe file"):
        recipe.load(str(tmp_path / "pipe.toml"))


def test_a_folder_with_a_broken_name(token_store: Path, tmp_path: Path) -> None:
    """Its name goes into the report, where the broken character is shown as such."""
    out, log = Path(str(tmp_path / "out\udcff")), tmp_path / "log"
    arguments = ("pretrain", str(runs.recipe("bert", tmp_path)), "--store", str(token_store), "--out", str(out))
    assert runs.finish(*arguments, log=log) == 0, log.read_text()
    assert (out / "model" / "model.safetensors").is_file()
    (out / "report.html").read_text(encoding="utf-8")


def test_a_run_that_diverges_ends_with_1_and_writes_no_model(token_store: Path, tmp_path: Path) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    arguments = ("pretrain", str(runs.recipe("bert", tmp_path)), "--store", str(token_store), "--out", str(out))
    assert runs.finish(*arguments, "optim.lr=1e30", "optim.clip=0", "schedule.warmup=0", log=log) == 1
    assert "not finite" in log.read_text().splitlines()[-1]
    assert not (out / "model").exists()
