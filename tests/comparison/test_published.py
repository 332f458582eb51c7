"""Published scores: the file is complete and in range, and the verbs show its rows with their sources."""

import pytest

import bertree
from bertree.comparison.published import FILE, published_of_task, published_rows
from bertree.errors import UserError
from bertree.files.formats import read_toml
from tests.support.command import Command

GLUE = {"mnli", "mnli-mm", "qqp", "qnli", "sst-2", "cola", "sts-b", "mrpc", "rte", "wnli"}
OTHERS = {"squad-f1", "squad-exact", "squad2-f1", "squad2-exact", "race", "race-middle", "race-high", "swag", "ner"}
OTHERS |= {"imdb", "sts12", "sts13", "sts14", "sts15", "sts16", "sick-r", "lambada", "wikitext-103-perplexity"}


def test_every_row_has_known_scores_in_range_and_a_source() -> None:
    papers = read_toml(FILE)["papers"]
    for row in published_rows():
        assert row.scores.keys() <= GLUE | OTHERS | {"average"}, row.system
        assert row.split in ("dev", "test")
        assert row.source.startswith(tuple(papers.values()))
        for name, value in row.scores.items():
            assert 1 < value < 100, (row.system, name)
    used = {
        paper for paper, title in papers.items() if any(row.source.startswith(title + ", ") for row in published_rows())
    }
    assert used == set(papers)
    assert set().union(*(row.scores for row in published_rows())) == GLUE | OTHERS | {"average"}


def test_no_source_has_a_system_twice() -> None:
    keys = [(row.source, row.benchmark, row.split, row.system) for row in published_rows()]
    assert len(set(keys)) == len(keys)


def test_exact_match_is_below_f1_and_averages_lie_between_the_scores() -> None:
    for row in published_rows():
        for name, value in row.scores.items():
            if name.endswith("-f1"):
                assert row.scores.get(name.replace("-f1", "-exact"), 0) < value
        rest = [value for name, value in row.scores.items() if name != "average"]
        if rest and "average" in row.scores:
            assert min(rest) <= row.scores["average"] <= max(rest), row.system
        if row.benchmark == "STS":
            assert sum(rest) / 7 == pytest.approx(row.scores["average"], abs=0.04), row.system  # as printed


def test_a_task_has_its_rows_and_disagreeing_sources_both() -> None:
    rows = [row for row in published_of_task("squad2") if (row.system, row.split) == ("BERT-large", "test")]
    assert [row.scores["squad2-f1"] for row in rows] == [83.1, 89.1]
    assert {name for row in published_of_task("squad") for name in row.scores} == {"squad-f1", "squad-exact"}
    with pytest.raises(UserError, match="there are no published scores on cats"):
        published_of_task("cats")


def test_the_verb_shows_rows_and_sources(command: Command) -> None:
    output = command.well("glue", "--published").out
    assert "Devlin et al. (2019)" in output
    assert "82.1" in output
    assert {row["system"] for row in command.well("glue", "--published", "--json").json["published"]} > {"BERT-large"}
    assert bertree.glue(published=True).tasks == {}
    with pytest.raises(UserError, match="give folders that finetune or evaluate has written"):
        bertree.glue([])
