"""Advice: limits are read with care, the knowledge is data with sources, choices meet the limits, commands parse."""

import csv
import json
import math
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import bertree
from benchmarks.advice import CHECKED, with_rules
from bertree.advice import advise, candidates
from bertree.advice.advise import _rank
from bertree.advice.candidates import CandidateModel, TrialRow, expected, make_candidates, rule_applies
from bertree.advice.knowledge import BYTES, FILE, MILLISECONDS, Request, knowledge, parse_count, parse_measure
from bertree.advice.result import Advice
from bertree.cli.main import app
from bertree.errors import UserError
from bertree.model.presets import PRESETS
from tests.support.command import Command, make_tree

ROOT = Path(__file__).parents[2]
PACKAGE = FILE.parent
KNOWN = knowledge()


class GivenSpeeds:
    """Latencies by the number of layers, without a network."""

    def measured(self, a: Any) -> bool:
        return a.layers < 12

    def of(self, a: Any, model: object = None) -> float:
        return float(a.layers)

    guess = of


def ask(task: str = "classification", **limits: Any) -> Request:
    kind = KNOWN.kind(task)
    return replace(Request(task=task, kind=kind, examples=1000, length=64), **limits)


def encoders() -> list[CandidateModel]:
    small = PRESETS["bert-mini"].architecture
    folder = CandidateModel(KNOWN.base, "default", small, 512)
    return [folder, *(CandidateModel(name, "", PRESETS[name].architecture, 512) for name in KNOWN.members)]


def ranked(request: Request, tried: Any = None) -> list[candidates.AdviceCandidate]:
    return _rank(KNOWN, request, encoders(), GivenSpeeds(), tried or {})


@pytest.fixture(autouse=True)
def short_timing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECONDS", "WARM_UP"):
        monkeypatch.setattr(candidates, name, 0)


def test_sizes_and_times_are_read_and_what_could_mean_anything_is_refused() -> None:
    sizes = {"500MB": 5e8, "0.5 gb": 5e8, "2GiB": 2**31, ".5kB": 500, "1024 KiB": 2**20}
    assert {text: parse_measure("memory", text, BYTES, "500MB") for text in sizes} == sizes
    times = {"20ms": 20, "1.5 s": 1500, "250us": 0.25, "250µs": 0.25}
    assert {text: parse_measure("latency", text, MILLISECONDS, "20ms") for text in times} == times
    for text in ("20", "ms", "", "-5ms", "0ms", "nanms", "1e3ms", "20 parsecs", "1,5ms", "20ms 5ms", "9" * 30 + "s"):
        with pytest.raises(UserError, match=re.escape(f"`latency={text}`")):
            parse_measure("latency", text, MILLISECONDS, "20ms")


def test_counts_are_read_as_people_write_them() -> None:
    assert [parse_count("examples", text) for text in (5000, "5,000", "5k", "1.5m", "0")] == [
        5000,
        5000,
        5000,
        1_500_000,
        0,
    ]
    for text in ("5.5", "-1", "many", "5,00", "1.0005k", ""):
        with pytest.raises(UserError, match="whole number"):
            parse_count("examples", text)


def test_the_knowledge_fits_together() -> None:
    ways = {way.name for way in KNOWN.ways}
    models = {*KNOWN.members, *KNOWN.sizes}
    assert set(KNOWN.members) <= set(PRESETS)
    for rows in KNOWN.rows:
        assert rows.task in KNOWN.tasks
        assert rows.way in ways
        assert rows.source
        assert {row.model for row in rows.scores} <= models, rows
        assert all(0 < row.score <= 100 for row in rows.scores)
    for rule in KNOWN.rules:
        assert rule.text and rule.source  # noqa: PT018
        assert set(rule.when.tasks) <= set(KNOWN.tasks)
        assert set(rule.when.ways) <= ways
        assert set(rule.when.members) <= models
        assert bool(rule.figures) == (rule.ours != "untested"), f"{rule.name}: what do our studies say?"
    assert any(rule.ours == "contradicted" for rule in KNOWN.rules)
    for kind in KNOWN.tasks:
        assert any(kind in way.tasks for way in KNOWN.ways)


