"""The token store: a folder of tokenized sentences, memory-mapped, so that opening it is instant.

    store.json            what is in it; written last, so a folder without it is not a store
    tokens-00000.bin      ids, little-endian uint16 (uint32 from 65,536 ids up), no special tokens
    sentences-00000.bin   tokens in each sentence (see `varint`)
    documents-00000.bin   sentences in each document
    controls-00000.bin    number of each document's control code, if documents have codes
    words.bin             one byte per vocabulary entry: 1 if the token starts a word
    tokenizer/            the tokenizer that made it

Word boundaries follow from the vocabulary, so they cost nothing per token; a text costs little more than two bytes per
token. Nothing is compressed further, because training reads at random.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.data import varint
from bertree.data.controls import ControlCode, Prefixes, read_codes
from bertree.data.store_header import (
    ALTERED,
    CLS_LAST,
    CONTROLS,
    PARTS,
    TOKENIZER,
    WORDS,
    ShardFile,
    dtype_for,
    fingerprint,
    read_header,
    shard_file_name,
)
from bertree.errors import UserError
from bertree.files.formats import check_regular, file_hash
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Tokenizer

UNFILLED = "is damaged (lengths do not fill the shard); prepare the store again"


class Shard:
    """A run of whole documents: ids, and where its sentences and documents start."""

    def __init__(
        self,
        tokens: NDArray[Any],
        sentences: "EncodedLengths",
        documents: "EncodedLengths",
        name: str = "store",
        codes: "EncodedLengths | None" = None,
    ) -> None:
        self.tokens = tokens  # memory-mapped ids
        self.name = name  # of the file of the ids, for messages
        self._sentences = sentences
        self._documents = documents
        self._codes = codes

    def read(self, first: int, last: int, vocab_size: int) -> NDArray[Any]:
        """Return the ids from `first` to `last`, after checking that they are in the vocabulary."""
        ids = np.asarray(self.tokens[first:last])
        if int(ids.max(initial=0)) >= vocab_size:
            raise UserError(f"{self.name}: has ids outside the vocabulary; prepare the store again")
        return ids

    @cached_property
    def sentence_starts(self) -> varint.Lengths:
        """Offsets into `tokens`, one more than there are sentences (int64)."""
        return self._sentences.starts(self.tokens.size)

    @cached_property
    def document_starts(self) -> varint.Lengths:
        """Offsets into the sentences, one more than there are documents (int64)."""
        return self._documents.starts(self._sentences.count)

    @property
    def coded(self) -> bool:
        """Whether its documents have control codes."""
        return self._codes is not None

    @cached_property
    def codes(self) -> varint.Lengths:
        """Number of each document's control code (int64), in a store that has codes."""
        assert self._codes is not None, "the store has no control codes"
        return self._codes.numbers()


