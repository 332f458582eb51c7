"""Ctrl-C and SIGTERM while the program is still being imported: the process ends at once and without a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Command

# Sends itself the signal when a module is looked for, where a foreign module would lose the exception.
CODE = """
import os, sys

class Interrupter:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("MODULE"):
            del os.environ["MODULE"]
            try:
                os.kill(os.getpid(), int(os.environ["SIGNAL"]))
                sum(range(100_000))
            except BaseException:
                pass

sys.meta_path.insert(0, Interrupter())
from bertree.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["bertree.cli.main", "typer", "torch"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_a_signal_during_an_import_is_quiet(module: str, number: int, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, "fill", "default", "He opened the [MASK]."],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MODULE": module, "SIGNAL": str(int(number))},
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them_while_it_is_imported() -> None:
    ignoring = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + CODE
    done = subprocess.run(
        [sys.executable, "-c", ignoring, "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "MODULE": "typer", "SIGNAL": str(int(signal.SIGINT))},
    )
    assert (done.returncode, done.stdout.split()[0]) == (0, "bertree")


# Its parser loses the exception, as that of pydantic does, which Typer reads paths with.
PARSING = """
import os, signal
from typing import Annotated
import typer
from bertree.train.signals import interrupt_once

def parse(value):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(100_000))
    except BaseException:
        pass
    return value

app = typer.Typer()

@app.command()
def verb(value: Annotated[str, typer.Argument(parser=parse)]):
    print("went on")

with interrupt_once():
    app(["a"])
"""


def test_an_interrupt_while_the_command_line_is_parsed_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PARSING], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


# What is interrupted, and the command that calls it.
WRITING = {
    "prepare": ("bertree.data.prepare.build_store", "prepare TEXT --tokenizer MODEL --out OUT --workers 1"),
    "adapt": ("bertree.data.prepare.build_store", "adapt MODEL TEXT --out OUT device=cpu"),
    "embed": ("bertree.embeddings.embed._write", "embed MODEL TEXT --out OUT.npy --device cpu"),
    "index build": ("bertree.search.index.Index.build", "index build MODEL TEXT --out OUT --device cpu"),
}


@pytest.mark.parametrize("verb", WRITING)
def test_an_interrupted_verb_says_how_to_go_on_and_exits_with_130(
    verb: str, small_folder: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("A boat. A lamp.\n")
    function, line = WRITING[verb]
    paths = {"MODEL": small_folder, "TEXT": tmp_path / "text.txt", "OUT": tmp_path / "out"}
    for word, path in paths.items():
        line = line.replace(word, str(path))

    def interrupt(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(function, interrupt)
    result = command(*line.split())
    assert result.code == 130
    assert len(result.lines) == 1
    assert "run the same command again" in result.err