def test_the_page_shows_the_rules() -> None:
    page = (ROOT / "docs/advice.md").read_text()
    assert with_rules(page) == page, "run python -m benchmarks.advice rules"


def test_our_rows_are_those_that_were_measured() -> None:
    lines = (ROOT / "benchmarks/results/advice.jsonl").read_text().splitlines()
    rows = [row["figures"] for row in map(json.loads, lines) if row["name"].startswith("advice/curves/")]
    measured = {(row["model"], row["examples"], row["score_percent"]) for row in rows}
    ours = [row for rows in KNOWN.rows if "learning curves" in rows.source for row in rows.scores]
    assert {(row.model, row.examples, row.score) for row in ours} <= measured
    assert len(ours) >= 8


def test_what_the_advice_is_checked_on_is_not_part_of_the_knowledge() -> None:
    text = re.sub(r"(?m)^(#.*|names = .*)$", "", FILE.read_text())
    for name in ("ag.?news", "cola\\b", "sts.?b\\b"):
        assert not re.search(name, text, re.IGNORECASE), name
    assert set(CHECKED) == {"ag-news", "cola", "sts-b"}


def test_no_model_and_no_rule_is_named_in_the_code() -> None:
    named = [*KNOWN.members, *(rule.name for rule in KNOWN.rules), "bilstm", "albert"]
    for path in PACKAGE.glob("*.py"):
        assert not [name for name in named if f'"{name}"' in path.read_text()], path.name


def parse(words: list[str]) -> None:
    """Let the command line parse a command without running it; a verb, option or value that it does not know fails."""
    command: Any = make_tree(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("bertree", words)


@pytest.mark.parametrize("task", [*KNOWN.tasks, "sst-2", "sts-b"])
def test_commands_parse_as_they_are_printed(task: str) -> None:
    request = ask(task)
    nothing: Any = dict.fromkeys(("choices", "to_fetch", "others", "rules", "trial"), ())
    blank = Advice(
        request=request, nearest=None, metric="", device="", columns=" --text body", data="a b.csv", **nothing
    )
    options = list(make_candidates(KNOWN, request, encoders(), GivenSpeeds(), {}))
    names = {way.name for way in KNOWN.ways if request.kind in way.tasks}
    assert {candidate.way.name for candidate in options} == names
    for candidate in options:
        for command in blank.commands(candidate):
            program, *words = shlex.split(command)
            assert program == "bertree"
            parse(words)
    with pytest.raises(Exception, match="No such option"):
        parse(["finetune", "default", "--no-such-option"])


def test_choices_meet_the_limits_and_the_best_comes_first() -> None:
    order = ranked(ask(latency_ms=6, memory=3e8))
    taken = [candidate for candidate in order if candidate.meets]
    assert taken
    assert all(candidate.latency_ms <= 6 and candidate.memory <= 3e8 for candidate in taken)
    assert {name for candidate in order for name in candidate.misses} == {"latency", "memory"}
    for better, worse in pairwise(order):
        near = better.worth >= worse.worth - KNOWN.tie_points
        assert near or worse.worth == -math.inf
    assert all(candidate.misses == {} for candidate in ranked(ask()) if candidate.encoder.name == KNOWN.base)


def test_a_score_follows_the_base_model_from_the_nearest_row_to_the_number_of_examples() -> None:
    by_name = {(candidate.encoder.name, candidate.way.name): candidate for candidate in ranked(ask(examples=500))}
    member = by_name["bert-base", "finetune"]
    at_500, full = (KNOWN.curve("classification", "finetune", examples) for examples in (500, 67349))
    assert at_500 is not None
    assert full is not None
    assert member.expected is not None
    assert member.expected.inferred
    assert member.expected.score == pytest.approx(92.7 + at_500 - full)
    taught = [by_name[KNOWN.base, "distill-bilstm"].expected, KNOWN.curve("classification", "distill-bilstm", 500)]
    assert taught == [None, None], "rows of 8,000 examples and more say nothing about 500"
    tried = TrialRow(KNOWN.base, "frozen", 500, 60.0, None)
    moved = expected(KNOWN, ask(examples=500), by_name[KNOWN.base, "frozen"], {KNOWN.base: tried})
    assert moved is not None
    assert (moved.score, moved.inferred) == (60.0, False)


def test_a_rule_refuses_what_it_names_and_only_under_its_conditions() -> None:
    ranks = [ranked(ask("similarity", pairs=pairs)) for pairs in (10, 10**6)]
    ways = [{candidate.way.name for candidate in candidates if candidate.meets} for candidates in ranks]
    assert ways[0] - ways[1] == {"cross-encoder"}
    rule = next(rule for rule in KNOWN.rules if rule.when.length_above)
    assert [rule_applies(rule.when, ask(length=length)) for length in (512, 513)] == [False, True]


def test_a_card_that_is_too_small_and_a_text_that_is_too_long_are_misses() -> None:
    assert {"card"} <= set(next(candidate for candidate in ranked(ask(card=0.1)) if candidate.way.least).misses)
    assert all("length" in candidate.misses for candidate in ranked(ask(length=513)))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--task", "clasification", "--examples", "9"], "did you mean 'classification'?"),
        (["--task", "classification"], "say how many labeled examples"),
        (["--task", "classification", "--examples", "0"], "label some first"),
        (["--task", "tagging", "--examples", "9", "--pairs", "1m"], "tagging compares no texts"),
        (["--task", "search", "--latency", "20"], "must be a number with a unit"),
        (["--task", "search", "--text", "body"], "name columns of --data"),
        (["--task", "search", "--out", "page.pdf"], "must end in .html"),
        (["--task", "search", "--models", "bert-base"], "folders with weights"),
        (["--task", "search", "--models", "empty"], "empty"),
        (["--task", "classification", "--data", "few.csv", "--examples", "5k"], "few.csv has 3; leave it out"),
    ],
)
def test_a_mistake_is_one_line(
    words: list[str], line: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "few.csv").write_text("text,label\na,x\nb,y\nc,x\n")
    result = command("advise", *words)
    assert result.code == 2
    assert len([line for line in result.lines if "note:" not in line]) == 1
    assert line in result.err


