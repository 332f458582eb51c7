"""The page of a task: its numbers are those of the predictions."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bertree.errors import BertreeWarning
from bertree.files.formats import Json
from bertree.finetuning.evaluate import evaluate
from bertree.finetuning.finetune import finetune
from bertree.finetuning.page import finetuning_page, write_page
from bertree.report.tables import Piece, around, clip, start_of
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task
from tests.support.pages import Page


def rendered(task: Task[Any], lines: Sequence[Json], **figures: Any) -> Page:
    return Page(finetuning_page(Path("run"), task, figures, {"dev": lines}))


def labeled(gold: str, predicted: str, score: float | None, text: str = "a text") -> Json:
    return {"text": text, "gold": gold, "predicted": predicted, "score": score}


def classes(*labels: str) -> Task[Any]:
    return make_task("classification").with_labels(labels)


# Classification


def test_confusion_matrix_counts_and_shares() -> None:
    pairs = [("cat", "cat")] * 6 + [("cat", "dog")] * 2 + [("dog", "cat")] + [("dog", "dog")] * 3
    page = rendered(classes("dog", "cat"), [labeled(g, p, 0.9) for g, p in pairs], accuracy=0.75)
    assert page.row("gold ↓ predicted →") == ["dog", "cat", "all"]  # the labels in the task's order
    assert page.row("dog") == ["375 %", "125 %", "4"]
    assert page.row("cat") == ["225 %", "675 %", "8"]
    assert "75.00" in page.text


def test_reliability_by_hand() -> None:
    scores = [0.95, 0.95, 0.95, 0.95, 0.55, 0.55]
    right = [1, 1, 1, 0, 1, 0]
    lines = [labeled("a", "a" if hit else "b", score) for score, hit in zip(scores, right, strict=True)]
    page = rendered(classes("a", "b"), lines)
    gap = (4 * abs(0.95 - 0.75) + 2 * abs(0.55 - 0.5)) / 6
    assert f"Expected calibration error {100 * gap:.1f} %" in page.titles()[0]
    assert page.row("90 to 100 %") == ["4", "75 %"]
    assert page.row("50 to 60 %") == ["2", "50 %"]
    assert page.row("60 to 70 %") == ["0"]


def test_mistakes_come_by_confidence_and_right_ones_against_it() -> None:
    lines = [labeled("a", "b", 0.5 + number / 100, f"wrong {number}.") for number in range(30)]
    lines += [labeled("a", "a", 0.5 + number / 100, f"right {number}.") for number in range(30)]
    page = rendered(classes("a", "b"), lines)
    shown = [row[0] for row in page.rows if row and row[0].startswith(("wrong", "right"))]
    assert shown == [f"wrong {number}." for number in range(29, 9, -1)] + [f"right {number}." for number in range(5)]


def test_many_labels_give_pairs_instead_of_a_matrix() -> None:
    names = [f"label-{number:02d}" for number in range(40)]
    lines = [labeled(name, name, 0.9) for name in names] + [labeled("label-03", "label-07", 0.8)] * 5
    page = rendered(classes(*names), lines)
    assert "gold ↓" not in page.text
    assert page.row("label-03 → label-07") == ["5", "83 %"]
    assert page.row("label-03") == ["17 %", "6"]


@pytest.mark.parametrize("count", [1, 2, 30])
def test_a_matrix_of_any_size(count: int) -> None:
    names = [f"é{number}" for number in range(count)]
    page = rendered(classes(*names), [labeled(name, name, 1.0) for name in names])
    assert [row[0] for row in page.rows if row and row[0] in names] == names
    assert "mistakes" not in page.text


# The other kinds


def test_regression() -> None:
    golds, predicted = [0.0, 1.0, 2.0, 3.0], [0.5, 1.0, 1.0, 3.0]
    lines = [
        {"text": f"text {number}", "pair": "other", "gold": gold, "predicted": value, "score": value}
        for number, (gold, value) in enumerate(zip(golds, predicted, strict=True))
    ]
    page = rendered(make_task("sts-b"), lines)
    assert page.source.count("<circle") == 4
    assert f"mean error {1.5 / 4:.3g}" in page.text
    assert f"root of the mean square {math.sqrt(1.25 / 4):.3g}" in page.text
    assert "bias -0.125" in page.text
    assert page.row("text 2other") == ["2", "1", "1"]
    assert not any(row and row[0] == "text 1other" for row in page.rows)  # it is not off at all


def sentence(words: str, gold: str, predicted: str, *told: tuple[str, int, int], score: float | None = 0.9) -> Json:
    listed = words.split()
    starts = [len(" ".join(listed[:number])) + (number > 0) for number in range(len(listed))]
    entities = [
        {
            "type": kind,
            "text": " ".join(listed[first:behind]),
            "start": starts[first],
            "end": starts[behind - 1] + len(listed[behind - 1]),
            "score": score,
        }
        for kind, first, behind in told
    ]
    tags = {"gold": gold.split(), "predicted": predicted.split()}
    return {"text": words, "words": listed, **tags, "entities": entities, "score": score}


@pytest.mark.parametrize("score", [0.9, None])
def test_entities_by_type_and_by_confusion(score: float | None) -> None:
    lines = [
        sentence("Anna meets Bo Ek", "B-PER O B-PER I-PER", "B-PER O B-PER O", ("PER", 0, 1), ("PER", 2, 3)),
        sentence("Oslo wins", "B-ORG O", "B-LOC O", ("LOC", 0, 1)),
        sentence("Rome sleeps", "B-LOC O", "O O"),
        sentence("it rains", "O O", "O B-LOC", ("LOC", 1, 2)),
        sentence("Kiev and Bonn", "B-LOC O B-LOC", "B-LOC O B-LOC", ("LOC", 0, 1), ("LOC", 2, 3)),
    ]
    lines = [
        line | {"score": score, "entities": [entity | {"score": score} for entity in line["entities"]]}
        for line in lines
    ]
    task = make_task("ner").with_labels(["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC"])
    page = rendered(task, lines)
    assert page.row("PER") == ["50.0 %", "50.0 %", "50.0 %", "2"]
    assert page.row("LOC") == ["50.0 %", "66.7 %", "57.1 %", "3"]
    assert page.row("ORG") == ["0.0 %", "0.0 %", "0.0 %", "1"]
    assert page.row("PER → PER, other words") == ["1", "Bo Ek"]
    assert page.row("ORG → LOC") == ["1", "Oslo"]
    assert page.row("LOC → nothing") == ["1", "Rome"]
    assert page.row("nothing → LOC") == ["1", "rains"]
    assert page.row("it rains") == ["no entity", "LOC rains", "90.0 %" if score else "–"]
    assert ("Confidence" in page.text) == (score is not None)


def test_plain_tags() -> None:
    lines = [
        {"text": "a dog", "words": ["a", "dog"], "gold": ["D", "N"], "predicted": ["D", "V"], "score": 0.7},
        {"text": "dogs", "words": ["dogs"], "gold": ["N"], "predicted": ["N"], "score": 0.8},
        {"text": "", "words": [], "gold": [], "predicted": [], "score": None},
    ]
    page = rendered(make_task("tagging").with_labels(["D", "N", "V"]), lines)
    assert page.row("N") == ["·", "150 %", "150 %", "2"]
    assert page.row("a dog") == ["N", "V", "70.0 %"]


def asked(question: str, gold: Sequence[str], predicted: str, score: float = 0.5, **more: Any) -> Json:
    context = "It was so. " * 100 + "In 1999 Ada Byron came home."
    start = context.find(predicted) if predicted else None
    line = {"id": question, "question": question, "context": context, "gold": list(gold), "predicted": predicted}
    end = None if start is None else start + len(predicted)
    return line | {"start": start, "end": end, "score": score} | more


def test_spans_by_question_word_and_length() -> None:
    lines = [
        asked("When was it?", ["1999"], "1999"),
        asked("And when not?", ["1999"], "home", 0.9),
        asked("Who came?", ["Ada Byron"], "Byron"),
    ]
    page = rendered(make_task("squad"), lines)
    assert page.row("when") == ["50.0 %", "50.0 %", "2"]
    assert page.row("who") == ["66.7 %", "0.0 %", "1"]
    assert page.row("1 word") == ["50.0 %", "50.0 %", "2"]
    assert page.row("2 words") == ["66.7 %", "0.0 %", "1"]
    cases = [row for row in page.rows if row and "It was so" in row[0]]
    assert [row[1:] for row in cases] == [["1999", "home", "90.0 %"], ["1999", "1999", "50.0 %"]]  # Byron is near
    assert len(cases[0][0]) < 500
    assert cases[0][0].endswith("Ada Byron came home.")
    assert "…" in cases[0][0]


def test_spans_that_may_have_no_answer() -> None:
    lines = [
        asked("When?", ["1999"], "1999", null_odds=-1.0),
        asked("When then?", ["1999"], "", null_odds=1.0),
        asked("Where?", [], "", null_odds=1.0),
        asked("Why?", [], "home", null_odds=-1.0),
        asked("Who?", ["Ada Byron"], "home", null_odds=-1.0),
    ]
    page = rendered(make_task("squad2"), lines)
    assert page.row("has an answer") == ["1 · 33 %", "1 · 33 %", "1 · 33 %"]
    assert page.row("has none") == ["–", "1 · 50 %", "1 · 50 %"]
    assert page.row("no answer") == ["50.0 %", "50.0 %", "2"]


def test_choices() -> None:
    def question(gold: int, shares: Sequence[float]) -> Json:
        best = max(range(len(shares)), key=shares.__getitem__)
        options = [f"option {letter}" for letter in "ABCD"[: len(shares)]]
        prediction = {"predicted": best, "score": shares[best], "probabilities": list(shares)}
        return {"context": "c", "question": "q?", "options": options, "gold": gold} | prediction

    lines = [question(0, [0.7, 0.1, 0.1, 0.1]), question(1, [0.6, 0.4]), question(1, [0.2, 0.8])]
    page = rendered(make_task("race"), lines, accuracy=2 / 3, **{"accuracy-high": 0.5})
    assert page.row("2 options") == ["2", "50 %"]
    assert page.row("4 options") == ["1", "100 %"]
    assert page.row("high") == ["50.0 %"]
    assert page.row("option 1") == ["2", "1"]  # chosen twice, right once
    assert "mean 60.0 % where it is right, 20.0 % where it is wrong" in page.text


# Seeds


def test_seeds_are_listed_linked_and_drawn(tmp_path: Path) -> None:
    for seed in (0, 1):
        (tmp_path / f"seed-{seed}").mkdir()
        rows = [{"kind": "eval", "step": step, "accuracy": 0.5 + seed / 10} for step in (5, 10)]
        (tmp_path / f"seed-{seed}" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / f"seed-{seed}" / "report.html").write_text("")
    seeds: list[Json] = [
        {"seed": 0, "accuracy": 0.5, "best_step": 5, "diverged": False},
        {"seed": 1, "accuracy": 0.6, "best_step": 10, "diverged": False},
        {"seed": 2, "accuracy": None, "diverged": "at step 3"},
    ]
    metrics = {"accuracy": 0.6, "best_seed": 1, "mean": 0.55, "std": 0.0707, "seeds": seeds, "model": "folder"}
    metrics |= {"examples": {"train": 1234, "dev": 1}, "cut": {"train": {"examples": 17, "tokens": 2345}}}
    shown = Page(finetuning_page(tmp_path, classes("a", "b"), metrics, {"dev": [labeled("a", "a", 1.0)]}))
    assert shown.links == ["seed-0/report.html", "seed-1/report.html"]
    assert shown.row("1: training") == ["60.00", "10", "the best, kept"]
    assert shown.row("2")[:2] == ["–", "–"]
    assert "learned nothing: at step 3" in shown.row("2")[2]
    assert "55.00 ± 7.07" in shown.text
    assert "of 2 seeds, 1 left out" in shown.text
    assert "1,234" in shown.text
    assert "17 examples of train lose 2,345 tokens" in shown.text
    assert 'data-name="seed 0"' in shown.source
    assert 'data-name="seed 1"' in shown.source


# Odd inputs


@pytest.mark.parametrize("name", ["classification", "sts-b", "ner", "tagging", "squad", "squad2", "race"])
def test_no_predictions_and_no_gold(name: str) -> None:
    task = make_task(name)
    assert "There are no predictions" in rendered(task, []).text
    assert "no gold answers" in rendered(task, [{"text": "a", "predicted": "b", "score": 0.5}]).text
    assert task.name in Page(finetuning_page(Path("run"), task, {}, {})).text  # every seed diverged: no file at all


def test_long_and_odd_texts() -> None:
    long = "長い\u0301" * 1_000_000
    lines = [labeled("a", "b", 0.9, long), labeled("a", "b", math.nan, "\ud800")]
    page = rendered(classes("a", "b"), lines, model="folder-\udcff")
    assert len(page.source) < 40_000
    page.source.encode("utf-8")
    assert start_of("x" * 1000, 100) == [[Piece("x" * 100 + "…")]]
    assert around("", [(0, 5, "wrong")]) == [[Piece("")]]
    before, marked, after = around("a" * 5000 + "BINGO" + "c" * 5000, [(5000, 5005, "gold")], 100)[0][1:]
    assert marked == Piece("BINGO", "gold")
    assert (len(before.text), len(after.text)) == (47, 49)
    assert sum(len(piece.text) for piece in around("z" * 100_000, [(10, 90_000, "")], 100)[0]) < 400
    assert clip("<" * 50, 10) == Piece("<" * 9 + "…", hint="<" * 50)


def test_failing_to_write_is_only_noted(tmp_path: Path) -> None:
    (tmp_path / "predictions.jsonl").write_text("{not json\n")
    with pytest.warns(BertreeWarning, match="is not valid JSON"):
        write_page(tmp_path, classes("a"), {}, {"dev": tmp_path / "predictions.jsonl"})
    with pytest.warns(BertreeWarning, match="nowhere"):
        write_page(tmp_path / "nowhere", classes("a"), {}, {})
    assert not (tmp_path / "report.html").exists()


def test_both_verbs_write_it(tmp_path: Path, small_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{'good' if number % 2 else 'bad'} film {number},{number % 2}" for number in range(24)]
    table = tmp_path / "films.csv"
    table.write_text("text,label\n" + "\n".join(rows) + "\n")
    out = tmp_path / "out"
    settings = ["epochs=2", "batch=8", "device=cpu"]
    run = finetune(small_folder, task="classification", data=table, out=out, seeds=2, overrides=settings)
    assert run.report == out / "report.html"
    assert capsys.readouterr().out == "", "nothing is printed unless asked"
    shown = Page((out / "report.html").read_text(encoding="utf-8"))
    scores = json.loads((out / "metrics.json").read_text())
    assert f"accuracy {100 * scores['accuracy']:.2f}" in shown.text
    assert shown.links == ["seed-0/report.html", "seed-1/report.html"]
    again = tmp_path / "again"
    metrics = evaluate(out / "model", task="classification", data=table, out=again, device="cpu").metrics
    assert (metrics["model"], metrics["split"]) == (str(out / "model"), "dev")
    shown = Page((again / "report.html").read_text(encoding="utf-8"))
    assert f"accuracy {100 * json.loads((again / 'metrics.json').read_text())['accuracy']:.2f}" in shown.text
    assert "24" in shown.text
    assert not shown.links
