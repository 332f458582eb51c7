"""What a reader of a study's table must know: chosen settings, probes, extrapolated times, steps side by side."""

from collections.abc import Iterator

from bertree.files.formats import Json
from bertree.study.definition import ALONE
from bertree.study.probe import PROBE
from bertree.study.results import StudyResults


def remarks(results: StudyResults) -> list[str]:
    """Return the remarks on a study's figures, each once."""
    lines = dict.fromkeys(line for row in results.rows for line in _remarks_on(row))
    if results.brief:
        lines[f"Only tried out, with {results.brief} steps of every run: the figures mean nothing."] = None
    if results.study.median:
        lines["Figures are medians; the standard error of a median is taken as 1.25 times that of the mean."] = None
    jobs = max((session["jobs"] for session in results.sessions), default=1)
    if jobs > 1:
        lines[f"Up to {jobs} steps ran at a time, so only the steps `time` compare speeds."] = None
    if measured := [session for session in results.sessions if "minutes" in session]:
        machines = ", ".join(dict.fromkeys(f"{one['machine']} (torch {one['torch']})" for one in measured))
        lines[f"Cost: {sum(one['minutes'] for one in measured):.1f} minutes of {machines}."] = None
    return list(lines)


def _remarks_on(row: Json) -> Iterator[str]:
    figures, where = row["figures"], f"{row['cell']}, {row['step']}"
    if len(row.get("trials", ())) > 1:
        tried = ", ".join(f"{choice}: {value:.4g}" for choice, value in row["trials"].items())
        yield f"{where}: {row['chosen']}, chosen by {row['by'].removeprefix('-')} with the first seed ({tried})."
    if figures.get("timed_pairs", 0) < figures.get("pairs", 0) and row.get("do") == "pairs":
        timed, pairs = figures["timed_pairs"], figures["pairs"]
        yield f"{where}: {timed:,.0f} of {pairs:,.0f} pairs were timed, and the rest is extrapolated."
    if any(name.endswith(PROBE) for name in figures):
        yield "†: accuracy of a linear probe on frozen states, because the model was not trained with this objective."
    if row.get("do") in ALONE:
        yield "Nothing else ran beside the steps that measure time."
