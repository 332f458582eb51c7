"""The tasks of GLUE with its diagnostics, and SNLI, IMDb and AG News: their file layouts, labels and metrics.

Each is one value of `TASKS`; to add such a task, add a value. Classes are in the order of the `glue` dataset, which
most published models were trained on (MNLI: entailment, neutral, contradiction); a file may number them in that order.

GLUE averages follow one of four conventions. They differ by several points on the same model, so an average is given
with the name of its convention, and only if all of its scores exist.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bertree.errors import UserError, suggest
from bertree.files.formats import Json
from bertree.tasks.columns import Columns, HeaderlessLayout, TextExample
from bertree.tasks.files import WORDS, normalize_name
from bertree.tasks.metrics import Interval
from bertree.tasks.task import INTERNAL
from bertree.tasks.text import TextTask

__all__ = ["GLUE_AVERAGES", "TEXT_TASKS", "GlueTask", "glue_task"]


@dataclass(frozen=True)
class GlueTask(TextTask):
    """A task of a known release, with known labels and, if GLUE's server evaluates it, the file name it expects."""

    numbered: bool = True
    missing: tuple[str, ...] = ("", "-1")
    server: str = field(default="", metadata=INTERNAL)  # name of the file to submit

    def submission(self, examples: Sequence[TextExample], predictions: Sequence[Json]) -> dict[str, str]:
        if not self.server:
            return super().submission(examples, predictions)
        if broken := next((example for example in examples if example.left_out), None):
            lost = f"{broken.file}: {broken.left_out} broken rows were skipped"
            raise UserError(f"{lost}, but the server needs an answer for each; repair the file")
        name = self.server
        if self.name == "mnli":
            mismatched = any("mismatched" in Path(example.file).name for example in examples)
            name = "MNLI-mm.tsv" if mismatched else "MNLI-m.tsv"
        lines = ["index\tprediction"]
        for example, line in zip(examples, predictions, strict=True):
            low, high = self.bounds
            answer = f"{min(high, max(low, line['predicted'])):.3f}" if self.regression else line["predicted"]
            lines.append(f"{example.id}\t{answer}")
        return {name: "\n".join(lines) + "\n"}


BINARY = ("0", "1")
INFERENCE = ("entailment", "neutral", "contradiction")
ENTAILMENT = ("entailment", "not_entailment")
SENTENCES = Columns(("sentence1", "premise"), ("sentence2", "hypothesis"))
# In SNLI and MultiNLI the labels of five annotators come last, and rows have as many as there were annotators.
ANNOTATED = Columns(
    SENTENCES.text,
    SENTENCES.pair,
    ("gold_label", "label"),
    headless=(HeaderlessLayout(3, 3, text=0, pair=1, label=2),),
    optional=("label1", "label2", "label3", "label4", "label5"),
)
ACCURACY = ("accuracy",)

