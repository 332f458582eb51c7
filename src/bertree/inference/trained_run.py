"""The result of a training run: its folder, and what lies in it."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json, read_json, read_json_lines
from bertree.inference.load import load
from bertree.inference.model import Model
from bertree.result_table import ResultTable, ShownAsTable, figure_rows
from bertree.run_folder import METRICS, MODEL, REPORT, SCORES


@dataclass(frozen=True, repr=False)
class Run(ShownAsTable):
    """A training run in its folder.

    `run.model` is the trained model, `run.metrics` its final scores, `run.history` the rows of the log, `run.report`
    the path of the page. After Ctrl-C `run.complete` is False; call the same function with `resume=True` to continue.
    """

    folder: Path
    signal: int | None = None  # the signal that ended it early
    learned: bool = True  # False if no seed has learned anything, or no held-out loss was lower than before adaptation

    @property
    def complete(self) -> bool:
        """Whether the run came to its end and has learned something."""
        return self.signal is None and self.learned

    @cached_property
    def model(self) -> Model:
        """The trained model: the best of a fine-tuning run, the last of a pretraining run."""
        if not (self.folder / MODEL).is_dir():
            raise UserError(f"{self.folder}: has no model yet; go on with the run (`resume=True`)")
        return load(self.folder / MODEL)

    @property
    def metrics(self) -> Json:
        """The final scores: those on the dev split, or of the last evaluation on held-out text. Of a run that was
        stopped before its first evaluation, the figures of the last logged step."""
        if (self.folder / SCORES).is_file():
            return read_json(self.folder / SCORES)
        rows = {row["kind"]: row for row in self.history if row.get("kind") in ("eval", "train")}
        return rows.get("eval") or rows.get("train") or {}

    @property
    def history(self) -> list[Json]:
        """The log of the run, a row for each line; of several seeds the best one's, before their end the latest's."""
        seed: Any = read_json(self.folder / SCORES).get("best_seed") if (self.folder / SCORES).is_file() else None
        paths = [self.folder / METRICS, *self.folder.glob(f"seed-*/{METRICS}")]
        if seed is not None:
            paths = [self.folder / f"seed-{seed}" / METRICS]
        path = max(filter(Path.is_file, paths), key=lambda path: path.stat().st_mtime_ns, default=None)
        return list(read_json_lines(path)) if path else []

    @property
    def report(self) -> Path:
        """The page with curves, scores and examples."""
        return self.folder / REPORT

    def _result_table(self) -> ResultTable:
        stopped = "stopped; go on with resume=True" if self.signal is not None else "has learned nothing"
        state = "complete" if self.complete else stopped
        return ResultTable(f"{self.folder}: {state}", figure_rows(self.metrics))
