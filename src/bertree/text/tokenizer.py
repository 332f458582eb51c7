"""Text -> token ids, with the `tokenizers` library, from the files of a model folder.

`tokenizer.json` is used as it is. Without it the tokenizer is built from the vocabulary files of the original releases:
`vocab.txt` (WordPiece, or whole words), `vocab.json` + `merges.txt` (BPE of bytes or within words) or `spiece.model`
(Unigram, BPE, words or characters). The files a tokenizer was loaded from are kept, so that saving writes them
unchanged.
"""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, normalizers
from tokenizers import Tokenizer as Backend

from bertree.errors import UserError, WrongArgument
from bertree.errors.arguments import methods_check_arguments
from bertree.files.atomic import make_folder
from bertree.files.formats import Json, read_json
from bertree.result_table import ResultTable
from bertree.text import tokenizer_checks, vocabulary_files
from bertree.text.cleaning import SpelledWord, replace_surrogates, spell_vocabulary
from bertree.text.tokenizer_calls import Text, TokenizerCalls

JSON, CONFIG = "tokenizer.json", "tokenizer_config.json"
CHARACTERS = "max_characters_per_token"  # in the configuration of a tokenizer whose unknown words are spelled
MAX_CHARACTERS = 1024
FILES = (
    JSON,
    CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
)
PICKLES = ("vocab.pkl", "vocab.bin")  # of Transformer-XL
CANNOT_ENCODE = "a text cannot be encoded"
KINDS = {
    "mask": ("[MASK]", "<mask>"),
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "unk": ("[UNK]", "<unk>"),
}


class Encoded(NamedTuple):
    """One input as the model reads it."""

    ids: list[int]
    segments: list[int] | None  # None: all in segment 0
    dropped: int  # tokens that did not fit
    second: int = 0  # tokens before the second text of a pair without segments; 0: not needed

    @property
    def is_pair(self) -> bool:
        """Whether there are two texts."""
        return self.second > 0 or (self.segments is not None and 1 in self.segments)


