"""The scores of several GLUE tasks together, with the averages that are called the GLUE score."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.comparison.glue_protocol import run_protocol
from bertree.comparison.glue_scores import GlueProtocol
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
    protocol: GlueProtocol | None = None  # the scores of a model by the protocol, if it was asked for

    def _result_table(self) -> ResultTable:
        if self.protocol is not None:
            return self.protocol.table
        rows = [
            (name, ", ".join(f"{key} {value:.4g}" for key, value in scores.items() if isinstance(value, float)))
            for name, scores in self.tasks.items()
        ]
        for name, average in self.averages.items():
            value = average["value"]
            rows.append((name, f"needs {', '.join(average['missing'])}" if value is None else f"{value:.4g}"))
        return ResultTable("GLUE", rows)


def glue(
    runs: Sequence[str | Path] = (),
    *,
    published: bool = False,
    protocol: str | Path | None = None,
    data: str | Path | None = None,
    out: str | Path = "glue-scores",
    examples: int | None = None,
    from_mnli: bool = False,
    device: str = "auto",
    progress: bool | None = None,
) -> GlueSummary:
    """Collect the scores of several GLUE tasks: folders that `finetune`, or `evaluate` with `out`, has written.
    `published=True` adds what papers report, dev and test, each with its source.

    `protocol` is a model that is fine-tuned on MNLI, QQP, SST-2, CoLA, STS-B, MRPC and RTE instead, those whose folders
    are in `data`, and scored in a way that is the same for every model and version: the learning rate of each task is
    chosen on training rows that are held out, never on the dev split. `out` receives the report and the runs; called
    again, it continues. `examples` is the largest number of training rows of a task, for a trial. `from_mnli=True` adds
    rows for STS-B, MRPC and RTE that start from the MNLI model.

    >>> bertree.glue(["my-sst"]).tasks["sst-2"]["accuracy"]
    """
    if protocol is not None:
        if runs or published:
            raise UserError("`protocol`: fine-tunes a model, so it goes neither with runs nor with `published`")
        if data is None:
            raise UserError("`protocol`: reads the folders of the tasks; give the folder that holds them with `data`")
        computed = run_protocol(
            protocol, data, out, examples=examples, from_mnli=from_mnli, device=device, progress=progress
        )
        return GlueSummary({}, {}, protocol=computed)
    if data is not None or examples is not None or from_mnli:
        raise UserError("`data`, `examples`, `from_mnli`: are for `protocol`; name the model with it")
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
