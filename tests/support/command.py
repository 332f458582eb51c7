"""The command line: in this process, or in one of its own as a user runs it."""

import functools
import json
import sys
from typing import Any, NamedTuple

import pytest
import typer.main

# The tree of verbs and options takes 40 ms to make, and is the same every time.
make_tree = functools.cache(typer.main.get_command)


class CommandResult(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.err.strip().splitlines()


class Command:
    """Runs `bertree` in this process."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capture = patch, capture

    def __call__(self, *arguments: object) -> CommandResult:
        from bertree.cli.main import main

        self._patch.setattr(typer.main, "get_command", make_tree)
        self._patch.setattr(sys, "argv", ["bertree", *map(str, arguments)])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = self._capture.readouterr()
        assert "Traceback" not in captured.err
        return CommandResult(int(stopped.value.code or 0), captured.out, captured.err)

    def well(self, *arguments: object) -> CommandResult:
        """Run it; it must succeed. A run of a few steps, which learns nothing, ends with 1 and says so."""
        result = self(*arguments)
        assert result.code == 0 or (result.code == 1 and "has learned nothing" in result.err), result.err
        return result
