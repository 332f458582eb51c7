"""From text files to a tokenizer and a token store: `bertree.train_tokenizer`, `bertree.prepare`."""

import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bertree.config.default_model import resolve_model_path
from bertree.console import Bar, bar, showing
from bertree.data import prepare as preparing
from bertree.data import store as stores
from bertree.data.store import Store
from bertree.data.store_header import TOKENIZER, read_header
from bertree.engines.local import choose_engine
from bertree.errors import UserError
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus, CorpusOptions, describe_counts
from bertree.text.sources import STANDARD_INPUT, describe_skipped
from bertree.text.tokenizer import Tokenizer
from bertree.text.tokenizer_training import TokenizerReport

HELD_OUT_EVERY = tokenizer_training.HeldOutSplit().every  # documents, of which one is held out


@dataclass(frozen=True)
class TrainedTokenizer:
    """A tokenizer in its folder, how it does on held-out documents, and what was dropped from the corpus."""

    folder: Path
    tokenizer: Tokenizer
    documents: int
    report: TokenizerReport | None  # None: too few documents to hold any out
    dropped: list[str]  # lines for people


@dataclass(frozen=True)
class PreparedStore:
    """A token store in its folder, its size on disk, and what was dropped from the corpus."""

    store: Store
    bytes: int
    tokenizer_bytes: int
    seconds: float
    dropped: list[str]  # lines for people


def train_tokenizer(
    corpus: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    kind: str = "wordpiece",
    vocab_size: int = 30_000,
    cased: bool | None = None,
    text: str = "text",
    format: str | None = None,
    whole_files: bool = False,
    wrapped: bool = False,
    deduplicate: bool = False,
    min_characters: int = 1,
    progress: bool | None = None,
) -> TrainedTokenizer:
    """Train a tokenizer on text files, save it as a folder and measure it on held-out documents.

    `corpus` are files, folders or globs; `kind` is wordpiece (BERT), bpe (RoBERTa), unigram (ALBERT), xlnet or bytes;
    `cased` keeps capitals (default: as usual for the kind). `text` is the field of JSON, CSV and parquet records,
    `format` that of the files where the suffix does not say it; `whole_files`: a text file is one document; `wrapped`:
    a single line end is a space.

    >>> bertree.train_tokenizer("corpus/", "my-tokenizer", kind="wordpiece", vocab_size=30_000).report.fertility
    """
    names, out = _names(corpus), Path(out)
    options = CorpusOptions(text, format, whole_files, wrapped, deduplicate, min_characters)
    split, source = tokenizer_training.HeldOutSplit(), None
    with showing(progress), _rereadable_input(names) as rewind, bar("reading", in_bytes=True) as shown:

        def documents() -> Iterator[str]:
            nonlocal split, source
            rewind()
            split, source = tokenizer_training.HeldOutSplit(), Corpus(names, options)
            shown.relabel("reading", source.size or None)
            return split.training(_with_progress(source, shown))

        tokenizer = tokenizer_training.train(documents, kind, vocab_size, cased, ", ".join(names))
    assert source is not None, "training reads the corpus"
    if not source.counts.kept:
        raise UserError(f"{', '.join(names)}: has no text to train a vocabulary on")
    tokenizer_training.save(tokenizer, out)
    report = tokenizer_training.evaluate(tokenizer, split.held) if split.held else None
    dropped = _describe_dropped(asdict(source.counts), names, options)
    return TrainedTokenizer(out, tokenizer, source.counts.kept, report, dropped)


def prepare(
    corpus: str | Path | Sequence[str | Path],
    tokenizer: str | Path,
    out: str | Path,
    *,
    workers: int | None = None,
    engine: str = "local",
    address: str | None = None,
    language: str = "en",
    text: str = "text",
    format: str | None = None,
    whole_files: bool = False,
    wrapped: bool = False,
    deduplicate: bool = False,
    min_characters: int = 1,
    control: str = "",
    control_default: str = "",
    progress: bool | None = None,
) -> PreparedStore:
    """Turn text files into a token store: documents, sentences, tokens. Run again after a stop, it goes on.

    `tokenizer` is the folder of a tokenizer or a model; `workers` is all cores unless given: processes, so a script
    needs the usual `if __name__ == "__main__":`. `engine="ray"` uses the Ray cluster at `address`. `language` is for
    splitting sentences. `control` says where each document's control code comes from: "folder", "file", or a column of
    its table such as "source", "url:host" or "date:year"; `control_default` is the code of documents without one. The
    others are those of `train_tokenizer`.

    >>> bertree.prepare("corpus/", "my-tokenizer", "my-store").store.tokens
    """
    names, out, folder = _names(corpus), Path(out), resolve_model_path(tokenizer)
    if control_default and not control:
        raise UserError("control_default: needs control, which says where the codes come from")
    options = CorpusOptions(text, format, whole_files, wrapped, deduplicate, min_characters, control, control_default)
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; train a tokenizer with `bertree tokenizer train`")
    loaded = Tokenizer.load(folder)
    if loaded is None:
        raise UserError(f"{folder}: no tokenizer files in this folder; train one with `bertree tokenizer train`")
    place = choose_engine(engine, address, workers or (_cores() if engine == "local" else None))
    source, started = Corpus(names, options), time.perf_counter()
    with showing(progress), bar("preparing", source.size or None, speed="tokens", in_bytes=True) as shown:
        try:
            made = preparing.prepare(source, loaded, out, place, language=language, advance=shown.move_to)
        except KeyboardInterrupt:
            raise UserError(f"{out}: interrupted; run the same command again to go on from the last shard") from None
    size = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    tokenizer_bytes = sum(path.stat().st_size for path in (out / TOKENIZER).iterdir())
    dropped = _describe_dropped(made.summary, names, options)
    return PreparedStore(made, size, tokenizer_bytes, time.perf_counter() - started, dropped)


def verify_store(folder: str | Path, *, progress: bool | None = None) -> Store:
    """Compare every byte of a store with its checksums."""
    folder = Path(folder)
    header = read_header(folder)
    size = sum(part.size for parts in header["shards"] for part in parts.values())
    with showing(progress), bar("verifying", size, in_bytes=True) as shown:
        return stores.verify(folder, shown.advance)


def _names(corpus: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(name) for name in ([corpus] if isinstance(corpus, str | Path) else corpus)]


def _cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _rereadable_input(corpus: Sequence[str]) -> Iterator[Callable[[], object]]:
    """Copy standard input to a file without a name, if it is read; yield the function that goes back to its start."""
    if STANDARD_INPUT not in corpus:
        yield lambda: None
        return
    given = sys.stdin
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(given.buffer, copy, 1 << 20)
        sys.stdin = io.TextIOWrapper(copy)
        try:
            yield lambda: copy.seek(0)
        finally:
            sys.stdin = given


def _describe_dropped(counts: Mapping[str, int], corpus: Sequence[str], options: CorpusOptions) -> list[str]:
    passed = "" if options.format else describe_skipped(corpus)
    return [*describe_counts(counts), *([passed] if passed else [])]


def _with_progress(corpus: Corpus, shown: Bar) -> Iterable[str]:
    for number, document in enumerate(corpus.documents()):
        if number % 256 == 0:
            shown.move_to(corpus.consumed)
        yield document
    shown.relabel("learning the vocabulary")
