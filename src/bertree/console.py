"""What the user sees during long work: notes, lines and progress bars.

Nothing is shown unless it is requested: the command line runs every verb inside `showing()`, and from Python
`progress=True` does the same. A note is a warning, so that a program can catch or silence it; the command line prints
it as one line on standard error. Results are not shown here: functions return them, and the command line prints them.
"""

import os
import re
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING

from bertree.errors import BertreeWarning

if TYPE_CHECKING:
    from rich.progress import Progress

_SHOWING: ContextVar[bool] = ContextVar("showing", default=False)
_OPTIONS: ContextVar[Mapping[str, str]] = ContextVar("options", default=MappingProxyType({}))
_FILES: ContextVar[Mapping[str, str]] = ContextVar("files", default=MappingProxyType({}))
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SETTING = re.compile(r"`([a-z_]+)(?:=([^`]*))?`")


@contextmanager
def spelled_as(options: Mapping[str, str]) -> Iterator[None]:
    """Spell settings in messages as options of the command line while the block runs: `min_size` as --min-size."""
    token = _OPTIONS.set(options)
    try:
        yield
    finally:
        _OPTIONS.reset(token)


def spell_settings(text: str) -> str:
    """Return a message with its settings spelled as the user wrote them.

    A message names a setting in backticks, `out` or `seeds=3`, as a keyword of Python. On the command line these become
    --out and --seeds 3, and `resume=True` becomes --resume. Words that are not options of the verb stay as they are.
    """

    def spell(match: re.Match[str]) -> str:
        option, value = _OPTIONS.get().get(match[1]), match[2]
        if option is None:
            return match[0]
        return option if value in (None, "True") else f"{option} {value}"

    return _SETTING.sub(spell, text)


@contextmanager
def rename_files(names: dict[str, str]) -> Iterator[dict[str, str]]:
    """Show these names in place of the paths of temporary files in notes and lines while the block runs."""
    token = _FILES.set(names)
    try:
        yield names
    finally:
        _FILES.reset(token)


def renamed(text: str) -> str:
    """Return a message with the names of temporary files in place of their paths."""
    for path in sorted(_FILES.get(), key=len, reverse=True):
        name = _FILES.get()[path]
        text = text.replace(f"{path}: line ", f"{name}: row ").replace(path, name)
    return text


@contextmanager
def showing(on: bool | None = True) -> Iterator[None]:
    """Show lines and progress bars while the block runs, or hide them. None leaves it as it is."""
    token = _SHOWING.set(is_showing() if on is None else on)
    try:
        yield
    finally:
        _SHOWING.reset(token)


@contextmanager
def notes_shown(on: bool) -> Iterator[None]:
    """Drop notes while the block runs, unless `on`: with several ranks, only one of them shows its notes."""
    with warnings.catch_warnings():
        if not on:
            warnings.simplefilter("ignore", BertreeWarning)
        yield


@contextmanager
def collect_notes() -> Iterator[list[str]]:
    """Collect the notes of the block, in a list that is complete after it, instead of showing them."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BertreeWarning)
        yield notes
    notes += [str(warning.message) for warning in caught if issubclass(warning.category, BertreeWarning)]


def is_showing() -> bool:
    """Whether lines and progress bars are shown."""
    return _SHOWING.get()


def has_bar() -> bool:
    """Whether a progress bar is drawn: it is requested, and standard error is a terminal."""
    return is_showing() and sys.stderr.isatty()


def note(message: str | BertreeWarning) -> None:
    """Warn the user of something that does not stop the work, at the line of their program that called bertree."""
    warning = BertreeWarning(renamed(message)) if isinstance(message, str) else message
    caller = _calling_frame()
    variables = caller.f_globals
    warnings.warn_explicit(
        message=warning,
        category=type(warning),
        filename=caller.f_code.co_filename,
        lineno=caller.f_lineno,
        module=variables.get("__name__"),
        registry=variables.setdefault("__warningregistry__", {}),
    )


def _calling_frame() -> FrameType:
    """Return the frame that called this package first; frames of other libraries may be between two of its own."""
    caller = sys._getframe()
    frame: FrameType | None = caller
    while frame is not None:
        if frame.f_code.co_filename.startswith(_PACKAGE):
            caller = frame.f_back or frame
        frame = frame.f_back
    return caller


def say(line: str) -> None:
    """Print one line on standard output, if lines are shown."""
    if is_showing():
        print(renamed(spell_settings(line)), flush=True)


class Bar:
    """A progress bar on standard error; does nothing where none is drawn."""

    def __init__(self, progress: "Progress | None", what: str, total: int | None, speed: str) -> None:
        self._progress, self._speed = progress, speed
        self._first: tuple[float, int] | None = None  # a resumed run does not start at zero
        self._done = 0
        self._task = None if progress is None else progress.add_task(what, total=total, rate="")

    def advance(self, count: int = 1) -> None:
        """Advance the bar by this many."""
        self.move_to(self._done + count)

    def move_to(self, completed: int, items: int | None = None) -> None:
        """Set how much is done. `items`: what the speed counts, if that differs from the unit of `completed`."""
        self._done = completed
        if self._progress is None or self._task is None:
            return
        items, now = completed if items is None else items, time.perf_counter()
        self._first = self._first or (now, items)
        seconds = now - self._first[0]
        rate = f"{(items - self._first[1]) / seconds:,.0f} {self._speed}/s" if self._speed and seconds > 0.5 else ""
        self._progress.update(self._task, completed=completed, rate=rate)

    def relabel(self, what: str, total: int | None = None) -> None:
        """Change the label and the total, for the next step of the work."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=what, total=total)


@contextmanager
def bar(what: str, total: int | None = None, *, speed: str = "", in_bytes: bool = False) -> Iterator[Bar]:
    """Draw a progress bar. `speed`: the unit of the items counted per second; `in_bytes`: the total is in bytes."""
    if not has_bar():
        yield Bar(None, what, total, speed)
        return
    from rich import progress as rich
    from rich.console import Console

    columns = (
        rich.SpinnerColumn(),
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn() if in_bytes else rich.MofNCompleteColumn(),
        rich.TextColumn("{task.fields[rate]}"),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield Bar(progress, what, total, speed)


@contextmanager
def status(line: str) -> Iterator[None]:
    """Show a spinner with a line of text on standard error while the block runs."""
    if not has_bar():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(line):
        yield
