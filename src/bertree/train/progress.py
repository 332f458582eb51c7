"""The progress of a training run on the terminal: a live bar for a person, a few plain lines for a batch job's log.

The hooks of a run (hooks.py) call it; console.py has the bars of all other work. The bar is on standard error.
Evaluations and, without a bar, a training line every 30 seconds are on standard output. The remaining time is estimated
from the remaining tokens, because steps may grow.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from rich import progress as bars
from rich.console import Console
from rich.table import Column

from bertree.console import has_bar, is_showing, spell_settings
from bertree.objectives.pretraining import LABELS
from bertree.report.formats import digits, duration, format_metric, label, percent
from bertree.report.history import BOOKKEEPING, NOT_TERMS, number

REFRESH = 0.2  # seconds between two updates of the bar
LINE_EVERY = 30.0  # seconds between two training lines where there is no bar
WIDE = 130  # columns of a terminal from which on the bar shows the terms of the loss


class Progress:
    """Shows the progress of a run that starts, or is resumed, at `first_step`.

    `tokens_after` holds the tokens read after 0, 1, 2 ... steps. `quiet=True`: no bar; None: a bar if standard
    error is a terminal. `labels` are the readable names of metrics.
    """

    def __init__(
        self,
        tokens_after: Sequence[int],
        first_step: int = 0,
        quiet: bool | None = None,
        labels: Mapping[str, str] = LABELS,
    ) -> None:
        bar = (not quiet) if quiet is not None else has_bar()
        self._total, self._tokens_after = len(tokens_after) - 1, tokens_after
        self._first, self._labels = tokens_after[first_step], labels
        self._lines = Console()
        self._shows_lines = is_showing() or quiet is not None
        self._bar = _bar() if bar else None
        self._task = bars.TaskID(0)
        self._next = 0.0  # when the bar moves again
        self._next_line = 0.0  # when a training line is due
        self._held_back: dict[str, Any] | None = None  # the newest training line, if it is not printed yet
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task(
                "training", total=self._tokens_after[-1], completed=self._first, steps="", figures=""
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._flush()

    def step(self, step: int) -> None:
        """Count a step. The bar is redrawn at most five times a second."""
        if self._bar is None:
            return
        now = time.monotonic()
        if now >= self._next:
            self._next = now + REFRESH
            self._bar.update(self._task, completed=self._tokens(step), steps=f"{step:,}/{self._total:,}")

    def train(self, fields: Mapping[str, Any]) -> None:
        """Show the figures of a "train" line."""
        if self._bar is not None:
            shown = " · ".join(_training(fields, self._bar.console.width >= WIDE, self._labels))
            self._bar.update(self._task, figures=shown)
            return
        now = time.monotonic()
        self._held_back = dict(fields)
        if now >= self._next_line:
            self._next_line, self._held_back = now + LINE_EVERY, None
            self.say(self._line(fields))

    def evaluation(self, fields: Mapping[str, Any]) -> None:
        """Print the figures of an "eval" line, above the bar."""
        losses = [name for name in ("loss", "perplexity") if name in fields]
        figures = [name for name in fields if name not in {*BOOKKEEPING, *losses}]
        parts = [
            f"{label(name, self._labels)} {format_metric(name, number(fields[name]))}"
            for name in losses + figures
            if _is_number(fields[name])
        ]
        self.say(f"{self._at(fields)} · held-out: {', '.join(parts) or 'nothing measured'}")

    def _flush(self) -> None:
        """Print the training line that was held back, before anything that comes after it."""
        if self._bar is None and self._held_back is not None:
            fields, self._held_back = self._held_back, None
            self.say(self._line(fields))

    def say(self, line: str) -> None:
        """Print a line; a bar stays below it."""
        self._flush()
        if self._shows_lines:
            self._lines.print(spell_settings(line), soft_wrap=True, highlight=False, markup=False)

    def _tokens(self, step: int) -> int:
        return self._tokens_after[min(step, self._total)]

    def _at(self, fields: Mapping[str, Any]) -> str:
        return f"step {fields.get('step', 0):,}/{self._total:,}"

    def _line(self, fields: Mapping[str, Any]) -> str:
        parts = [self._at(fields), *_training(fields, True, self._labels)]
        read = self._tokens(fields.get("step", 0))
        done, left = read - self._first, self._tokens_after[-1] - read
        if done > 0 and left > 0:
            parts.append(f"{duration((time.monotonic() - self._started) / done * left)} left")
        return " · ".join(parts)


def _bar() -> bars.Progress:
    # Standard output on a terminal is redirected above the bar; in a file it is left as it is.
    console = Console(stderr=True)
    cell = Column(no_wrap=True, overflow="ellipsis", ratio=1)
    return bars.Progress(
        bars.SpinnerColumn(),
        bars.BarColumn(bar_width=20 if console.width >= WIDE else 8),
        bars.TextColumn("{task.fields[steps]}", table_column=Column(no_wrap=True)),
        bars.TextColumn("{task.fields[figures]}", markup=False, table_column=cell),
        bars.TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        bars.TextColumn("left", table_column=Column(no_wrap=True)),
        console=console,
        transient=True,
        expand=True,
        refresh_per_second=1 / REFRESH,
        speed_estimate_period=300,
        redirect_stdout=sys.stdout.isatty(),
    )


def _training(fields: Mapping[str, Any], terms: bool, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield the loss, its terms, the speed and the learning rate, as far as they are known."""
    names = [name for name, value in fields.items() if name not in NOT_TERMS and _is_number(value)]
    parts = ", ".join(
        f"{label(name, labels).removesuffix(' loss')} {format_metric('loss', number(fields[name]))}" for name in names
    )
    if "loss" in fields:
        yield f"loss {format_metric('loss', number(fields['loss']))}" + (
            f" ({parts})" if terms and len(names) > 1 else ""
        )
    if math.isfinite(speed := number(fields.get("tokens_per_s"))):
        yield f"{speed:,.0f} tokens/s"
    if math.isfinite(rate := number(fields.get("lr"))):
        yield f"lr {digits(rate)}"
    if math.isfinite(used := number(fields.get("mfu"))):
        yield f"MFU {percent(used)}"


def _is_number(value: Any) -> bool:
    """Return whether a field holds a number; null stands for one that is not finite."""
    return value is None or type(value) in (int, float)
