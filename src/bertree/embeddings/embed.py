"""Embed texts with a loaded model and its options: any number of texts, or a file as one .npy file."""

import copy
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertree.config.names import parse_precision
from bertree.console import bar, note, showing
from bertree.embeddings import npy_file
from bertree.embeddings.npy_file import Fingerprint, VectorFile
from bertree.engines.engine import HERE, Engine, Workers
from bertree.engines.local import choose_engine
from bertree.errors import Interrupted, TextsCut, UserError
from bertree.inference.embedding import BLOCK, FIRST_BLOCK, Vectors, block_end, embed_blocks
from bertree.inference.embedding_workers import EmbeddedBlock, TextBlock, embed_in_order, start_embedding
from bertree.inference.load import choose_device, load_or_take
from bertree.inference.model import Model
from bertree.inference.text_rows import TextRows
from bertree.text.memory import Rows, takes_rows, task_fields


@dataclass(frozen=True, kw_only=True)
class EmbedOptions:
    """How texts become vectors."""

    device: str = "auto"
    tokenizer: str | Path | None = None
    prompt: str | None = None  # the name of one of the model's prompts, or a text with a space or a colon in it
    max_length: int = 0
    batch_tokens: int = 0
    normalize: bool = False
    precision: str = "float32"  # of the computation


@dataclass(frozen=True)
class EmbeddedFile:
    """A .npy file of vectors: its shape, and how fast it was written."""

    path: Path
    rows: int  # a vector for each text of the file
    dimension: int  # of a vector
    dtype: str  # float32 or float16
    new_rows: int  # 0: the file was complete already
    seconds: float


class Embedder:
    """A loaded model with its options, which embeds any number of texts and checks the vectors."""

    def __init__(self, model: str | Path | Model, options: EmbedOptions, pooling: str | None = None) -> None:
        self.model, self.name = load_or_take(
            model, device=choose_device(options.device), tokenizer=options.tokenizer, precision=options.precision
        )
        if not self.model.trained:
            if self.model.tokenizer is None:
                raise UserError(f"{self.name}: is a preset with random weights; give a model folder, or: default")
            note(f"{self.name}: is a preset with random weights, so its vectors mean nothing")
        self.options = options
        self.workers: Workers[TextBlock, EmbeddedBlock] | None = None  # None: this process embeds
        if isinstance(model, Model) and (pooling is not None or options.normalize):
            self.model = copy.deepcopy(model)  # the caller's model stays as it is
        vector = self.model.vector
        if pooling is not None and pooling != vector.pooling:
            if vector.dense:
                note(f"{self.name}: its dense layers are left out: they were trained on the pooling {vector.pooling}")
            self.model.vector = replace(vector, pooling=pooling, dense=())
        if options.normalize:
            self.model.vector = replace(self.model.vector, normalize=True)
        self.model.required_tokenizer  # noqa: B018  # raises before texts are read
        prompts = dict(self.model.vector.prompts)
        literal = (
            options.prompt is not None
            and options.prompt not in prompts
            and any(sign in options.prompt for sign in " :")
        )
        self.prefix = (options.prompt or "") if literal else ""
        self.prompt_name = "" if literal else options.prompt
        self.model.vector.prompt_text(self.prompt_name, self.model.name)  # raises before the work, not after it

    def blocks(
        self, texts: Iterable[str], advance: Callable[[int], None], first: int | None = None
    ) -> Iterator[Vectors]:
        """Yield vectors block by block; `advance` is called more often, with the number of new rows.

        `first`: number of the first text, for a file that is continued; then the first blocks are small.
        """
        prefixed = (self.prefix + text for text in texts) if self.prefix else texts
        done = first or 0
        for vectors in self._blocks(prefixed, advance, first):
            good = np.isfinite(vectors).all(1)
            if not good.all():
                row = done + int(good.argmin()) + 1
                raise UserError(
                    f"{self.name}: the vector of row {row:,} holds NaN or infinity; are the weights damaged?"
                )
            done += len(vectors)
            yield vectors

    def _blocks(self, texts: Iterable[str], advance: Callable[[int], None], first: int | None) -> Iterator[Vectors]:
        if self.workers is not None:
            return embed_in_order(self.workers, texts, first or 0, advance)
        return embed_blocks(self.model, texts, advance=advance, first=first, **self._settings)

    @property
    def _settings(self) -> dict[str, Any]:
        options = self.options
        return {
            "prompt": self.prompt_name,
            "max_length": options.max_length or None,
            "batch_tokens": options.batch_tokens,
        }

    @contextmanager
    def on(self, engine: Engine, device: str, precision: str) -> Iterator[None]:
        """Embed by the workers of an engine while the block runs; on another kind of device, in this precision."""
        if engine is HERE:
            yield
            return
        chosen = self.model.precision if device.startswith(self.model.device.type) else parse_precision(precision)
        with start_embedding(engine, self.model, device, chosen, **self._settings) as self.workers:
            yield
        self.workers = None

    def embed(self, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None) -> Vectors:
        """Return all vectors as one array."""
        rows = np.empty((len(texts), self.model.dimension), np.float32)
        done = 0
        for vectors in self.blocks(texts, advance):
            rows[done : done + len(vectors)] = vectors
            done += len(vectors)
        return rows


