"""The same three documents as a file of any format and compression."""

import csv
import gzip
import io
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import zstandard

DOCUMENTS = ["One line.\nAnother line.", "Grüße aus 東京 😀.", "third, with a comma"]


def write_corpus(path: Path, packed: str = "") -> Path:
    kind = path.suffix
    if kind == ".txt":
        data = "\n\n".join(DOCUMENTS).encode()
    elif kind == ".jsonl":
        data = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in DOCUMENTS).encode()
    elif kind in (".csv", ".tsv"):
        text = io.StringIO()
        writer = csv.writer(text, delimiter="," if kind == ".csv" else "\t")
        writer.writerows([["id", "text"], *([str(n), t] for n, t in enumerate(DOCUMENTS))])
        data = text.getvalue().encode()
    else:
        buffer = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table({"id": [1, 2, 3], "text": DOCUMENTS}), buffer)
        data = buffer.getvalue()
    data = {"": lambda d: d, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}[packed](data)
    path = path.with_name(path.name + packed)
    path.write_bytes(data)
    return path
