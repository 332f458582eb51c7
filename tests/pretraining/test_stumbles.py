"""What people run into: data that changed under a run, two runs in one folder, commands that stand in the docs."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock
from bertree.interop import folder
from bertree.pretraining import build, recipe
from tests.support import runs
from tests.support.command import Command

ROOT = Path(__file__).parent.parent.parent


def test_text_that_was_replaced_is_noticed(token_store: Path, tmp_path: Path, command: Command) -> None:
    store, out, log = tmp_path / "store", tmp_path / "out", tmp_path / "log"
    shutil.copytree(token_store, store)
    arguments = ("pretrain", str(runs.recipe("bert", tmp_path)), "--store", str(store), "--out", str(out))
    assert runs.finish(*arguments, fault="tidy:3") == 9
    words = [f"word{number}" for number in range(60)]
    (tmp_path / "other.txt").write_text("\n\n".join(" ".join(words[i:] + words[:i]) + "." for i in range(60)))
    shutil.rmtree(store)
    command.well(
        "prepare", tmp_path / "other.txt", "--out", store, "--tokenizer", token_store / "tokenizer", "--workers", 1
    )
    assert runs.finish(*arguments, "--resume", log=log) == 2
    assert "was started with another text in data.store" in log.read_text()


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        exclusive_lock(tmp_path),
        pytest.raises(UserError, match="another run is writing here"),
        exclusive_lock(tmp_path),
    ):
        pass
    with exclusive_lock(tmp_path):
        assert not list(tmp_path.iterdir())


def test_pairs_alone_and_the_last_step_told(token_store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("pretrain", str(runs.recipe("albert", tmp_path)), "--store", str(token_store), "--out", str(out))
    assert runs.finish(*arguments, "objective.mlm=0", "run.log_every=5") == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == [1, 5, 10]
    assert not [line for line in lines if line["kind"] == "sample"]
    assert folder.read(out / "model").max_length is None
    before = (out / "metrics.jsonl").read_bytes()
    log = tmp_path / "log"
    assert runs.finish(*arguments, "objective.mlm=0", "run.log_every=5", "--resume", log=log) == 0
    assert "the run is complete" in log.read_text()
    assert (out / "metrics.jsonl").read_bytes() == before


def test_texts_are_cut_where_learning_ended(token_store: Path, tmp_path: Path) -> None:
    path = runs.recipe("bert", tmp_path)
    short = [f"data.store={token_store}", "phases=[{steps=5, max_length=32, batch_tokens=512}]"]
    first = build.build_model(recipe.load(str(path), short), Store.open(token_store))
    assert first.max_length == 32
    folder.write(first, tmp_path / "model")
    longer = [*short, f"model.start={tmp_path / 'model'}", "phases.0.max_length=48"]
    assert build.build_model(recipe.load(str(path), longer), Store.open(token_store)).max_length == 48


def documented() -> list[str]:
    """Every `bertree pretrain` and `bertree recipe show` line of README, docs and --help, apart from mistakes."""
    pages = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    texts = [path.read_text() for path in pages if path.name != "messages.md"]
    texts.append((ROOT / "src" / "bertree" / "cli" / "pretrain.py").read_text())
    commands = []
    for text in texts:
        joined = re.sub(r"(`bertree [^`]*`)", lambda match: " ".join(match[0].split()), text)
        commands += re.findall(r"bertree (?:pretrain|recipe show) (?:'[^'\n]*'|[^`\n#\[])*(?:\[\{[^`\n#]*)?", joined)
    return sorted({line.strip() for line in commands if len(line.split()) > 2})


@pytest.mark.parametrize("line", documented())
def test_documented_commands_name_recipes_that_load(line: str) -> None:
    words = shlex.split(line.replace("recipe show", "pretrain"))[2:]
    name, changes = words[0], [word for word in words[1:] if "=" in word and not word.startswith("-")]
    if name in recipe.bundled_recipes():
        recipe.load(name, changes)
    else:
        assert name.endswith(".toml") or name in ("NAME", "RECIPE"), line