@contextmanager
def count_cuts(what: str) -> Iterator[None]:
    """Collect the warnings about cut texts and give one note for all of them."""
    cuts: list[TextsCut] = []
    before = warnings.showwarning

    def show(message: Any, category: type[Warning], *rest: Any) -> None:
        if isinstance(message, TextsCut):
            cuts.append(message)
        else:
            before(message, category, *rest)

    with warnings.catch_warnings():
        warnings.simplefilter("always", TextsCut)
        warnings.showwarning = show  # type: ignore[assignment]
        try:
            yield
        finally:
            warnings.showwarning = before
    if cuts:
        texts, tokens = sum(cut.texts for cut in cuts), sum(cut.tokens for cut in cuts)
        note(f"{what}: {texts:,} texts cut to {cuts[0].limit} tokens ({tokens:,} tokens dropped)")


def read_texts_and_vectors(
    model: str | Path | Model, rows: TextRows, options: EmbedOptions, vectors: str | Path | None
) -> tuple[list[str], Vectors]:
    """Return the texts of a file with their vectors: computed here, or read from a file that `embed` has written."""
    texts = list(rows)
    if vectors is not None:
        return texts, npy_file.load(Path(vectors), len(texts))
    return texts, embed_texts(Embedder(model, options), texts, rows.name)


def embed_texts(embedder: Embedder, texts: Sequence[str], name: str) -> Vectors:
    """Return the vectors of all texts, with a progress bar."""
    with count_cuts(name), bar("embedding", len(texts), speed="texts") as progress:
        return embedder.embed(texts, progress.advance)


