"""The work behind the data verbs: train a tokenizer, prepare a store, verify one.

Each prints to the terminal what a person wants to know and returns what a program wants to have. Progress
bars show on a terminal only.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from bertree.config.default_model import located
from bertree.data import store as stores
from bertree.data.prepare import prepare
from bertree.data.store import TOKENIZER, Store
from bertree.errors import UserError
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus, CorpusOptions, describe_counts
from bertree.text.sources import STANDARD_INPUT, describe_skipped
from bertree.text.tokenizer import Tokenizer


def train_tokenizer(
    corpus: Sequence[str],
    out: Path,
    kind: str = "wordpiece",
    vocab_size: int = 30_000,
    lowercase: bool | None = None,
    options: CorpusOptions | None = None,
) -> tokenizer_training.TokenizerReport:
    """Train a tokenizer, save it as a folder and report on held-out documents."""
    console = Console()
    split, source = tokenizer_training.HeldOutSplit(), None
    with _rereadable(corpus) as names, _bar() as progress:
        task = progress.add_task("reading", total=None)

        def documents() -> Iterator[str]:
            nonlocal split, source
            split, source = tokenizer_training.HeldOutSplit(), Corpus(names, options)
            progress.update(task, total=source.size or None)
            return split.training(_watched(source, progress, task))

        tokenizer = tokenizer_training.train(documents, kind, vocab_size, lowercase)
    assert source is not None, "training reads the corpus"
    if not source.counts.kept:
        raise UserError(f"{source.sources[0].path}: no text in this corpus; nothing to train on")
    tokenizer_training.save(tokenizer, out)
    _say(console, f"{out}: {kind}, {tokenizer.size:,} tokens, from {source.counts.kept:,} documents")
    if tokenizer.size < vocab_size:
        _say(console, f"the corpus gives only {tokenizer.size:,} of the {vocab_size:,} tokens asked for")
    _dropped(console, asdict(source.counts), corpus, options)
    report = tokenizer_training.evaluate(tokenizer, split.held)
    if not split.held:
        _say(console, f"fewer than {split.every} documents: none held out, so there is nothing to report on")
        return report
    table = Table("on held-out text", "", box=None)
    table.add_row("documents", f"{report.documents:,}")
    table.add_row("fertility (tokens per word)", f"{report.fertility:.3f}")
    table.add_row("unknown tokens", f"{report.unknown_rate:.4%}")
    table.add_row("compression (bytes per token)", f"{report.compression:.2f}")
    console.print(table)
    return report


def prepare_store(
    corpus: Sequence[str],
    tokenizer: Path,
    out: Path,
    workers: int = 1,
    language: str = "en",
    options: CorpusOptions | None = None,
) -> Store:
    """Make a token store, or go on making it."""
    console = Console()
    tokenizer = located(tokenizer)
    if not tokenizer.is_dir():
        raise UserError(f"{tokenizer}: no such folder; train a tokenizer with `bertree tokenizer train`")
    loaded = Tokenizer.load(tokenizer)
    if loaded is None:
        raise UserError(f"{tokenizer}: no tokenizer files in this folder; train one with `bertree tokenizer train`")
    source = Corpus(corpus, options)
    started = time.perf_counter()
    try:
        with _bar(TextColumn("{task.fields[rate]}")) as progress:
            task = progress.add_task("preparing", total=source.size or None, rate="")
            first: tuple[float, int] | None = None  # a run that goes on does not start from nothing

            def advance(consumed: int, tokens: int) -> None:
                nonlocal first
                now = time.perf_counter()
                first = first or (now, tokens)
                rate = (tokens - first[1]) / max(now - first[0], 1e-9)
                progress.update(task, completed=consumed, rate=f"{rate:,.0f} tokens/s")

            made = prepare(source, loaded, out, workers, language=language, advance=advance)
    except KeyboardInterrupt:
        raise UserError(f"{out}: interrupted; run the same command again to go on from the last shard") from None
    size = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    beside = sum(path.stat().st_size for path in (out / TOKENIZER).iterdir())
    _say(
        console,
        f"{out}: {_contents(made)}, {size / made.tokens:.2f} bytes per token "
        f"(and {beside / 1e6:.1f} MB of tokenizer), in {time.perf_counter() - started:.1f} s",
    )
    _dropped(console, made.summary, corpus, options)
    return made


def verify_store(folder: Path) -> Store:
    """Check every byte of a store."""
    header = stores.read_header(folder)
    size = sum(part.size for parts in header["shards"] for part in parts.values())
    with _bar() as progress:
        task = progress.add_task("verifying", total=size)
        checked = stores.verify(folder, lambda count: progress.advance(task, count))
    _say(Console(), f"{folder}: whole; {_contents(checked)}, content {checked.fingerprint[:16]}")
    return checked


def _contents(store: Store) -> str:
    shards = f"{len(store.shards)} shard{'s' if len(store.shards) != 1 else ''}"
    return f"{store.documents:,} documents, {store.sentences:,} sentences, {store.tokens:,} tokens in {shards}"


def _say(console: Console, line: str) -> None:
    """One line, also where it is longer than the terminal is wide; a name in it is never taken for markup."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _rereadable(corpus: Sequence[str]) -> Iterator[list[str]]:
    """The names of a corpus that can be read twice: standard input is put into a file first."""
    if STANDARD_INPUT not in corpus:
        yield list(corpus)
        return
    with tempfile.NamedTemporaryFile(suffix=".txt") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
        copy.flush()
        yield [copy.name if name == STANDARD_INPUT else name for name in corpus]


def _dropped(console: Console, counts: Mapping[str, int], corpus: Sequence[str], options: CorpusOptions | None) -> None:
    passed = "" if options and options.format else describe_skipped(corpus)
    for line in [*describe_counts(counts), *([passed] if passed else [])]:
        _say(console, f"  {line}")


@contextmanager
def _bar(*more: TextColumn) -> Iterator[Progress]:
    """A progress bar on standard error, silent where that is not a terminal."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        *more,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as progress:
        yield progress


def _watched(corpus: Corpus, progress: Progress, task: TaskID) -> Iterable[str]:
    for number, document in enumerate(corpus.documents()):
        if number % 256 == 0:
            progress.update(task, completed=corpus.consumed)
        yield document
    progress.update(task, description="learning the vocabulary", total=None)