@methods_check_arguments
class Tokenizer(TokenizerCalls):
    """A tokenizer and its special tokens."""

    def __init__(
        self,
        backend: Backend,
        config: Json | None = None,
        files: dict[str, bytes] | None = None,
        name: str = "tokenizer",
    ) -> None:
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.name = name  # of its file, for messages
        self.config = config or {}
        self.files = files or {}
        length = self.config.get(CHARACTERS, 0)
        self.characters = (
            length if type(length) is int and 3 <= length <= MAX_CHARACTERS else 0
        )  # 0: nothing is spelled
        self._counted = (-1, 0)  # tokens when `size` was last asked for, and what it was
        self.special = {kind: token for kind in KINDS if (token := self._find_special(kind))}

    def __repr__(self) -> str:
        return f"<bertree tokenizer: {self.kind}, {self.size:,} tokens>"

    def _repr_html_(self) -> str:
        special = ", ".join(self.special.values()) or "none"
        rows = (("kind", self.kind), ("vocabulary", f"{self.size:,} tokens"), ("special tokens", special))
        return ResultTable("tokenizer", rows).html()

    @cached_property
    def marks_special(self) -> bool:
        """Whether a single text with its special tokens is in more than one segment: XLNet's [CLS] is in segment 2."""
        with tokenizer_checks.LibraryErrors(self.name, CANNOT_ENCODE):
            return any(self.backend.encode("").type_ids)

    @property
    def cls_last(self) -> bool:
        """Whether [CLS] comes after a text, as XLNet's does, not before it."""
        with tokenizer_checks.LibraryErrors(self.name, CANNOT_ENCODE):
            special = self.backend.encode("").ids
        return self.id_of("cls") in special[-1:] and len(special) > 1 and special[0] != special[-1]

    @property
    def kind(self) -> str:
        """Name of the algorithm: WordPiece, BPE, Unigram ..."""
        return type(self.backend.model).__name__

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer | None":
        """Load the tokenizer of a folder; return None if the folder has no tokenizer files."""
        folder = Path(folder)
        try:
            files = {name: (folder / name).read_bytes() for name in FILES if (folder / name).is_file()}
        except OSError as error:
            raise UserError(f"{error.filename}: cannot be read ({error.strerror})") from None
        config = read_json(folder / CONFIG) if CONFIG in files else {}
        if JSON in files:
            name = str(folder / JSON)
            tokenizer_checks.check_json(files[JSON], name)
            with tokenizer_checks.LibraryErrors(name, "cannot be read"):
                return cls(Backend.from_buffer(files[JSON]), config, files, name)
        with tokenizer_checks.LibraryErrors(str(folder), "the tokenizer files cannot be read"):
            try:
                built = vocabulary_files.build_tokenizer(files, config)
            except UserError as error:
                raise UserError(f"{folder}: {error}") from None
        if built is not None:
            return cls(built, config, files, str(folder))
        if pickle := next((folder / name for name in PICKLES if (folder / name).exists()), None):
            raise UserError(
                f"{pickle}: is a pickle, which can run code when it is read; write its words to vocab.txt, one per "
                "line, or remove it to work with ids alone"
            )
        return None

    def with_lowercase(self) -> "Tokenizer":
        """Return a tokenizer that lower-cases every text first."""
        if self.backend.encode("ABC Äß").ids == self.backend.encode("abc äß").ids:
            return self
        with tokenizer_checks.LibraryErrors(self.name, "cannot be changed"):
            backend = Backend.from_str(self.backend.to_str())
        before = [backend.normalizer] if backend.normalizer else []
        backend.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
        return Tokenizer(backend, self.config, name=self.name)

    def encode_plain(self, texts: Sequence[str], offsets: bool = False) -> list[Encoding]:
        """Return the library's encodings of texts, without special tokens. `offsets` costs time."""
        encode = self.backend.encode_batch if offsets or self.characters else self.backend.encode_batch_fast
        with tokenizer_checks.LibraryErrors(self.name, CANNOT_ENCODE):
            return encode(list(texts), add_special_tokens=False)

    def save(self, folder: str | Path, max_length: int | None = None, segments: bool = True) -> None:
        """Write the files it was loaded from, and always a `tokenizer.json`, into a folder, which is made if need be.

        `max_length` is recorded in the configuration. `segments`: whether the model distinguishes the two texts of a
        pair, which transformers must know.
        """
        files = dict(self.files)
        if max_length is not None and CONFIG in files:
            files[CONFIG] = json.dumps(self.config | {"model_max_length": max_length}, indent=2).encode()
        if JSON not in files:
            files[JSON] = self.backend.to_str(pretty=True).encode()
        if CONFIG not in files:
            tokens: Json = {f"{kind}_token": token for kind, token in self.special.items()}
            if "sep" not in self.special and self.end_id is not None:
                tokens["eos_token"] = self.backend.id_to_token(self.end_id)
            marked = segments and any(self.backend.encode("a", "a").type_ids)
            inputs = ["input_ids", *(["token_type_ids"] if marked else []), "attention_mask"]
            new_config: Json = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
            if self.characters:
                new_config[CHARACTERS] = self.characters
            if self.cls_last:
                new_config["padding_side"] = "left"  # models read their summary at the last token of a row
            files[CONFIG] = json.dumps(new_config | tokens, indent=2).encode()
        make_folder(Path(folder))
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)

    def _find_special(self, kind: str) -> str | None:
        named = self.config.get(f"{kind}_token")
        if isinstance(named, dict):  # the long form: {"content": "[MASK]", "lstrip": ...}
            named = named.get("content")
        candidates = (named, *KINDS[kind]) if isinstance(named, str) else KINDS[kind]
        return next((token for token in candidates if self.backend.token_to_id(token) is not None), None)

    def id_of(self, kind: str) -> int | None:
        """Return the id of a special token ("mask", "pad", "cls", "sep", "unk"), or None if there is none."""
        return self.backend.token_to_id(self.special[kind]) if kind in self.special else None

    @property
    def end_id(self) -> int | None:
        """Id of the token that ends a document, if there is one."""
        named = self.config.get("eos_token")
        named = named.get("content") if isinstance(named, dict) else named
        candidates = (named, self.special.get("sep"), "<|endoftext|>", "<eos>")
        ids = (self.backend.token_to_id(token) for token in candidates if isinstance(token, str))
        return next((token_id for token_id in ids if token_id is not None), None)

    @property
    def size(self) -> int:
        """One more than the largest id."""
        count = self.backend.get_vocab_size()
        if self._counted[0] != count:  # the vocabulary of BERT takes 20 ms to walk over
            self._counted = (count, max(self.backend.get_vocab().values(), default=-1) + 1)
        return self._counted[1]

    def token(self, token_id: int) -> str:
        """Return a token as readable text, without its word-boundary marks."""
        piece = self.backend.id_to_token(token_id) if 0 <= token_id < 1 << 32 else None
        if piece is None:
            return f"<{token_id}>"
        text = self.backend.decode([token_id], skip_special_tokens=False)
        return text.strip() or piece

    @overload
    def encode(  # type: ignore[overload-overlap]  # a text is a sequence of texts too
        self, inputs: str, pair: str | None = None, *, max_length: int | None = None
    ) -> list[int]: ...
    @overload
    def encode(self, inputs: Sequence[Text], *, max_length: int | None = None) -> list[Encoded]: ...
    def encode(
        self, inputs: str | Sequence[Text], pair: str | None = None, *, max_length: int | None = None
    ) -> list[int] | list[Encoded]:
        """Return the ids of one text or pair; of a list of them, what a model reads of each (`ids`, `segments`)."""
        if isinstance(inputs, str):
            (encoded,) = self.encode_batch([inputs if pair is None else (inputs, pair)], max_length)
            return encoded.ids
        return self.encode_batch(inputs, max_length)

    def encode_batch(self, inputs: Sequence[Text], max_length: int | None = None, cut: str = "right") -> list[Encoded]:
        """Return ids and segments of texts or pairs of texts, with special tokens, truncated to `max_length`.

        `cut`: the end of a text that is dropped if it is too long, right or left.
        The longer text of a pair is truncated first, as the library would do. It is done here because the library's
        setting is shared by all users of the tokenizer, and because the library miscounts the tokens it drops from a
        pair.
        """
        cleaned = _clean(inputs)
        with tokenizer_checks.LibraryErrors(self.name, CANNOT_ENCODE):
            encode = self.backend.encode_batch if self.characters else self.backend.encode_batch_fast
            encodings = encode(cleaned)
        return [
            self._encode_truncated(text, max_length, cut)
            if max_length is not None and len(encoding) > max_length  # encoding.ids would copy them
            else self._to_encoded(encoding, text, 0)
            for text, encoding in zip(cleaned, encodings, strict=True)
        ]

    def library_encodings(self, inputs: Sequence[Text], max_length: int | None, special: bool) -> list[Encoding]:
        """Return the library's encodings of texts or pairs, with offsets, truncated to `max_length`."""
        backend = self.backend if max_length is None else self._cutting_backend
        if max_length is not None:
            room = max_length - (backend.num_special_tokens_to_add(any(isinstance(i, tuple) for i in inputs)) * special)
            self._check_room(max_length, room)
            backend.enable_truncation(max_length)
        with tokenizer_checks.LibraryErrors(self.name, CANNOT_ENCODE):
            return backend.encode_batch(_clean(inputs), add_special_tokens=special)

    @cached_property
    def _cutting_backend(self) -> Backend:
        """A copy of the library's tokenizer whose setting for truncation can be changed."""
        return Backend.from_str(self.backend.to_str())

    def _check_room(self, max_length: int, room: int) -> None:
        if room < 1:
            raise UserError(f"max_length {max_length}: leaves no room for text beside the special tokens")

    def _encode_truncated(self, text: Text, max_length: int, cut: str) -> Encoded:
        pair = isinstance(text, tuple)
        parts = self.encode_plain(text if isinstance(text, tuple) else (text,))
        room = max_length - self.backend.num_special_tokens_to_add(pair)
        self._check_room(max_length, room)
        before = sum(len(part.ids) for part in parts)
        for part, kept in zip(parts, truncated_lengths([len(part.ids) for part in parts], room), strict=True):
            part.truncate(kept, direction=cut)
        joined = self.backend.post_process(parts[0], parts[1] if pair else None)
        return self._to_encoded(joined, text, before - room)

    def _to_encoded(self, encoding: Encoding, text: Text, dropped: int) -> Encoded:
        ids = self.ids_of(encoding, text) if self.characters else encoding.ids
        if not isinstance(text, tuple):
            return Encoded(ids, encoding.type_ids if self.marks_special else None, dropped)
        segments, texts = encoding.type_ids, encoding.sequence_ids
        second = texts.index(1) if 1 not in segments and 1 in texts else 0
        return Encoded(ids, segments, dropped, second)

    def ids_of(self, encoding: Encoding, text: Text) -> list[int]:
        """Return the ids of an encoded text; unknown words are spelled, if the tokenizer does that."""
        ids, unknown = encoding.ids, self.id_of("unk")
        if not self.characters or unknown is None or unknown not in ids:
            return ids
        texts = (text,) if isinstance(text, str) else text
        spans = zip(encoding.sequence_ids, encoding.offsets, strict=True)
        return [
            SpelledWord(unknown, texts[which][start:end], self.characters) if i == unknown and which is not None else i
            for i, (which, (start, end)) in zip(ids, spans, strict=True)
        ]

    def spelling(self, length: int) -> NDArray[np.int16]:
        """Return the characters of each entry of the vocabulary (size x length)."""
        if not 3 <= length <= MAX_CHARACTERS:
            raise WrongArgument(f"length: must be from 3 to {MAX_CHARACTERS:,} characters, not {length}")
        tokens = [self.backend.id_to_token(i) or "" for i in range(self.size)]
        return spell_vocabulary(tokens, self.id_of("cls"), self.id_of("sep"), length)


def _clean(inputs: Sequence[Text]) -> list[Text]:
    return [
        (replace_surrogates(i[0]), replace_surrogates(i[1])) if isinstance(i, tuple) else replace_surrogates(i)
        for i in inputs
    ]


def truncated_lengths(lengths: Sequence[int], room: int) -> list[int]:
    """Return how many tokens to keep of one text or two, at most `room` together.

    Tokens are taken from the longer text until both are equal, then from both; an odd token stays with the longer text,
    or with the second if they are equal.
    """
    if sum(lengths) <= room:
        return list(lengths)
    if len(lengths) == 1:
        return [room]
    first, second = lengths
    short = min(first, second, room // 2)
    return [short, room - short] if first <= second else [room - short, short]
