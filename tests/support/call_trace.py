"""The walk from `bertree distill --task` to the loss and to the student, traced from real calls.

    python -m tests.support.call_trace            print the walk
    python -m tests.support.call_trace --write    write it into docs/architecture.md, between its markers

A tiny `distill --task` runs under `sys.setprofile` until its first loss on the teacher's scores is computed. A call is
on the walk if the task, the objective or the student (a model or a network) is among its arguments or is what it
returns, or if it is on the call stack of such a call. `LIBRARIES` are left out: packages that are called with a value,
return one and never call back, so that a reader may take their functions by name. How many files they would add is
written next to the count. Methods of the task, the model and the network themselves are in those packages.
"""

import csv
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[2] / "src" / "bertree"
PAGE = SOURCE.parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- the walk: python -m tests.support.call_trace --write -->\n", "<!-- end of the walk -->\n"
LIBRARIES = ("tasks", "inference", "interop", "model", "report", "text", "files", "config", "console.py", "errors")
FIRST = "cli/command.py", "python_verb.register.run"  # the function behind every verb
LAST = ("objectives/distill_task.py", "RowDistillation.loss")


class Call(NamedTuple):
    """A function of the package, by its file."""

    file: str
    function: str

    @property
    def is_library(self) -> bool:
        return self.file.partition("/")[0] in LIBRARIES


class Walk:
    """Records the calls on the walk, in the order in which they are made."""

    def __init__(self, carried: tuple[type, ...]) -> None:
        self.calls: dict[Call, None] = {}
        self._carried, self._stack, self._done = carried, list[tuple[FrameType, Call | None]](), False
        self._names: dict[CodeType, Call | None] = {}

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        """Follow calls and returns of Python functions."""
        if self._done or event not in ("call", "return"):
            return
        call = self._call(frame.f_code)
        if event == "call":
            if not self._stack and call != FIRST:
                return
            self._stack.append((frame, call))
            if call is not None and self._receives(frame):
                self._record()
            return
        if self._stack and self._stack[-1][0] is frame:
            if call is not None and isinstance(value, self._carried):
                self._record()
            self._stack.pop()
            self._done = call == LAST

    def _call(self, code: CodeType) -> Call | None:
        """Return the function of a code object; None if it is not one of the package, or has no name."""
        if code not in self._names:
            path = Path(code.co_filename)
            own = path.is_relative_to(SOURCE) and not code.co_name.startswith("<")
            name = code.co_qualname.replace(".<locals>", "")
            self._names[code] = Call(str(path.relative_to(SOURCE)), name) if own else None
        return self._names[code]

    def _receives(self, frame: FrameType) -> bool:
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        values = [frame.f_locals.get(name) for name in names if name not in ("self", "cls")]
        return any(isinstance(value, self._carried) for value in values)

    def _record(self) -> None:
        self.calls |= {call: None for _, call in self._stack if call is not None}


def trace() -> list[Call]:
    """Run a tiny `distill --task` and return the calls on the walk, in order."""
    from bertree.cli.main import main
    from bertree.inference.model import Model
    from bertree.model.network import Network
    from bertree.objectives.objective import WeightedTerms
    from bertree.tasks.task import Task

    walk = Walk((Task, WeightedTerms, Model, Network))
    with tempfile.TemporaryDirectory() as folder, _arguments(Path(folder)), redirect_stdout(None):
        sys.setprofile(walk)
        try:
            main()
        except SystemExit as end:
            code = end.code
        finally:
            complete = sys.getprofile() is walk  # an error in it, for example while garbage is collected, ends it
            sys.setprofile(None)
    assert not code, "the command failed"
    assert complete, "the trace ended before the command"
    return list(walk.calls)


@contextmanager
def _arguments(folder: Path) -> Iterator[None]:
    """Write a teacher and the files of a task, and set the arguments of the command."""
    import torch

    from bertree.interop import folder as model_folder
    from bertree.interop.contents import Contents
    from bertree.model.architecture import Transformer
    from bertree.model.network import build
    from tests.support import learnable

    words = learnable.tokenizer()
    sizes = {"vocab_size": words.size, "layers": 2, "width": 32, "heads": 2, "max_positions": 64}
    a = Transformer().with_values(sizes)
    torch.manual_seed(0)
    teacher = Contents(a, build(a, {"sequence": 2}), words, ["bad", "good"], task={"name": "classification"})
    model_folder.write(teacher, folder / "teacher")
    with (folder / "data.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label"])
        writer.writeheader()
        writer.writerows(learnable.feelings(40))
    columns = ("--data", folder / "data.csv", "--text", "text", "--label", "label")
    settings = ("--seconds", "0", "device=cpu", "epochs=1", "batch=16")
    words_of_command = ["bertree", "distill", folder / "teacher", "--task", "classification", *columns]
    before, sys.argv = sys.argv, [*map(str, words_of_command), "--out", str(folder / "out"), *settings]
    try:
        yield
    finally:
        sys.argv = before


def walk_table(calls: list[Call]) -> str:
    """Return the walk as text for the documentation: a row for each file, in the order of the first calls."""
    functions: dict[str, dict[str, None]] = {}
    for call in calls:
        if not call.is_library:
            functions.setdefault(call.file, {})[call.function] = None
    libraries = len({call.file for call in calls if call.is_library})
    rows = [
        f"| {number} | `{file}` | {', '.join(f'`{name}`' for name in names)} |"
        for number, (file, names) in enumerate(functions.items(), 1)
    ]
    count = f"{len(functions)} files, and {libraries} of the packages that are called as libraries."
    return "\n".join([count, "", "| | file | functions |", "|---|---|---|", *rows, ""])


def written_walk() -> str:
    """Return the walk that the documentation holds."""
    return PAGE.read_text().partition(BEGIN)[2].partition(END)[0]


def main() -> None:
    """Print the walk, or write it."""
    table = walk_table(trace())
    if "--write" in sys.argv[1:]:
        PAGE.write_text(PAGE.read_text().replace(written_walk(), table))
    else:
        print(table)


if __name__ == "__main__":
    main()
