"""What a teacher said about a task's training units, kept in the folder of the run: asked once, however often the run
is resumed and however many seeds it has.

One safetensors file: the scores of all units below each other, and in its header what they are of. A file that is of
something else or damaged is not used; the teacher is asked again.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bertree.files import Json, write_atomically
from bertree.tasks.task import Logits

FILE = "teacher.safetensors"
ROWS, ABOUT = "scores", "about"  # one key in the header: of several, the library does not keep the order


@dataclass(frozen=True)
class Said:
    """A teacher's scores of training units, and its figures on the dev splits."""

    rows: Sequence[Logits]  # one array a unit
    figures: dict[str, float]

    @property
    def bytes(self) -> int:
        """What they take on the disk, but for the header."""
        return sum(rows.nbytes for rows in self.rows)


def identity(parts: Iterable[object]) -> str:
    """One hash of everything the scores depend on."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def write(out: Path, said: Said, of: str, classes: int) -> None:
    """Keep them, whole or not at all; `of` is the identity."""
    together = np.concatenate([np.zeros((0, classes), np.float32), *said.rows]).astype(np.float32)
    about = json.dumps({"identity": of, "sha256": _digest(together), "figures": said.figures})
    for leftover in out.glob(f".{FILE}.*"):  # of a run that was killed
        leftover.unlink()
    write_atomically(out / FILE, save({ROWS: together}, metadata={ABOUT: about}))


def read(out: Path, of: str, sizes: Sequence[int], classes: int, note: Callable[[str], None]) -> Said | None:
    """What was kept, if it is of this identity and whole: `sizes` rows of `classes` for each unit."""
    path = out / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            header = _header((file.metadata() or {}).get(ABOUT, ""))
            if header.get("identity") != of:
                return None
            found = file.get_tensor(ROWS) if ROWS in file.keys() else None  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        note(f"{path}: cannot be read ({error}); the teacher is asked again")
        return None
    figures = header.get("figures")
    good = isinstance(figures, dict) and all(isinstance(value, int | float) for value in figures.values())
    fits = found is not None and found.dtype == np.float32 and found.shape == (sum(sizes), classes)
    if not good or found is None or not fits or _digest(found) != header.get("sha256"):
        note(f"{path}: is damaged; the teacher is asked again")
        return None
    ends = np.cumsum(np.asarray(sizes, np.int64))
    return Said(np.split(found, ends[:-1]) if len(sizes) else [], dict(header["figures"]))


def _digest(rows: Logits) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()


def _header(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
