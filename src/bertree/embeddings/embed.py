"""The work behind `bertree embed` and what the verbs of sentence vectors share: a model, texts, a bar, what was cut."""

import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from bertree.console import note
from bertree.embeddings import npy_file
from bertree.embeddings.npy_file import Fingerprint, VectorFile
from bertree.embeddings.text_rows import Counts, Rows
from bertree.errors import TextsCut, UserError
from bertree.inference.embedding import WINDOW, Vectors
from bertree.inference.load import Model, device_of, load


@dataclass(frozen=True)
class How:
    """How texts become vectors."""

    device: str = "auto"
    tokenizer: Path | None = None
    prompt: str | None = None  # the name of one of the model's, or a text with a space or a colon in it
    max_length: int = 0
    batch_tokens: int = 0
    normalise: bool = False
    precision: str = "float32"  # in which vectors are computed


@dataclass(frozen=True)
class Given:
    """Where the texts are."""

    file: str
    column: str | None = None
    format: str | None = None

    def rows(self) -> Rows:
        """To be read once."""
        return Rows(self.file, self.column, self.format)


class Embedder:
    """A loaded model and how it is used: texts of any number -> vectors, checked."""

    def __init__(self, model: str, how: How, pooling: str | None = None) -> None:
        device = device_of(how.device)
        self.model: Model = load(model, device=device, tokenizer=how.tokenizer, dtype=how.precision)
        if not self.model.trained:
            if self.model.tokenizer is None:
                raise UserError(f"{model}: is a preset with untrained weights; give a model folder, or: default")
            note(f"{model}: is a preset with untrained weights, so its vectors mean nothing")
        self.given, self.how = model, how
        known = self.model.vector
        if pooling is not None and pooling != known.pooling:
            if known.dense:
                note(f"{model}: its dense layers are left out, for they stand on the pooling {known.pooling}")
            self.model.vector = replace(known, pooling=pooling, dense=())
        if how.normalise:
            self.model.vector = replace(self.model.vector, normalise=True)
        self.model.needed_tokenizer  # noqa: B018  # refused before texts are read
        prompts = dict(self.model.vector.prompts)
        literal = how.prompt is not None and how.prompt not in prompts and any(sign in how.prompt for sign in " :")
        self.before = (how.prompt or "") if literal else ""
        self.kind = "" if literal else how.prompt
        self.model.vector.before(self.kind)  # refused before the work, not after it

    def windows(self, texts: Iterable[str], advance: Callable[[int], None]) -> Iterator[Vectors]:
        """Vectors, some thousand rows at a time; `advance` hears of fewer."""
        given = (self.before + text for text in texts) if self.before else texts
        done = 0
        for vectors in self.model.embedded(
            given,
            prompt=self.kind,
            max_length=self.how.max_length or None,
            batch_tokens=self.how.batch_tokens,
            advance=advance,
        ):
            good = np.isfinite(vectors).all(1)
            if not good.all():
                row = done + int(good.argmin()) + 1
                raise UserError(
                    f"{self.given}: the vector of row {row:,} holds NaN or infinity; are the weights whole?"
                )
            done += len(vectors)
            yield vectors

    def embed(self, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None) -> Vectors:
        """All vectors at once."""
        found = np.empty((len(texts), self.model.dimension), np.float32)
        done = 0
        for vectors in self.windows(texts, advance):
            found[done : done + len(vectors)] = vectors
            done += len(vectors)
        return found


@contextmanager
def cuts_counted(what: str) -> Iterator[None]:
    """Texts that were cut, window after window, are said once, together."""
    found: list[TextsCut] = []
    before = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        if isinstance(message, TextsCut):
            found.append(message)
        else:
            before(message, category, *rest)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TextsCut)
        warnings.showwarning = show  # type: ignore[assignment]
        try:
            yield
        finally:
            warnings.showwarning = before
    if found:
        texts, tokens = sum(cut.texts for cut in found), sum(cut.tokens for cut in found)
        note(f"{what}: {texts:,} texts cut to {found[0].limit} tokens ({tokens:,} tokens dropped)")


