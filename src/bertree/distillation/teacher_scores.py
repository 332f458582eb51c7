"""A teacher's scores of a task's training units, saved in the run's folder: computed once for all seeds and resumes.

One safetensors file: the scores of all units, concatenated, and in its header an identity. A file with another identity
or a damaged one is not used; the scores are computed again.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bertree.console import note
from bertree.files.atomic import write_atomically
from bertree.files.formats import Json
from bertree.tasks.task import Logits

FILE = "teacher.safetensors"
ROWS, ABOUT = "scores", "about"  # one key in the header: of several, the library does not keep the order


@dataclass(frozen=True)
class TeacherScores:
    """A teacher's scores of training units, and its metrics on the dev splits."""

    rows: Sequence[Logits]  # one array per unit
    figures: dict[str, float]

    @property
    def bytes(self) -> int:
        """Size on disk, without the header."""
        return sum(rows.nbytes for rows in self.rows)


def identity_of(parts: Iterable[object]) -> str:
    """Return one hash of everything the scores depend on."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def write(out: Path, scores: TeacherScores, identity: str, classes: int) -> None:
    """Write the scores atomically."""
    together = np.concatenate([np.zeros((0, classes), np.float32), *scores.rows]).astype(np.float32)
    about = json.dumps({"identity": identity, "sha256": _digest(together), "figures": scores.figures})
    write_atomically(out / FILE, save({ROWS: together}, metadata={ABOUT: about}))


def read(out: Path, identity: str, sizes: Sequence[int], classes: int) -> TeacherScores | None:
    """Read the scores if they have this identity and are undamaged: `sizes` rows of `classes` for each unit."""
    path = out / FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            header = _header((file.metadata() or {}).get(ABOUT, ""))
            if header.get("identity") != identity:
                return None
            found = file.get_tensor(ROWS) if ROWS in file.keys() else None  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        note(f"{path}: cannot be read ({error}); the teacher's scores are computed again")
        return None
    figures = header.get("figures")
    good = isinstance(figures, dict) and all(isinstance(value, int | float) for value in figures.values())
    fits = found is not None and found.dtype == np.float32 and found.shape == (sum(sizes), classes)
    if not good or found is None or not fits or _digest(found) != header.get("sha256"):
        note(f"{path}: is damaged; the teacher's scores are computed again")
        return None
    last_layers = np.cumsum(np.asarray(sizes, np.int64))
    return TeacherScores(np.split(found, last_layers[:-1]) if len(sizes) else [], dict(header["figures"]))


def _digest(rows: Logits) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()


def _header(text: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
