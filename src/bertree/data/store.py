"""The token store: a folder of tokenized sentences, memory-mapped, so that opening it is instant.

    store.json            what is in it; written last, so a folder without it is not a store
    tokens-00000.bin      ids, little-endian uint16 (uint32 from 65,536 ids up), no special tokens
    sentences-00000.bin   tokens in each sentence (see store_files.py)
    documents-00000.bin   sentences in each document
    controls-00000.bin    number of each document's control code, if documents have codes
    given-00000.bin       tokens of the text that follows each code, if there is one; their numbers: given-lengths-...
    words.bin             one byte per vocabulary entry: 1 if the token starts a word
    tokenizer/            the tokenizer that made it

Word boundaries follow from the vocabulary, so they cost nothing per token; a text costs little more than two bytes per
token. Nothing is compressed further, because training reads at random.
"""

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.console import bar, showing
from bertree.data.store_files import (
    ALTERED,
    CLS_LAST,
    CONTROLS,
    GIVEN,
    PARTS,
    TOKENIZER,
    WORDS,
    ControlCode,
    Prefixes,
    decode_lengths,
    dtype_for,
    fingerprint,
    read_control_codes,
    read_header,
    shard_file_name,
)
from bertree.errors import UserError
from bertree.files.formats import check_regular, file_hash
from bertree.keyed_random import Ints, cumulative_offsets
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Tokenizer

SAMPLED = 256 << 20  # bytes of ids that are compared with their checksums before they are trained on
UNFILLED = "is damaged (lengths do not fill the shard); prepare the store again"


@dataclass(frozen=True)
class EncodedLengths:
    """A file of lengths or numbers, decoded on demand."""

    path: Path
    count: int
    sha256: str

    def numbers(self) -> Ints:
        """Return the decoded numbers.

        The checksum is compared: exchanged lengths still have the right sum, and these files are small.
        """
        try:
            data = self.path.read_bytes()
            decoded = decode_lengths(data)
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read ({error.strerror})") from None
        except ValueError as error:
            raise UserError(f"{self.path}: is damaged ({error}); prepare the store again") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise UserError(f"{self.path}: {ALTERED}")
        if decoded.size != self.count:
            raise UserError(f"{self.path}: {UNFILLED}")
        return decoded

    def starts(self, total: int) -> Ints:
        """Return the offsets of `count` non-empty ranges that add up to `total`."""
        decoded = self.numbers()
        if int(decoded.min(initial=1)) < 1 or int(decoded.sum()) != total:
            raise UserError(f"{self.path}: {UNFILLED}")
        return cumulative_offsets(decoded)


class Shard:
    """Consecutive documents: ids, and where sentences and documents start."""

    def __init__(
        self, tokens: NDArray[Any], name: str, lengths: Mapping[str, EncodedLengths], sha256: str = ""
    ) -> None:
        self.tokens = tokens  # memory-mapped ids
        self.sha256 = sha256  # of their file
        self.name = name  # of the file of the ids, for messages
        self._lengths = lengths  # by kind of file: sentences, documents, controls

    def read(self, first: int, last: int, vocab_size: int) -> NDArray[Any]:
        """Return the ids from `first` to `last`, after checking that they are in the vocabulary."""
        ids = np.asarray(self.tokens[first:last])
        if int(ids.max(initial=0)) >= vocab_size:
            raise UserError(f"{self.name}: has ids outside the vocabulary; prepare the store again")
        return ids

    @cached_property
    def sentence_starts(self) -> Ints:
        """Offsets into `tokens`, one more than there are sentences."""
        return self._lengths["sentences"].starts(self.tokens.size)

    @cached_property
    def document_starts(self) -> Ints:
        """Offsets into the sentences, one more than there are documents."""
        return self._lengths["documents"].starts(self._lengths["sentences"].count)

    @cached_property
    def codes(self) -> Ints | None:
        """Number of each document's control code; None in a store without codes."""
        return self._lengths[CONTROLS].numbers() if CONTROLS in self._lengths else None

    @cached_property
    def given(self) -> Prefixes | None:
        """The given text of each document; None in a store without such texts."""
        if GIVEN[-1] not in self._lengths:
            return None
        bounds, ids = cumulative_offsets(self._lengths[GIVEN[0]].numbers()), self._lengths[GIVEN[-1]].numbers()
        if bounds[-1] != ids.size:
            raise UserError(f"{self._lengths[GIVEN[-1]].path}: {UNFILLED}")
        return Prefixes(ids, bounds)

    def load_sentence_starts(self) -> Ints:
        """Return `sentence_starts`, but do not keep them: a pass over all shards must not fill the memory."""
        kept = "sentence_starts" in vars(self)
        starts = self.sentence_starts
        if not kept:
            del vars(self)["sentence_starts"]
        return starts


class DecodedShard(Shard):
    """A shard whose offsets are in memory."""

    def __init__(
        self,
        tokens: NDArray[Any],
        name: str,
        sentence_starts: Ints,
        document_starts: Ints,
        codes: Ints | None,
        given: Prefixes | None = None,
    ) -> None:
        super().__init__(tokens, name, {})
        vars(self).update(sentence_starts=sentence_starts, document_starts=document_starts, codes=codes, given=given)

    @classmethod
    def view(cls, shard: Shard, first: int, last: int) -> "DecodedShard":
        """Return some consecutive documents of a shard."""
        documents = shard.document_starts[first : last + 1]
        sentences = shard.sentence_starts[documents[0] : documents[-1] + 1]
        codes = None if shard.codes is None else shard.codes[first:last]
        given = None if shard.given is None else shard.given.take(np.arange(first, last))
        tokens = shard.tokens[sentences[0] : sentences[-1]]
        return cls(tokens, shard.name, sentences - sentences[0], documents - documents[0], codes, given)


