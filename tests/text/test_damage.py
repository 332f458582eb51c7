"""Any damage to any kind of file is a counted warning or one line, never a traceback."""

import random
from pathlib import Path

import pytest

from bertree.errors import UserError
from bertree.text.corpus import Corpus
from tests.support.corpus_files import write_corpus
from tests.support.shared import suite_has


def problem(path: Path) -> str | None:
    """Read all of it; what it was refused for."""
    try:
        for document in Corpus([str(path)]).documents():
            document.encode()
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize("packed", suite_has(["", ".zst"], ["", ".gz", ".xz", ".zst"]))
@pytest.mark.parametrize("kind", [".txt", ".jsonl", ".csv", ".parquet"])
def test_random_damage(tmp_path: Path, kind: str, packed: str) -> None:
    whole = write_corpus(tmp_path / f"a{kind}", packed).read_bytes()
    path = tmp_path / f"b{kind}{packed}"
    source = random.Random(0)
    for _ in range(60):
        data = bytearray(whole)
        for _ in range(source.randrange(1, 6)):
            data[source.randrange(len(data))] = source.randrange(256)
        if source.random() < 0.5:
            del data[source.randrange(len(data)) :]
        path.write_bytes(data)
        message = problem(path)
        assert message is None or ("\n" not in message and str(path) in message)
