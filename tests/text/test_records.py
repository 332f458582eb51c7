"""Records of every kind of file, under every packing."""

import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from bertree.errors import UserError
from bertree.text.records import location, read_content, read_lines, read_records

PACK = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}
ROWS = [{"text": 'she said "no"', "label": "1"}, {"text": "Grüße, 東京", "label": "0"}]


def written(kind: str) -> bytes:
    if kind == ".parquet":
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), sink)
        return bytes(sink.getvalue().to_pybytes())
    if kind == ".csv":
        return '\ufefftext,label\r\n"she said ""no""",1\r\n\r\n"Grüße, 東京",0\r\n'.encode()
    if kind == ".tsv":
        return 'text\tlabel\nshe said "no"\t1\n\nGrüße, 東京\t0\n'.encode()
    if kind == ".json":
        return ("\ufeff \n" + json.dumps(ROWS, indent=1)).encode()
    return "\n\n".join(map(json.dumps, ROWS)).encode()


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_every_kind_gives_the_same_records(tmp_path: Path, kind: str, packed: str) -> None:
    path = tmp_path / f"a{kind}{packed}"
    path.write_bytes(PACK[packed](written(kind)))
    numbers = {".jsonl": (1, 3), ".json": (1, 2), ".parquet": (1, 2)}.get(kind, (2, 4))
    assert list(read_records(path)) == list(zip(numbers, ROWS, strict=True))
    assert location(path, 7) == f"{path}: {'row' if kind in ('.parquet', '.json') else 'line'} 7"


def test_lines_that_are_called_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    assert [record for _, record in read_records(path)] == ROWS
    path.write_text(json.dumps(ROWS[0], indent=1))
    assert [record for _, record in read_records(path)] == ROWS[:1]


@pytest.mark.parametrize("packed", PACK)
def test_text_packed_or_not(tmp_path: Path, packed: str) -> None:
    path = tmp_path / f"a.txt{packed}"
    path.write_bytes(PACK[packed]("\ufeffone \x85\r\n\ntwo".encode()))
    assert list(read_lines(path)) == [(1, "one \x85"), (2, ""), (3, "two")]
    assert read_content(path) == "one \x85\r\n\ntwo"
    if packed:
        path.write_bytes(path.read_bytes()[:-4])
        for read in (read_content, lambda path: list(read_lines(path))):
            with pytest.raises(UserError, match="is damaged or cut off"):
                read(path)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.csv", b'a,b\n"x\ny",1\nz\n', "line 4: has 1 columns, the header 2"),
        ("a.csv", b'a,b\n"x,1\n', "line 2: is not valid CSV"),
        ("a.tsv", b"a\tb\n\xff\t1\n", "line 2: is not UTF-8 text"),
        ("a.jsonl", b'{"a": 1}\n3\n', "line 2: must hold a JSON object"),
        ("a.json", b'[{"a": 1}, 3]', "row 2: must hold a JSON object"),
        ("a.json", b'[{"a": 1}, ', "is not valid JSON"),
        ("a.parquet", b"PAR1", "is not a readable parquet file"),
    ],
)
def test_a_broken_file_is_reported_with_its_line(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError) as caught:
        list(read_records(tmp_path / name))
    assert str(caught.value).startswith(f"{tmp_path / name}: {says}")
    assert "\n" not in str(caught.value)