@contextmanager
def bar(total: int, what: str = "embedding", quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal: how far of `total`, sentences a second, time left.

    What it hands out takes how far the work has come, and how many sentences are done; where none is yet, the clock
    begins anew, for a run that goes on.
    """
    columns = (
        TextColumn(what),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    shown = sys.stderr.isatty() and not quiet
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not shown) as progress:
        task = progress.add_task("", total=total or None, speed="")
        started = time.monotonic()

        def at(done: int, sentences: int) -> None:
            nonlocal started
            if not sentences:
                started = time.monotonic()
                progress.reset(task, total=total or None, completed=done)
                return
            speed = sentences / max(time.monotonic() - started, 1e-9)
            progress.update(task, completed=done, speed=f"{speed:,.0f} sentences/s")

        yield at


def texts_and_vectors(
    model: str, given: Given, how: How, vectors: Path | None, quiet: bool
) -> tuple[list[str], Vectors, Counts]:
    """The texts of a file with their vectors: made here, or read from what `embed` has written."""
    rows = given.rows()
    texts = list(rows)
    if vectors is not None:
        return texts, npy_file.load(vectors, len(texts)), rows.counts
    embedder = Embedder(model, how)
    return texts, embedded(embedder, texts, rows.name, quiet), rows.counts


def embedded(embedder: Embedder, texts: Sequence[str], name: str, quiet: bool) -> Vectors:
    """All vectors, with a bar."""
    done = 0
    with cuts_counted(name), bar(len(texts), quiet=quiet) as at:

        def advance(count: int) -> None:
            nonlocal done
            done += count
            at(done, done)

        return embedder.embed(texts, advance)


def embed(model: str, given: Given, out: Path, how: How, dtype: str) -> None:
    """`bertree embed`: a file of any size, going on after any kind of end."""
    rows = given.rows()
    if out.is_dir():
        raise UserError(f"{out}: is a folder; give the path of a file to write (vectors.npy)")
    npy_file.check(out, dtype)  # before a model is loaded
    embedder = Embedder(model, how)
    job = {
        "model": embedder.model.digest,
        "prompt": how.prompt,
        "max length": how.max_length or embedder.model.max_length,
        "batch tokens": how.batch_tokens,
        "device": embedder.model.device.type,
        "dtype": dtype,
        "precision": how.precision,
        "window": WINDOW,
    }
    target = VectorFile(out, job, embedder.model.dimension, dtype)
    if target.finished():
        print(f"{out}: is complete already")
        return
    started = time.monotonic()
    if out.suffix.casefold() not in ("", ".npy"):
        note(f"{out}: will be a .npy file, whatever its name says")
    with target.writing():
        before = target.rows
        if before:
            note(f"{out}: going on after {before:,} rows")
        try:
            with cuts_counted(rows.name), bar(rows.total) as at:
                _write(embedder, rows, target, lambda done, count: at(done, count - before))
        except KeyboardInterrupt:
            raise UserError(f"{out}: interrupted after {target.rows:,} rows; run the same command again") from None
        target.finish()
    for line in rows.counts.notes(rows.name):
        note(line)
    speed = (target.rows - before) / max(time.monotonic() - started, 1e-9)
    size = f"{target.rows:,} vectors x {target.dimension}, {dtype}"
    print(f"{out}: {size}" + (f"; {speed:,.0f} sentences/s" if target.rows > before else ""))


def _write(embedder: Embedder, rows: Rows, target: VectorFile, advance: Callable[[int, int], None]) -> None:
    """What is not yet in the file, window after window. `advance` hears how far of the input that is, and how many
    rows."""
    source, hashed = iter(rows), Fingerprint()
    for number in range(target.rows):
        text = next(source, None)
        if text is None:
            raise UserError(
                f"{rows.name}: has {number:,} rows, fewer than were embedded before; remove {target.part} and "
                f"{target.journal} to begin again"
            )
        hashed.add(text)
    if target.rows and str(hashed) != target.texts:
        raise UserError(
            f"{rows.name}: its first {target.rows:,} rows are not those that were embedded before; remove "
            f"{target.part} and {target.journal} to begin again"
        )
    at, inside = rows.done, 0  # where the window begins that is computed, and how many of its rows are done
    advance(at, target.rows)
    # The model reads ahead of what it gives back, so the states of hash and file wait for their window.
    states: deque[tuple[str, int]] = deque()

    def watched() -> Iterator[str]:
        for count, text in enumerate(source, 1):
            hashed.add(text)
            if count % WINDOW == 0:
                states.append((str(hashed), rows.done))
            yield text
        states.append((str(hashed), rows.done))

    def some(count: int) -> None:
        nonlocal inside
        inside += count
        end = states[0][1] if states else rows.done
        advance(at + (end - at) * min(inside, WINDOW) // WINDOW, target.rows + inside)

    for vectors in embedder.windows(watched(), some):
        known, at = states.popleft()
        target.add(vectors, known)
        inside = 0
        advance(at, target.rows)