@pytest.mark.slow
@pytest.mark.slow
def test_data_is_tried_out_and_everything_is_on_the_page(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advise, "SHARES", (0.5, 1.0))
    with (tmp_path / "mail.csv").open("w", newline="") as file:
        rows = [
            (f"The {'ship sank' if n % 2 else 'bread was good'} on day {n}.", "sea" if n % 2 else "food")
            for n in range(120)
        ]
        csv.writer(file).writerows([("body", "folder"), *rows])
    page = tmp_path / "advice.html"
    options = ("--data", tmp_path / "mail.csv", "--text", "body", "--label", "folder", "--length", 16, "--out", page)
    answer = command.well("advise", "--task", "classification", *options, "--memory", "70MB", "--json").json
    assert answer["request"]["examples"] == 120
    assert [row["examples"] for row in answer["trial"]] == sorted(row["examples"] for row in answer["trial"])
    assert "measured on your data" in answer["choices"][0]["expected"]["source"]
    assert "--text body --label folder" in answer["choices"][0]["commands"][0]
    assert 1 <= len(answer["choices"]) <= 3
    text = page.read_text()
    for part in ("Choices", "Tried out", "Rules that apply", "Why not the others", "<svg"):
        assert part in text


def test_limits_that_nothing_meets_are_answered_with_the_nearest(command: Command) -> None:
    advice = bertree.advise(task="search", latency="1us", memory="1MB", length=8)
    assert advice.choices == ()
    assert advice.nearest is not None
    assert set(advice.nearest.misses) == {"latency", "memory"}
    assert all(times > 1 for times in advice.nearest.misses.values())
    result = command.well("advise", "--task", "search", "--latency", "1us", "--memory", "1MB", "--length", "8")
    assert "Nothing here meets the limits" in result.out
    assert re.search(r"misses: latency [\d.e+]+ times the limit, memory [\d.]+ times", result.out)
