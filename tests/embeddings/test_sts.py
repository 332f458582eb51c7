"""Sets of pairs in the layouts people have them."""

import gzip
import json
from pathlib import Path

import pytest

from bertree.embeddings.sts import PairColumns, find
from bertree.errors import UserError

INPUTS = "a boat is on the lake\tthe boat floats\nbread is baked\tshe sings\nhe reads\the is reading a book\n"


def parts(folder: Path, **gold: str) -> Path:
    folder.mkdir(parents=True)
    for name, scores in gold.items():
        (folder / f"STS.input.{name}.txt").write_text(INPUTS)
        (folder / f"STS.gs.{name}.txt").write_text(scores)
    return folder


def benchmark(path: Path, scores: list[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f'main-news\tfile\t2015\t{n}\t{s}\ta "half quoted one {n}\tthe other {n}' for n, s in enumerate(scores)]
    lines[0] += "\tLICENSE\tsource"  # some rows say where they come from
    path.write_text("\n".join(lines) + "\n")
    return path


def glue(path: Path, scores: list[str] | None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "index\tgenre\tsentence1\tsentence2" + ("\tscore" if scores else "")
    rows = [f'{n}\tg\tfirst "{n}\tsecond {n}' + (f"\t{s}" if scores else "") for n, s in enumerate(scores or "123")]
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def sick(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_label\tSemEval_set"
    rows = [f"{n}\tA {n}\tB {n}\t{1 + n / 2}\tNEUTRAL\t{s}" for n, s in enumerate(["TRAIN", "TRIAL", "TEST", "TEST"])]
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_parts_are_read_and_blank_scores_left_out(tmp_path: Path) -> None:
    folder = parts(tmp_path / "STS16-en-test", news="4.5\n\n1\n", forum="\n0\n3.333\n")
    (sets,) = find([folder])
    assert (sets.name, sets.pairs, sets.skipped) == ("STS16", 4, 2)
    forum, news = sets.parts
    assert (forum.name, news.name) == ("forum", "news")
    assert news.first == ("a boat is on the lake", "he reads")
    assert news.second == ("the boat floats", "he is reading a book")
    assert news.gold.tolist() == [4.5, 1.0]
    assert forum.lines == (2, 3)


def test_a_last_blank_score_may_lack_its_line(tmp_path: Path) -> None:
    folder = parts(tmp_path / "STS16", news="4\n\n")
    (sets,) = find([folder])
    assert (sets.pairs, sets.skipped) == (1, 2)


def test_scores_that_do_not_belong_to_the_texts(tmp_path: Path) -> None:
    folder = parts(tmp_path / "STS12", news="4\n2\n")
    with pytest.raises(UserError, match=r"has 2 lines, STS.input.news.txt 3"):
        find([folder])


def test_all_pairs_once_more_and_scores_without_texts(tmp_path: Path) -> None:
    folder = parts(tmp_path / "STS12-en-test", news="4\n2\n1\n", ALL="4\n2\n1\n")
    (folder / "STS.gs.SMT.txt").write_text("1\n")
    (sets,) = find([folder])
    assert [part.name for part in sets.parts] == ["news"]
    assert any("SMT" in line for line in sets.notes)


def test_the_benchmark_in_three_layouts(tmp_path: Path) -> None:
    benchmark(tmp_path / "STSBenchmark" / "sts-test.csv", ["5.000", "0.2", "3"])
    benchmark(tmp_path / "STSBenchmark" / "sts-dev.csv", ["1", "2"])
    glue(tmp_path / "STS-B" / "dev.tsv", ["5", "0", "2"])
    glue(tmp_path / "STS-B" / "test.tsv", None)
    (tmp_path / "CoLA").mkdir()
    (tmp_path / "CoLA" / "dev.tsv").write_text("gj04\t1\t\tThe cat sat.\n")
    sets = {pairs.name: pairs for pairs in find([tmp_path])}
    assert set(sets) == {"STS-B dev", "STS-B test"}
    assert sets["STS-B test"].parts[0].first[0] == 'a "half quoted one 0'
    assert sets["STS-B test"].parts[0].gold.tolist() == [5.0, 0.2, 3.0]
    assert "no gold for test, so dev" in sets["STS-B dev"].notes[0]
    assert [pairs.name for pairs in find([tmp_path / "STSBenchmark"], split="all")] == ["STS-B test", "STS-B dev"]


def test_sets_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        benchmark(tmp_path / folder / "sts-test.csv", ["5", "1"])
    assert [pairs.name for pairs in find([tmp_path])] == ["STS-B test (one)", "STS-B test (two)"]


def test_sick_in_one_file_and_in_several(tmp_path: Path) -> None:
    sick(tmp_path / "SICK" / "SICK.txt")
    (sets,) = find([tmp_path])
    assert (sets.name, sets.pairs) == ("SICK-R test", 2)
    assert sets.parts[0].gold.tolist() == [2.0, 2.5]
    assert find([tmp_path / "SICK" / "SICK.txt"], split="dev")[0].pairs == 1
    assert find([tmp_path / "SICK" / "SICK.txt"], split="all")[0].pairs == 4
    other = tmp_path / "other" / "SICK_test_annotated.txt"
    other.parent.mkdir()
    other.write_text("pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n1\ta\tb\t3.2\tNEUTRAL\n")
    (sets,) = find([other.parent])
    assert (sets.name, sets.pairs) == ("SICK-R test", 1)


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet", "csv.gz"])
def test_tables_of_ones_own(tmp_path: Path, kind: str) -> None:
    rows = [{"left": "one, two", "right": 'say "so"', "points": 3.5}, {"left": "b", "right": "c", "points": 1.0}]
    path = tmp_path / f"mine.{kind}"
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(arrow.Table.from_pylist(rows), path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        cells = [["left", "right", "points"], ["one, two", 'say "so"', "3.5"], ["b", "c", "1"]]
        if kind == "tsv":
            text = "".join("\t".join(row) + "\n" for row in cells)
        else:
            text = "".join(",".join('"' + cell.replace('"', '""') + '"' for cell in row) + "\n" for row in cells)
        path.write_bytes(gzip.compress(text.encode()) if kind.endswith("gz") else text.encode())
    (sets,) = find([path], PairColumns("left", "right", "points"))
    assert sets.name == "mine"
    assert (sets.parts[0].first, sets.parts[0].second) == (("one, two", "b"), ('say "so"', "c"))
    assert sets.parts[0].gold.tolist() == [3.5, 1.0]
    with pytest.raises(UserError, match="has no column 'center'"):
        find([path], PairColumns("center", "right", "points"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sentence1,sentence2,score\na,b,high\n", "line 2: the gold score is 'high', not a number"),
        ("sentence1,sentence2,score\na,b,nan\n", "not a finite number"),
        ("sentence1,sentence2,score\na,b,\n", "has no gold score"),
        ("sentence1,sentence2\na,b\n", "has no column 'score'"),
        ("", "is empty"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=says) as caught:
        find([path])
    assert "\n" not in str(caught.value)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        find([tmp_path / "nothing"])
    with pytest.raises(UserError, match="holds no known set of pairs"):
        find([tmp_path])
    with pytest.raises(UserError, match="did you mean 'test'"):
        find([tmp_path], split="tset")