@dataclass(kw_only=True)
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
    complete: bool = True  # everything in the folder, not a split (see `split_held_out`)
    controls: tuple[ControlCode, ...] = ()  # its control codes; none: documents have no codes
    cls_last: bool = False  # the tokenizer puts [CLS] after the text, in a segment of its own

    @cached_property
    def prefixes(self) -> Prefixes:
        """The tokens before the texts of each control code; or before those of each document, if there are given
        texts."""
        codes = Prefixes.of(self.controls)
        given = [shard.given for shard in self.shards if shard.given is not None]
        if not given:
            return codes
        if max(int(texts.ids.max(initial=0)) for texts in given) >= self.vocab_size:
            raise UserError(f"{self.name}: has given texts outside the vocabulary; prepare it again")
        lengths = np.concatenate([texts.lengths for texts in given])
        joined = Prefixes(np.concatenate([texts.ids for texts in given]), cumulative_offsets(lengths))
        return codes.take(self.document_codes).followed_by(joined)

    @property
    def has_given(self) -> bool:
        """Whether texts that are not predicted follow the control codes."""
        return bool(self.shards) and self.shards[0].given is not None

    @cached_property
    def prefix_numbers(self) -> Ints:
        """Number of each document's prefix among `prefixes`."""
        return np.arange(self.documents) if self.has_given else self.document_codes

    @cached_property
    def document_codes(self) -> Ints:
        """Number of each document's control code, in a store that has codes."""
        codes = np.concatenate([shard.codes for shard in self.shards if shard.codes is not None])
        if int(codes.max(initial=0)) >= len(self.controls):
            raise UserError(f"{self.name}: has documents of unknown control codes; prepare it again")
        return codes

    @property
    def name(self) -> Path | str:
        """The folder of the store, for messages."""
        return self.folder or "store"

    @classmethod
    def open(cls, folder: Path | str) -> "Store":
        """Open the store of a folder.

        The header and all sizes are checked now, lengths and ids when they are read; the checksums of the ids are not
        (see `verify_store`).
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
                part: EncodedLengths(paths[part], file.count, file.sha256)
                for part, file in parts.items()
                if part != "tokens"
            }
            tokens = np.memmap(paths["tokens"], dtype=dtype_for(vocab_size), mode="r")
            shards.append(Shard(tokens, str(paths["tokens"]), lengths, parts["tokens"].sha256))
        totals = {part: sum(parts[part].count for parts in header["shards"]) for part in PARTS}
        controls = read_control_codes(header.get(CONTROLS, []), vocab_size)
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

    def check_sample(self) -> None:
        """Compare ids with their checksums before they are used: all of a small store, random shards of a large one."""
        left = SAMPLED
        for shard in random.SystemRandom().sample(self.shards, len(self.shards)):
            if left > 0 and file_hash(Path(shard.name)) != shard.sha256:
                raise UserError(f"{shard.name}: {ALTERED}")
            left -= shard.tokens.nbytes

    def load_tokenizer(self) -> Tokenizer:
        """Return the tokenizer in the store, after checking that it is the one the store was made with."""
        assert self.folder is not None, "a store on the disk has its tokenizer"
        folder = self.folder / TOKENIZER
        tokenizer = Tokenizer.load(folder) if folder.is_dir() else None
        if tokenizer is None or tokenizer_hash(tokenizer) != self.tokenizer_hash:
            what = "is missing" if tokenizer is None else "is not the tokenizer that the store was made with"
            raise UserError(f"{folder}: {what}; restore this folder, or prepare the store again")
        return tokenizer

    def require_tokenizer(self, digest: str, name: str | Path) -> None:
        """Raise an error if this is not the tokenizer the store was made with."""
        if digest != self.tokenizer_hash:
            raise UserError(f"{self.folder}: was made with another tokenizer than {name}; prepare it again")


def _check_size(path: Path, expected: int) -> Path:
    check_regular(path)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); prepare the store again") from None
    if size != expected:
        kind = "is cut off" if size < expected else "is too long"
        raise UserError(f"{path}: {kind} ({size:,} bytes, {expected:,} expected); prepare the store again")
    return path


def verify_store(folder: str | Path, *, progress: bool | None = None) -> Store:
    """Compare every byte of a store with its checksums; name the first file that differs."""
    folder = Path(folder)
    store, header = Store.open(folder), read_header(folder)
    checksums = [(folder / WORDS, header.get("words"))]
    for number, parts in enumerate(header["shards"]):
        checksums += [(folder / shard_file_name(part, number), file.sha256) for part, file in parts.items()]
    size = sum(file.size for parts in header["shards"] for file in parts.values())
    with showing(progress), bar("verifying", size, in_bytes=True) as shown:
        for path, expected in checksums:
            if file_hash(path, shown.advance) != expected:
                raise UserError(f"{path}: {ALTERED}")
    for shard in store.shards:
        assert shard.document_starts[-1] == shard.sentence_starts.size - 1
        shard.read(0, shard.tokens.size, store.vocab_size)
    if store.controls:
        assert store.document_codes.size == store.documents
        assert store.prefixes.lengths[store.prefix_numbers].size == store.documents
    if store.tokenizer_hash:
        store.load_tokenizer()
    return store
