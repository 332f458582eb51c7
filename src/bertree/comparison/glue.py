"""The scores of several GLUE tasks together, with the averages that are called the GLUE score."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.comparison.published import published_of_benchmark
from bertree.errors import UserError
from bertree.files.formats import Json, read_json
from bertree.report.comparison import PublishedRow
from bertree.result_table import ResultTable, ShownAsTable
from bertree.run_folder import SCORES
from bertree.tasks.glue import GLUE_AVERAGES


@dataclass(frozen=True, repr=False)
class GlueSummary(ShownAsTable):
    """The scores of several GLUE tasks, and the averages that are called the GLUE score."""

    tasks: dict[str, Json]
    averages: dict[str, Json]  # name -> value or None, missing tasks, source
    published: tuple[PublishedRow, ...] = ()  # what papers report, if it was asked for

    def _result_table(self) -> ResultTable:
        rows = [
            (name, ", ".join(f"{key} {value:.4g}" for key, value in scores.items() if isinstance(value, float)))
            for name, scores in self.tasks.items()
        ]
        for name, average in self.averages.items():
            value = average["value"]
            rows.append((name, f"needs {', '.join(average['missing'])}" if value is None else f"{value:.4g}"))
        return ResultTable("GLUE", rows)


def glue(runs: Sequence[str | Path] = (), *, published: bool = False) -> GlueSummary:
    """Collect the scores of several GLUE tasks: folders that `finetune`, or `evaluate` with `out`, has written.
    `published=True` adds what papers report, dev and test, each with its source.

    >>> bertree.glue(["my-sst"]).tasks["sst-2"]["accuracy"]
    """
    if not runs and not published:
        raise UserError("glue: give folders that finetune or evaluate has written, or `published=True`")
    by_task: dict[str, Json] = {}
    for run in map(Path, runs):
        file = run / SCORES if run.is_dir() else run
        if not file.is_file():
            raise UserError(f"{file}: no such file; give folders that finetune or evaluate has written")
        scores = read_json(file)
        if not isinstance(name := scores.get("task"), str):
            raise UserError(f"{run}: does not name the task of its scores; give a folder of finetune or evaluate")
        if name in by_task:
            raise UserError(f"{run}: is a second run of {name}; name one of each task")
        by_task[name] = scores
    scored = dict(by_task)
    if mnli := by_task.get("mnli"):
        mismatched = mnli.get("mismatched_accuracy")
        interval = mnli.get("intervals", {}).get("mismatched_accuracy")
        of_second = {"accuracy": mismatched, "intervals": {"accuracy": interval} if interval else {}}
        scored |= {"mnli-mm": of_second} if isinstance(mismatched, float) else {}
    averages: dict[str, Json] = {}
    for average in GLUE_AVERAGES.values():
        value, missing = average(scored)
        averages[average.name] = {"value": value, "missing": list(missing), "source": average.source}
        if interval := average.interval(scored):
            averages[average.name]["interval"] = interval
    return GlueSummary(by_task, averages, published_of_benchmark("GLUE") if published else ())