TASKS = (
    GlueTask(
        "cola",
        BINARY,
        about="is a sentence grammatical",
        columns=Columns(("sentence",), headless=(HeaderlessLayout(4, 4, text=3, label=1),)),
        figures=("matthews", "accuracy"),
        metric="matthews",
        aliases={"unacceptable": "0", "acceptable": "1"},
        server="CoLA.tsv",
    ),
    GlueTask(
        "sst-2",
        BINARY,
        about="sentiment of a sentence",
        columns=Columns(("sentence",)),
        figures=ACCURACY,
        aliases={"negative": "0", "positive": "1"},
        server="SST-2.tsv",
    ),
    GlueTask(
        "mrpc",
        BINARY,
        about="are two sentences paraphrases",
        columns=Columns(("#1 String", "sentence1"), ("#2 String", "sentence2"), ("Quality", "label")),
        figures=("accuracy", "f1"),
        metric="f1",
        aliases={"not_equivalent": "0", "equivalent": "1"},
        symmetric=True,
        prefixes=("msr_paraphrase_",),
        server="MRPC.tsv",
    ),
    GlueTask(
        "sts-b",
        about="similarity of two sentences, 0 to 5",
        regression=True,
        bounds=(0.0, 5.0),
        columns=Columns(
            ("sentence1",),
            ("sentence2",),
            ("score", "label"),
            # genre, file, year, number, score, the sentences, and for some rows where they come from
            headless=(HeaderlessLayout(7, 9, text=5, pair=6, label=4),),
        ),
        figures=("pearson", "spearman"),
        metric="spearman",
        folders=("STSBenchmark",),
        symmetric=True,
        prefixes=("sts-",),
        server="STS-B.tsv",
    ),
    GlueTask(
        "qqp",
        BINARY,
        about="do two questions mean the same",
        # Quora's file quotes the cells that contain quotes, and a few of its rows are broken.
        columns=Columns(("question1",), ("question2",), ("is_duplicate", "label"), quoting="cell", skip=True),
        aliases={"not_duplicate": "0", "duplicate": "1"},
        figures=("accuracy", "f1"),
        metric="f1",
        symmetric=True,
        server="QQP.tsv",
    ),
    GlueTask(
        "mnli",
        INFERENCE,
        about="inference across genres",
        columns=ANNOTATED,
        figures=ACCURACY,
        missing=("", "-1", "-"),
        folders=("MultiNLI", "multinli_1.0"),
        prefixes=("multinli_1.0_",),
        server="MNLI-m.tsv",
    ),
    GlueTask(
        "qnli",
        ENTAILMENT,
        about="does a sentence answer a question",
        columns=Columns(("question",), ("sentence",)),
        figures=ACCURACY,
        server="QNLI.tsv",
    ),
    GlueTask(
        "rte",
        ENTAILMENT,
        about="does one text follow from another",
        max_length=256,
        columns=SENTENCES,
        figures=ACCURACY,
        server="RTE.tsv",
    ),
    GlueTask(
        "wnli",
        BINARY,
        about="does a pronoun mean that",
        columns=SENTENCES,
        figures=ACCURACY,
        aliases={"not_entailment": "0", "entailment": "1"},
        server="WNLI.tsv",
    ),
    GlueTask(
        "ax",
        INFERENCE,
        about="GLUE's diagnostics of inference",
        columns=SENTENCES,  # diagnostic-full.tsv, which has the answers, writes Premise, Hypothesis, Label
        figures=("matthews", "accuracy"),
        metric="matthews",
        folders=("diagnostic", "diagnostics"),
        words={"diagnostic-full": "dev", "diagnostic": "test", "test": "test"},
        server="AX.tsv",
    ),
    GlueTask(
        "snli",
        INFERENCE,
        about="inference on captions",
        columns=ANNOTATED,
        figures=ACCURACY,
        missing=("", "-1", "-"),
        folders=("snli_1.0",),
        prefixes=("snli_1.0_",),
    ),
    GlueTask(
        "imdb",
        ("neg", "pos"),
        about="sentiment of a review",
        max_length=512,
        columns=Columns(("text", "review"), label=("label", "sentiment")),
        figures=ACCURACY,
        aliases={"negative": "neg", "positive": "pos"},
        blanked=("<br />",),
        folders=("aclImdb",),
        label_folders=True,
    ),
    GlueTask(
        "ag-news",
        ("World", "Sports", "Business", "Sci/Tech"),
        about="topic of a news item",
        # The original (no header, or Kaggle's) has headline and text in two columns and numbers its classes from 1.
        columns=Columns(
            ("text", "Description"),
            label=("label", "Class Index"),
            lead=(("Description", "Title"),),
            from_one=("Class Index",),
            headless=(HeaderlessLayout(3, 3, text=2, label=0, lead=1, first=1),),
            quoting="cell",
        ),
        figures=("accuracy", "macro_f1"),
        folders=("ag_news_csv",),
    ),
)
TEXT_TASKS: dict[str, TextTask] = {task.name: task for task in TASKS}
assert all(set(task.words.values()) <= set(WORDS.values()) for task in TASKS)


def glue_task(name: str) -> TextTask:
    """Return a task by its name in any spelling: sst-2, SST2, stsb, AG_News."""
    names = {normalize_name(alias): task for task in TASKS for alias in (task.name, *task.folders)}
    if (task := names.get(normalize_name(name))) is None:
        raise UserError(f"task '{name}': unknown; {suggest(name.casefold(), TEXT_TASKS)}")
    return task


