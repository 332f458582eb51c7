"""The journal of a preparation, from which the next run resumes after any kind of interruption.

The journal is rewritten after every finished shard: it lists the finished shards, the position in the input after them
and the counts at that position. It also describes the job, because resuming with other files or settings would make a
store that cannot be reproduced.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bertree.data.controls import ControlCode, code_entries, read_codes
from bertree.data.store_header import JOURNAL, ShardFile, dtype_for, read_shard_files, shard_file_name
from bertree.data.writer import shard_entry, write_json
from bertree.errors import UserError
from bertree.files.atomic import sync
from bertree.files.formats import Json, check_regular, read_json
from bertree.text.cleaning import DIGEST
from bertree.text.corpus import Position

SEEN, VERSION = "seen.bin", 2


@dataclass
class PrepareProgress:
    """Everything that is finished; all later work is repeated."""

    shards: list[dict[str, ShardFile]] = field(default_factory=list)
    position: Position = field(default_factory=Position)
    counts: Json = field(default_factory=dict)  # of the corpus
    tokenless: int = 0  # documents that gave no token
    seen: int = 0  # digests in seen.bin
    controls: list[ControlCode] = field(default_factory=list)  # codes of the documents in the shards


def load(folder: Path, job: Json) -> PrepareProgress:
    """Return the progress of an earlier run of the same job."""
    path = folder / JOURNAL
    if not path.is_file():
        return PrepareProgress()
    journal = read_json(path)
    earlier = journal.get("job")
    if not isinstance(earlier, dict) or journal.get("version") != VERSION:
        raise UserError(f"{path}: is not a journal of this version; remove {folder} and start again")
    if journal.get("shards") == []:
        return PrepareProgress()
    if earlier != job:
        differ = next((key for key in job if earlier.get(key) != job[key]), "version")
        raise UserError(
            f"{folder}: was started with other settings ({differ}); use the same settings, or remove it and start again"
        )
    try:
        width, coded = dtype_for(job["vocab_size"]).itemsize, bool(job["options"]["control"])
        progress = PrepareProgress(
            [read_shard_files(entry, width, coded) for entry in journal["shards"]],
            Position(**journal["position"]),
            {str(key): int(value) for key, value in journal["counts"].items()},
            int(journal["tokenless"]),
            int(journal["seen"]),
            list(read_codes(journal["controls"], job["vocab_size"])),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: is damaged ({error}); remove {folder} and start again") from None
    for number, parts in enumerate(progress.shards):
        for part, expected in parts.items():
            name = folder / shard_file_name(part, number)
            if not name.is_file() or name.stat().st_size != expected.size:
                raise UserError(f"{name}: is missing or cut off; remove {folder} and start again")
    return progress


def save(folder: Path, job: Json, progress: PrepareProgress) -> None:
    """Write the journal."""
    write_json(
        folder / JOURNAL,
        {
            "version": VERSION,
            "job": job,
            "shards": [shard_entry(parts) for parts in progress.shards],
            "position": asdict(progress.position),
            "counts": progress.counts,
            "tokenless": progress.tokenless,
            "seen": progress.seen,
            "controls": code_entries(progress.controls),
        },
    )


def add_seen(folder: Path, before: int, digests: list[bytes]) -> None:
    """Write digests after the first `before`, which the journal already knows."""
    with (folder / SEEN).open("r+b" if before else "wb") as file:
        file.truncate(before * DIGEST)
        file.seek(before * DIGEST)
        file.write(b"".join(digests))
        file.flush()
        os.fsync(file.fileno())


def read_seen(folder: Path, count: int) -> Iterator[bytes]:
    """Yield the first `count` digests."""
    if not count:
        return
    check_regular(folder / SEEN)
    with (folder / SEEN).open("rb") as file:
        for _ in range(count):
            key = file.read(DIGEST)
            if len(key) != DIGEST:
                raise UserError(f"{folder / SEEN}: is cut off; remove {folder} and start again")
            yield key


def clear(folder: Path) -> None:
    """Remove what only an unfinished store needs; the journal last."""
    for name in (SEEN, JOURNAL):
        (folder / name).unlink(missing_ok=True)
    sync(folder)
