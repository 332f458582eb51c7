"""Teachers of small tasks, and `bertree distill --task` in this process."""

from collections.abc import Sequence
from pathlib import Path

from tests.support.command import Command, CommandResult
from tests.support.learnable import KINDS, SETTINGS, Trained

FAST = ("--seconds", "0", *SETTINGS, "batch=16")


def command_of(
    trained: Trained, name: str, out: Path, *settings: str, student: object = "half", more: Sequence[object] = ()
) -> list[object]:
    """The arguments that teach a student what the model of that kind knows."""
    trained(name)
    kind = KINDS[name]
    arguments = [*kind.options, "--data", trained.root / name / "data", "--student", student, "--out", out, *more]
    mine = [setting for setting in kind.settings if setting != "crf=true"]
    return ["distill", trained.root / name / "out" / "model", *arguments, *FAST, *mine, *settings]


def taught(
    command: Command,
    trained: Trained,
    name: str,
    out: Path,
    *settings: str,
    student: object = "half",
    more: Sequence[object] = (),
) -> CommandResult:
    """The same, done."""
    return command(*command_of(trained, name, out, *settings, student=student, more=more))
