"""The conventions give the averages that were printed beside the rows they were made for."""

import pytest

from bertree.tasks.glue import GLUE_AVERAGES, TEXT_TASKS

# Rows as published: BERT's Table 1 (test), DistilBERT's Table 1 and the table of its first announcement (dev). Two more
# do not follow from their own figures under any convention here: BERT's BiLSTM+ELMo row (70.9, printed 71.0) and
# DistilBERT's BERT-base row (79.7, printed 79.5).
BERT_ROWS = [
    ("80.6 80.1 66.1 82.3 93.2 35.0 81.0 86.0 61.7", 74.0),
    ("82.1 81.4 70.3 87.4 91.3 45.4 80.0 82.3 56.0", 75.1),
    ("84.6 83.4 71.2 90.5 93.5 52.1 85.8 88.9 66.4", 79.6),
    ("86.7 85.9 72.1 92.7 94.9 60.5 86.5 89.3 70.1", 82.1),
]
DISTILBERT_ROWS = [
    ("44.1 68.6 76.6 71.1 86.2 53.4 91.5 70.4 56.3", 68.7),
    ("51.3 82.2 87.5 89.2 88.5 59.9 91.3 86.9 56.3", 77.0),
]
ANNOUNCED_ROWS = [
    ("55.8 83.7 84.1 86.3 90.5 91.1 90.9 87.7 68.6 92.1 89.0 88.6 43.7", 78.0),
    ("42.5 81.6 81.1 82.4 88.3 85.5 90.6 87.7 60.0 92.7 84.5 85.0 55.6", 75.2),
]


def figures(columns: str, row: str) -> dict[str, dict[str, float]]:
    scores: dict[str, dict[str, float]] = {}
    for column, value in zip(columns.split(), row.split(), strict=True):
        task, _, names = column.partition(":")
        scores.setdefault(task, {}).update({name: float(value) for name in names.split("+")})
    return scores


@pytest.mark.parametrize(("row", "printed"), BERT_ROWS)
def test_berts_average(row: str, printed: float) -> None:
    columns = "mnli:accuracy mnli-mm:accuracy qqp:f1 qnli:accuracy sst-2:accuracy cola:matthews"
    columns += " sts-b:spearman mrpc:f1 rte:accuracy"
    assert GLUE_AVERAGES["bert"](figures(columns, row)).value == pytest.approx(printed, abs=0.05)


@pytest.mark.parametrize(("row", "printed"), DISTILBERT_ROWS)
def test_distilberts_macro_score(row: str, printed: float) -> None:
    columns = "cola:matthews mnli:accuracy mrpc:accuracy+f1 qnli:accuracy qqp:accuracy+f1 rte:accuracy sst-2:accuracy"
    scores = figures(f"{columns} sts-b:pearson+spearman wnli:accuracy", row)
    assert GLUE_AVERAGES["distilbert"](scores).value == pytest.approx(printed, abs=0.05)


@pytest.mark.parametrize(("row", "printed"), ANNOUNCED_ROWS)
def test_the_leaderboards_average(row: str, printed: float) -> None:
    columns = "cola:matthews mnli:accuracy mnli-mm:accuracy mrpc:accuracy mrpc:f1 qnli:accuracy qqp:accuracy qqp:f1"
    rest = "rte:accuracy sst-2:accuracy sts-b:pearson sts-b:spearman wnli:accuracy"
    scores = figures(f"{columns} {rest}", row)
    assert GLUE_AVERAGES["leaderboard"](scores).value == pytest.approx(printed, abs=0.05)


def test_robertas_average_and_what_is_missing() -> None:
    columns = (
        "mnli:accuracy qnli:accuracy qqp:accuracy rte:accuracy sst-2:accuracy mrpc:accuracy cola:matthews sts-b:pearson"
    )
    scores = figures(columns, "90.2 94.7 92.2 86.6 96.4 90.9 68.0 92.4")
    assert GLUE_AVERAGES["roberta"](scores).value == pytest.approx(711.4 / 8)
    assert GLUE_AVERAGES["bert"](scores) == (None, ("mnli-mm accuracy", "qqp f1", "mrpc f1", "sts-b spearman"))
    assert all(convention.source for convention in GLUE_AVERAGES.values())
    figure_names = {(task.name, figure) for task in TEXT_TASKS.values() for figure in task.figures} | {
        ("mnli-mm", "accuracy")
    }
    for convention in GLUE_AVERAGES.values():
        assert {figure for term in convention.terms for figure in term} <= figure_names
