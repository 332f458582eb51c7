"""Read a file of any size as texts, one per row, for `embed`, `pairs`, `cluster` and `similar`.

Row n of the result must be row n of the file, so nothing is dropped or split: an empty line is the empty text, a very
long line is cut, bytes that are not UTF-8 are replaced, and each is counted. A record that cannot be read is an error,
because leaving it out would shift all rows after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bertree.errors import UserError, suggest
from bertree.files.formats import parse_json
from bertree.text import records
from bertree.text.cleaning import replace_surrogates
from bertree.text.readers import MAX_RECORD, last_character_end, open_parquet
from bertree.text.sources import STANDARD_INPUT, find_sources, open_source

LONGEST = 1 << 15  # characters of a text; 512 tokens are about 2,500


@dataclass
class RowCounts:
    """Counts of rows that need a note."""

    rows: int = 0
    empty: int = 0
    cut: int = 0  # longer than LONGEST
    invalid: int = 0  # with bytes that are not UTF-8

    def notes(self, name: str) -> list[str]:
        """Return a line for each kind of row that needs a note."""
        empty = f"{name}: {self.empty:,} of {self.rows:,} rows are empty and have the vector of the empty text"
        cut = f"{name}: {self.cut:,} of {self.rows:,} rows are longer than {LONGEST:,} characters and were cut there"
        invalid = f"{name}: {self.invalid:,} of {self.rows:,} rows hold bytes that are not UTF-8, which were replaced"
        counted = ((self.empty, empty), (self.cut, cut), (self.invalid, invalid))
        return [line for count, line in counted if count]


class TextRows:
    """The texts of one file, or of standard input, read once."""

    def __init__(self, name: str, column: str | None = None, format: str | None = None) -> None:
        sources = find_sources([name], format)
        if len(sources) != 1 or Path(name).is_dir():
            raise UserError(f"{name}: is not one file; give a file of texts (.txt, .jsonl, .csv, .tsv, .parquet)")
        self.source, self._column = sources[0], column
        if column is not None and self.source.format == "text":
            raise UserError(f"{name}: is plain text, one text per line, and has no column '{column}'")
        self.name = "standard input" if name == STANDARD_INPUT else name
        self.counts = RowCounts()
        self.total = self.source.size  # bytes; of parquet, rows; 0: unknown
        self.done = 0  # read so far, of `total`

    def __iter__(self) -> Iterator[str]:
        with open_source(self.source) as (stream, file):
            read = {"text": self._text, "jsonl": self._jsonl, "parquet": self._parquet}
            for text in read.get(self.source.format, self._delimited)(stream):
                counted = self._count(text)
                if self.total:
                    self.done = self.counts.rows if self.source.format == "parquet" else file.tell()
                yield counted
        if not self.counts.rows:
            raise UserError(f"{self.name}: is empty")

    def _count(self, text: str) -> str:
        self.counts.rows += 1
        text = replace_surrogates(text)
        if len(text) > LONGEST:
            self.counts.cut += 1
            text = text[:LONGEST]
        if not text.strip():
            self.counts.empty += 1
        return text

    def _text(self, stream: IO[bytes]) -> Iterator[str]:
        most = 4 * LONGEST + 1  # bytes that LONGEST characters may take in UTF-8, and one more
        first = True
        while data := stream.readline(most):
            if first:
                data, first = data.removeprefix(b"\xef\xbb\xbf"), False
            rest, longer = data, False
            while not rest.endswith(b"\n") and (rest := stream.readline(most)):
                longer = True  # the rest is skipped, a piece at a time
            if longer:  # one character too many, so that it is counted as cut
                yield self._decode(data[: last_character_end(data)]).ljust(LONGEST + 1)
            else:
                yield self._decode(data).rstrip("\r\n")

    def _decode(self, data: bytes) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            self.counts.invalid += 1
            return data.decode("utf-8", "replace")

    def _lines(self, stream: IO[bytes]) -> Iterator[tuple[int, str]]:
        number = 0
        while data := stream.readline(MAX_RECORD):
            number += 1
            if len(data) == MAX_RECORD:
                raise UserError(f"{self.name}: line {number}: is longer than {MAX_RECORD >> 20} MB")
            text = self._decode(data)
            yield number, (text.removeprefix("\ufeff") if number == 1 else text).rstrip("\r\n")

    def _jsonl(self, stream: IO[bytes]) -> Iterator[str]:
        column = ""
        for number, line in self._lines(stream):
            if not line.strip():
                continue
            where = f"{self.name}: line {number}"
            record = parse_json(line, where)
            if isinstance(record, str):
                yield record
                continue
            if not isinstance(record, dict):
                raise UserError(f"{where}: must hold a JSON object or a text")
            column = column or records.choose_text_column(list(record), self._column, self.name)
            if column not in record:
                raise UserError(f"{where}: has no field '{column}'; {suggest(column, map(str, record))}")
            yield self._cell(record[column], where)

    def _delimited(self, stream: IO[bytes]) -> Iterator[str]:
        comma = self.source.format == "csv"
        rows = records.read_rows(Path(self.name), self._lines(stream), comma, "cell")
        header = [name.strip() for name in next(rows, (1, []))[1]]
        if not header:
            return
        column = header.index(records.choose_text_column(header, self._column, self.name))
        for number, cells in rows:
            if len(cells) != len(header):
                raise UserError(f"{self.name}: line {number}: has {len(cells)} columns, the header {len(header)}")
            yield cells[column]

    def _parquet(self, stream: IO[bytes]) -> Iterator[str]:
        with open_parquet(self.source, stream) as table:
            self.total = table.metadata.num_rows
            column = records.choose_text_column(table.schema_arrow.names, self._column, self.name)
            for batch in table.iter_batches(batch_size=64, columns=[column], use_threads=False):
                batch.validate(full=True)
                for value in batch.column(0).to_pylist():
                    yield self._cell(value, f"{self.name}: row {self.counts.rows + 1}")

    def _cell(self, value: Any, where: str) -> str:
        if value is not None and not isinstance(value, str):
            raise UserError(f"{where}: holds {type(value).__name__} {value!r:.40}, not text; choose with `text`")
        return value or ""