@dataclass(frozen=True)
class EncodedLengths:
    """Lengths as stored on the disk or in memory, decoded on demand."""

    count: int
    source: Path | bytes
    sha256: str = ""  # of the source, if it is to be checked

    def starts(self, total: int) -> varint.Lengths:
        """Return the offsets of `count` non-empty runs that add up to `total`."""
        decoded = self.numbers()
        if int(decoded.min(initial=1)) < 1 or int(decoded.sum()) != total:
            raise UserError(f"{self._name}: {UNFILLED}")
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(decoded)))

    @property
    def _name(self) -> Path | str:
        return self.source if isinstance(self.source, Path) else "store"

    def numbers(self) -> varint.Lengths:
        """Return the numbers themselves.

        The checksum is compared, because exchanged lengths still add up, and cost little to read.
        """
        try:
            data = self.source.read_bytes() if isinstance(self.source, Path) else self.source
            decoded = varint.decode(data)
        except OSError as error:
            raise UserError(f"{self._name}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise UserError(f"{self._name}: is damaged ({error}); prepare the store again") from None
        if self.sha256 and hashlib.sha256(data).hexdigest() != self.sha256:
            raise UserError(f"{self._name}: {ALTERED}")
        if decoded.size != self.count:
            raise UserError(f"{self._name}: {UNFILLED}")
        return decoded


@dataclass
class Store:
    """Documents of sentences of tokens, and what a batch needs to know about their vocabulary."""

    vocab_size: int
    special: dict[str, int]  # cls, sep, mask, pad, unk, as far as the vocabulary has them
    word_start: NDArray[np.bool_]  # vocab_size: whether the token starts a word
    tokens: int
    sentences: int
    documents: int
    fingerprint: str  # sha256 over the shard checksums
    shards: list[Shard]
    tokenizer_hash: str = ""
    folder: Path | None = None
    summary: dict[str, int] = field(default_factory=dict)  # what was read, left out and repaired
    complete: bool = True  # everything in the folder, not a part (see `split_held_out`)
    controls: tuple[ControlCode, ...] = ()  # its control codes; none: documents have no codes
    cls_last: bool = False  # the tokenizer puts [CLS] behind the text, in a segment of its own

    @cached_property
    def prefixes(self) -> Prefixes:
        """The tokens before the texts of each control code."""
        return Prefixes.of(self.controls)

    @cached_property
    def document_codes(self) -> varint.Lengths:
        """Number of each document's control code, in a store that has codes."""
        found = np.concatenate([shard.codes for shard in self.shards])
        if int(found.max(initial=0)) >= len(self.controls):
            raise UserError(f"{self.folder or 'store'}: has documents of unknown control codes; prepare it again")
        return found

    @classmethod
    def open(cls, folder: Path | str) -> "Store":
        """Open the store of a folder.

        The header and all sizes are checked now, lengths and ids when they are read; the checksums of the ids are not
        (see `verify`).
        """
        folder = Path(folder)
        header = read_header(folder)
        vocab_size: int = header["vocab_size"]
        words = _check_size(folder / WORDS, vocab_size).read_bytes()
        if hashlib.sha256(words).hexdigest() != header.get("words"):
            raise UserError(f"{folder / WORDS}: {ALTERED}")
        shards = []
        for number, parts in enumerate(header["shards"]):
            paths = {part: _check_size(folder / shard_file_name(part, number), parts[part].size) for part in parts}
            lengths = {
                part: EncodedLengths(parts[part].count, paths[part], parts[part].sha256)
                for part in parts
                if part != "tokens"
            }
            tokens = np.memmap(paths["tokens"], dtype=dtype_for(vocab_size), mode="r")
            name, codes = str(paths["tokens"]), lengths.get(CONTROLS)
            shards.append(Shard(tokens, lengths["sentences"], lengths["documents"], name, codes))
        totals = {part: sum(parts[part].count for parts in header["shards"]) for part in PARTS}
        controls = read_codes(header.get(CONTROLS, []), vocab_size)
        return cls(
            vocab_size=vocab_size,
            special=header["special"],
            word_start=np.frombuffer(words, dtype=np.uint8) != 0,
            fingerprint=fingerprint(header["shards"], controls),
            shards=shards,
            tokenizer_hash=header["tokenizer"],
            folder=folder,
            summary=header["summary"],
            controls=controls,
            cls_last=header.get(CLS_LAST, False),
            **totals,
        )

    @classmethod
    def from_documents(
        cls,
        documents: Sequence[Sequence[Sequence[int]]],
        *,
        vocab_size: int,
        special: Mapping[str, int],
        word_start: NDArray[np.bool_] | None = None,
        controls: Sequence[ControlCode] = (),
        codes: Sequence[int] = (),
        cls_last: bool = False,
    ) -> "Store":
        """Make a store in memory. Empty sentences and documents are left out, as on the disk.

        `codes` is the number of each document's code in `controls`, if documents have codes.
        """
        kept = [[sentence for sentence in document if len(sentence)] for document in documents]
        numbers = np.array([code for code, document in zip(codes, kept, strict=bool(controls)) if document], np.int64)
        kept = [document for document in kept if document]
        ids = [token for document in kept for sentence in document for token in sentence]
        assert all(0 <= token < vocab_size for token in ids), "ids must lie within the vocabulary"
        sentences = np.array([len(sentence) for document in kept for sentence in document], dtype=np.int64)
        counts = np.array([len(document) for document in kept], dtype=np.int64)
        tokens = np.array(ids, dtype=dtype_for(vocab_size))
        data = [tokens.tobytes(), varint.encode(sentences), varint.encode(counts)]
        sizes = (tokens.size, sentences.size, counts.size)
        parts = {
            part: ShardFile(count, len(raw), hashlib.sha256(raw).hexdigest())
            for part, count, raw in zip(PARTS, sizes, data, strict=True)
        }
        named = varint.encode(numbers)
        if controls:
            parts[CONTROLS] = ShardFile(numbers.size, len(named), hashlib.sha256(named).hexdigest())
        lengths = EncodedLengths(sentences.size, data[1]), EncodedLengths(counts.size, data[2])
        shard = Shard(tokens, *lengths, codes=EncodedLengths(numbers.size, named) if controls else None)
        return cls(
            vocab_size=vocab_size,
            special=dict(special),
            word_start=np.ones(vocab_size, np.bool_) if word_start is None else np.asarray(word_start, np.bool_),
            tokens=tokens.size,
            sentences=sentences.size,
            documents=counts.size,
            fingerprint=fingerprint([parts], controls),
            shards=[shard] if tokens.size else [],
            controls=tuple(controls),
            cls_last=cls_last,
        )

    def require_tokenizer(self, digest: str, name: str | Path) -> None:
        """Raise an error if this is not the tokenizer the store was made with."""
        if digest != self.tokenizer_hash:
            raise UserError(f"{self.folder}: was made with another tokenizer than {name}; prepare it again")


def _check_size(path: Path, size: int) -> Path:
    check_regular(path)
    try:
        found = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); prepare the store again") from None
    if found != size:
        kind = "is cut off" if found < size else "is too long"
        raise UserError(f"{path}: {kind} ({found:,} bytes, {size:,} expected); prepare the store again")
    return path


def verify(folder: Path, advance: Callable[[int], None] = lambda count: None) -> Store:
    """Read the whole store and compare every checksum; name the first file that differs."""
    store = Store.open(folder)
    header = read_header(folder)
    checks = [(folder / WORDS, header.get("words"))]
    for number, parts in enumerate(header["shards"]):
        checks += [(folder / shard_file_name(part, number), file.sha256) for part, file in parts.items()]
    for path, expected in checks:
        if file_hash(path, advance) != expected:
            raise UserError(f"{path}: {ALTERED}")
    for shard in store.shards:
        assert shard.document_starts[-1] == shard.sentence_starts.size - 1
        shard.read(0, shard.tokens.size, store.vocab_size)
    if store.controls:
        assert store.document_codes.size == store.documents
    copy = folder / TOKENIZER
    tokenizer = Tokenizer.load(copy) if copy.is_dir() else None
    if tokenizer is not None:
        store.require_tokenizer(tokenizer_hash(tokenizer), copy)
    return store
