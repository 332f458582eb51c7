"""From text files to a tokenizer and a token store: `bertree.train_tokenizer`, `bertree.prepare`."""

import io
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bertree.config.names import resolve_model_path
from bertree.console import Bar, bar, showing
from bertree.data.store import Store
from bertree.data.store_builder import build_store
from bertree.data.store_files import TOKENIZER
from bertree.engines.local import available_cores, choose_engine
from bertree.errors import Interrupted, UserError
from bertree.result_table import ResultTable, ShownAsTable
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus, CorpusOptions, describe_counts
from bertree.text.memory import Rows, takes_rows, task_fields
from bertree.text.sources import STANDARD_INPUT, describe_skipped
from bertree.text.tokenizer import Tokenizer
from bertree.text.tokenizer_training import TokenizerReport

HELD_OUT_EVERY = tokenizer_training.HeldOutSplit().every  # one document in this many is held out


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedTokenizer(ShownAsTable):
    """A tokenizer in its folder, its report on held-out documents, and what was left out of the corpus."""

    folder: Path
    tokenizer: Tokenizer
    documents: int  # of the corpus
    report: TokenizerReport | None  # None: too few documents to hold any out
    dropped: list[str]  # readable lines, one per reason

    def _result_table(self) -> ResultTable:
        rows = [("kind", self.tokenizer.kind), ("vocabulary", f"{self.tokenizer.size:,}")]
        rows += [("documents", f"{self.documents:,}"), *(("left out", line) for line in self.dropped)]
        rows += [("tokens a word", f"{self.report.fertility:.3f}")] if self.report else []
        return ResultTable(f"tokenizer {self.folder}", rows)


@dataclass(frozen=True, kw_only=True, repr=False)
class PreparedStore(ShownAsTable):
    """A token store in its folder, its size on disk, and what was left out of the corpus."""

    store: Store  # `documents`, `sentences`, `tokens`
    bytes: int  # on disk, without the tokenizer
    tokenizer_bytes: int
    seconds: float
    dropped: list[str]  # readable lines, one per reason

    def _result_table(self) -> ResultTable:
        rows = [(name, f"{getattr(self.store, name):,}") for name in ("documents", "sentences", "tokens")]
        rows += [("MB", f"{self.bytes / 1e6:,.1f}"), *(("left out", line) for line in self.dropped)]
        return ResultTable(f"token store {self.store.name}", rows)


@takes_rows(corpus=task_fields, several=["corpus"])
def train_tokenizer(
    corpus: str | Path | Sequence[str | Path] | Rows,
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

    `corpus` are files, folders or globs; `kind` is wordpiece (BERT), bpe (RoBERTa), unigram (ALBERT), xlnet, words
    (ELMo) or bytes; `cased` keeps capitals (default: as usual for the kind). `text` is the field of JSON, CSV and
    parquet records; `format` is the format of files whose suffix does not say it; with `whole_files` a text file is one
    document; with `wrapped` a single line end is a space.

    >>> bertree.train_tokenizer("corpus/", "my-tokenizer", kind="wordpiece", vocab_size=30_000).report.fertility
    """
    names, out = _names(corpus), Path(out)
    options = CorpusOptions(
        field=text,
        format=format,
        whole_files=whole_files,
        wrapped=wrapped,
        deduplicate=deduplicate,
        min_characters=min_characters,
    )
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
    return TrainedTokenizer(
        folder=out, tokenizer=tokenizer, documents=source.counts.kept, report=report, dropped=dropped
    )


@takes_rows(corpus=task_fields, several=["corpus"])
def prepare(
    corpus: str | Path | Sequence[str | Path] | Rows,
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
    given: str = "",
    progress: bool | None = None,
) -> PreparedStore:
    """Turn text files into a token store: documents, sentences, tokens. An interrupted call resumes when repeated.

    `tokenizer` is the folder of a tokenizer or a model. `workers` are processes and default to all cores;
    `engine="ray"` uses the Ray cluster at `address`. `language` is for splitting sentences. `control` says where each
    document's control code comes from: "folder", "file", or a column of its table such as "source", "url:host" or
    "date:year"; `control_default` is the code of documents without one. `given` is a column whose text follows the
    code, such as "url"; neither is predicted. The other options are those of `train_tokenizer`.

    >>> bertree.prepare("corpus/", "my-tokenizer", "my-store").store.tokens
    """
    names, out, folder = _names(corpus), Path(out), resolve_model_path(tokenizer)
    if control_default and not control:
        raise UserError("control_default: needs control, which says where the codes come from")
    if given and not control:
        raise UserError("given: the text follows a control code; give `control` too, for example control=file")
    options = CorpusOptions(
        field=text,
        format=format,
        whole_files=whole_files,
        wrapped=wrapped,
        deduplicate=deduplicate,
        min_characters=min_characters,
        given=given,
        control=control,
        control_default=control_default,
    )
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; train a tokenizer with `bertree tokenizer train`")
    loaded = Tokenizer.load(folder)
    if loaded is None:
        raise UserError(f"{folder}: no tokenizer files in this folder; train one with `bertree tokenizer train`")
    workers_engine = choose_engine(engine, address, workers or (available_cores() if engine == "local" else None))
    source, started = Corpus(names, options), time.perf_counter()
    with showing(progress), bar("preparing", source.size or None, speed="tokens", in_bytes=True) as shown:
        try:
            store = build_store(
                source,
                loaded,
                out,
                workers_engine,
                language=language,
                tokenizer_name=str(folder),
                advance=shown.move_to,
            )
        except KeyboardInterrupt:
            raise Interrupted(
                f"{out}: interrupted; run the same command again to resume after the last shard"
            ) from None
    size = sum(path.stat().st_size for path in out.iterdir() if path.is_file())
    tokenizer_bytes = sum(path.stat().st_size for path in (out / TOKENIZER).iterdir())
    return PreparedStore(
        store=store,
        bytes=size,
        tokenizer_bytes=tokenizer_bytes,
        seconds=time.perf_counter() - started,
        dropped=_describe_dropped(store.summary, names, options),
    )


def _names(corpus: str | Path | Sequence[str | Path]) -> list[str]:
    if corpus is None:
        raise UserError("corpus: give files of text, or rows")
    return [str(name) for name in ([corpus] if isinstance(corpus, str | Path) else corpus)]


@contextmanager
def _rereadable_input(corpus: Sequence[str]) -> Iterator[Callable[[], object]]:
    """Copy standard input, if it is read, to a temporary file; yield a function that rewinds it."""
    if STANDARD_INPUT not in corpus:
        yield lambda: None
        return
    original = sys.stdin
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(original.buffer, copy, 1 << 20)
        sys.stdin = io.TextIOWrapper(copy)
        try:
            yield lambda: copy.seek(0)
        finally:
            sys.stdin = original


def _describe_dropped(counts: Mapping[str, int], corpus: Sequence[str], options: CorpusOptions) -> list[str]:
    skipped = "" if options.format else describe_skipped(corpus)
    return [*describe_counts(counts), *([skipped] if skipped else [])]


def _with_progress(corpus: Corpus, shown: Bar) -> Iterable[str]:
    for number, document in enumerate(corpus.documents()):
        if number % 256 == 0:
            shown.move_to(corpus.consumed)
        yield document
    shown.relabel("learning the vocabulary")