@takes_rows(file=task_fields)
def embed_file(
    model: str | Path | Model,
    file: str | Path | Rows,
    out: str | Path,
    *,
    text: str | None = None,
    format: str | None = None,
    dtype: str = "float32",
    normalize: bool = False,
    prompt: str | None = None,
    max_length: int = 0,
    batch_tokens: int = 0,
    precision: str = "float32",
    device: str = "auto",
    tokenizer: str | Path | None = None,
    engine: str = "local",
    address: str | None = None,
    progress: bool | None = None,
) -> EmbeddedFile:
    """Write the vector of every text of a file, of any size, as one .npy file. Called again after a stop, it resumes.

    `text` is the column with the text, `dtype` the number type of the file (float32 or float16). `normalize` scales
    vectors to length 1, `prompt` is one of the model's prompts by its name or a text to put first. `engine="ray"`
    embeds on the Ray cluster at `address`.

    >>> bertree.embed_file("default", "mail.txt", "vectors.npy")
    """
    with showing(progress):
        out, rows = Path(out), TextRows(str(file), text, format)
        options = EmbedOptions(
            device=device,
            tokenizer=tokenizer,
            prompt=prompt,
            max_length=max_length,
            batch_tokens=batch_tokens,
            normalize=normalize,
            precision=precision,
        )
        if out.is_dir():
            raise UserError(f"{out}: is a folder; give the path of a file to write (vectors.npy)")
        npy_file.check(out, dtype)  # before a model is loaded
        chosen = choose_engine(engine, address)
        computing = str(model.device) if isinstance(model, Model) else choose_device(device)
        embedder = Embedder(model, options if chosen is HERE else _to_send(options, computing))
        job = {
            "model": embedder.model.digest,
            "prompt": options.prompt,
            "max length": options.max_length or embedder.model.max_length,
            "batch tokens": options.batch_tokens,
            "device": computing.partition(":")[0],
            "dtype": dtype,
            "precision": options.precision,
            "block": f"{FIRST_BLOCK} to {BLOCK}",
        }
        target = VectorFile(out, job, embedder.model.dimension, dtype)
        if target.finished():
            return EmbeddedFile(out, len(npy_file.load(out)), target.dimension, dtype, 0, 0.0)
        started = time.monotonic()
        if out.suffix.casefold() not in ("", ".npy"):
            note(f"{out}: will be a .npy file, whatever its name says")
        before = _fill_file(embedder, rows, target, lambda: embedder.on(chosen, computing, options.precision))
        for line in rows.counts.notes(rows.name):
            note(line)
        return EmbeddedFile(out, target.rows, target.dimension, dtype, target.rows - before, time.monotonic() - started)


def _to_send(options: EmbedOptions, device: str) -> EmbedOptions:
    """Return how to load a model that is only sent to workers with this device: on the CPU, without loss."""
    return replace(options, device="cpu", precision=options.precision if device.startswith("cpu") else "float32")


def _fill_file(
    embedder: Embedder, rows: TextRows, target: VectorFile, started: Callable[[], AbstractContextManager[None]]
) -> int:
    """Write the rows that are missing and finish the file; return how many rows there were before."""
    with target.writing():
        before = target.rows
        if before:
            note(f"{target.out}: going on after {before:,} rows")
        try:
            shown = bar("embedding", rows.total or None, speed="texts", in_bytes=True)
            with count_cuts(rows.name), shown as progress, started():
                _write(embedder, rows, target, progress.move_to)
        except KeyboardInterrupt:
            done = f"interrupted after {target.rows:,} rows; run the same command again"
            raise Interrupted(f"{target.out}: {done}") from None
        target.finish()
    return before


def _write(embedder: Embedder, rows: TextRows, target: VectorFile, advance: Callable[[int, int], None]) -> None:
    """Write the missing rows, block after block. `advance` gets the position in the input and the number of rows."""
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
    at, inside = rows.done, 0  # start of the block that is computed, and how many of its rows are done
    advance(at, target.rows)
    # The model reads ahead of what it gives back, so the states of hash and file wait for their block.
    states: deque[tuple[str, int]] = deque()
    first = target.rows

    def watched() -> Iterator[str]:
        end = block_end(first)
        for count, text in enumerate(source, first + 1):
            hashed.add(text)
            if count == end:
                states.append((str(hashed), rows.done))
                end = block_end(count)
            yield text
        states.append((str(hashed), rows.done))

    def report(count: int) -> None:
        nonlocal inside
        inside += count
        end, size = states[0][1] if states else rows.done, block_end(target.rows) - target.rows
        advance(at + (end - at) * min(inside, size) // size, target.rows + inside)

    for vectors in embedder.blocks(watched(), report, first):
        fingerprint, at = states.popleft()
        target.add(vectors, fingerprint)
        inside = 0
        advance(at, target.rows)