Figure = tuple[str, str]  # task, metric


class Average(NamedTuple):
    """A mean score, or None and the scores that are missing."""

    value: float | None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Convention:
    """How a paper or site averages: the mean of its terms, each the mean of one or more scores."""

    name: str
    source: str
    terms: tuple[tuple[Figure, ...], ...]

    def __call__(self, results: Mapping[str, Mapping[str, float]]) -> Average:
        """Return the average. `results` maps each task to its scores; MNLI on the mismatched split is `mnli-mm`."""
        missing = [
            f"{task} {metric}" for term in self.terms for task, metric in term if not _is_score(results, task, metric)
        ]
        if missing:
            return Average(None, tuple(missing))
        means = [sum(results[task][metric] for task, metric in term) / len(term) for term in self.terms]
        return Average(sum(means) / len(means))

    def interval(self, results: Mapping[str, Json]) -> Interval | None:
        """Return the interval of the average: those of its terms, combined as independent; None if one is missing."""
        value, squares = self(results).value, [0.0, 0.0]
        if value is None:
            return None
        for term in self.terms:
            spans: list[Any] = [(results[task].get("intervals") or {}).get(metric) for task, metric in term]
            if None in spans:
                return None
            for end in (0, 1):
                moved = [span[end] - results[task][metric] for span, (task, metric) in zip(spans, term, strict=True)]
                squares[end] += (sum(moved) / len(moved) / len(self.terms)) ** 2
        return value - math.sqrt(squares[0]), value + math.sqrt(squares[1])


def _is_score(results: Mapping[str, Mapping[str, float]], task: str, metric: str) -> bool:
    """True if there is a score; a run that has diverged writes none."""
    return isinstance(results.get(task, {}).get(metric), int | float)


def _accuracy(*tasks: str) -> tuple[tuple[Figure, ...], ...]:
    return tuple(((task, "accuracy"),) for task in tasks)


def _metrics(task: str, *names: str) -> tuple[Figure, ...]:
    return tuple((task, name) for name in names)


COLA = (("cola", "matthews"),)
TWO_EACH = (
    _metrics("mrpc", "accuracy", "f1"),
    _metrics("sts-b", "pearson", "spearman"),
    _metrics("qqp", "accuracy", "f1"),
)
GLUE_AVERAGES = {
    convention.name: convention
    for convention in (
        Convention(
            "leaderboard",
            "GLUE's site: nine tasks with WNLI; both metrics of MRPC, STS-B and QQP and both halves of MNLI averaged "
            "first; the diagnostics do not count.",
            (
                COLA,
                *TWO_EACH,
                (("mnli", "accuracy"), ("mnli-mm", "accuracy")),
                *_accuracy("sst-2", "qnli", "rte", "wnli"),
            ),
        ),
        Convention(
            "bert",
            "BERT's Table 1: no WNLI, MNLI-m and MNLI-mm as two of nine columns; F1 for QQP and MRPC, Spearman for "
            "STS-B.",
            (
                *_accuracy("mnli", "mnli-mm", "qnli", "sst-2", "rte"),
                *((("qqp", "f1"),), (("mrpc", "f1"),), (("sts-b", "spearman"),)),
                COLA,
            ),
        ),
        Convention(
            "distilbert",
            "DistilBERT's Table 1 (dev sets): nine tasks with WNLI, one MNLI figure; its ELMo row shows that MRPC and "
            "QQP are means of accuracy and F1 and STS-B of both correlations. MNLI is taken to be the matched half.",
            (COLA, *TWO_EACH, *_accuracy("mnli", "sst-2", "qnli", "rte", "wnli")),
        ),
        Convention(
            "roberta",
            "RoBERTa's and ALBERT's dev tables: eight tasks without WNLI, MNLI-m, accuracy for QQP and MRPC, Pearson "
            "for STS-B. Neither prints the mean of its row; later papers do.",
            (*_accuracy("mnli", "qnli", "qqp", "rte", "sst-2", "mrpc"), COLA, (("sts-b", "pearson"),)),
        ),
    )
}
