"""Checks of untrusted tokenizer files before the `tokenizers` library reads them.

The library trusts its files: a missing token or a bad character map ends in a Rust panic, an abort or an endless
search, on loading or on some later text. So what can be checked is checked here. Parts that can do anything, such as
regular expressions, are tried in a child process with a time limit first; the usual tokenizers have none.
"""

import base64
import binascii
import hashlib
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from bertree.errors import UserError
from bertree.files.formats import Json, parse_json
from bertree.text import tokenizer_trial
from bertree.text.cleaning import WORDS

MAX_ID = 1 << 24
MAX_INSERTED = 64  # characters that a normalizer inserts
TRIAL_SECONDS = 20  # of processor time, so that a busy machine refuses nothing
TRIAL_PATIENCE = 600  # seconds
LISTS = ("normalizers", "pretokenizers", "processors", "decoders")  # members of a sequence
# Parts that take linear time and memory, whatever the text.
SAFE = {
    *("BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "Precompiled"),
    *("BertPreTokenizer", "Whitespace", "WhitespaceSplit", "Metaspace", "Punctuation", "Digits", "UnicodeScripts"),
    *("ByteLevel", "CharDelimiterSplit", "Sequence"),
}
UNUSUAL_OPTIONS = ("dropout", "fuse_unk", "byte_fallback", "ignore_merges")
SUFFIXES = (None, "", "</w>")  # of the last piece of a word
USUAL_MODELS = ("WordPiece", "BPE", "Unigram", "WordLevel")
USUAL_DECODERS = {"WordPiece", "ByteLevel", "Metaspace", "BPEDecoder"}
USUAL_PROCESSORS = {"BertProcessing", "RobertaProcessing", "TemplateProcessing", "ByteLevel", "Sequence"}
SAFE_REPLACEMENTS = (
    *(({"String": "``"}, '"'), ({"String": "''"}, '"'), ({"String": " "}, "▁")),
    *(({"Regex": " {2,}"}, " "), ({"Regex": r"\s+"}, " ")),
)
SAFE_SPLITS = ({"Regex": r"\S+\n?"}, {"Regex": WORDS})  # CTRL's words, and ELMo's
_TRIED: set[bytes] = set()  # hashes of files that passed the trial in this process


def is_panic(error: BaseException) -> bool:
    """Return whether this is a panic of a Rust library, which is no `Exception`."""
    return type(error).__name__ == "PanicException"


class LibraryErrors:
    """Turns the library's errors and panics within a `with` block into one line."""

    __slots__ = ("_name", "_what")

    def __init__(self, name: str, what: str) -> None:
        """`name`: the file, `what`: what cannot be done."""
        self._name, self._what = name, what

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, UserError | MemoryError):
            return
        if isinstance(error, Exception) or is_panic(error):
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"{self._name}: {self._what} ({reason})") from None


def check_json(data: bytes, name: str) -> None:
    """Raise a UserError for a `tokenizer.json` that the library could not survive."""
    content = parse_json(data, name)
    try:
        _check_content(content)
    except ValueError as error:
        raise UserError(f"{name}: {error}") from None
    except (KeyError, TypeError, AttributeError, IndexError):
        _try_in_child(data, name)  # not the structure of a tokenizer: the library reports what is missing
        return
    parts = [part for kind in ("normalizer", "pre_tokenizer") for part in _parts(content.get(kind))]
    if not all(map(_is_safe, parts)) or not _is_usual(content):
        _try_in_child(data, name)


def _check_content(content: Json) -> None:
    model, added = content["model"], content.get("added_tokens") or []
    vocab = model["vocab"]
    entries = [token["id"] for token in added]
    entries += vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1]
    if {*map(type, entries)} - {int}:  # looking at each takes many times as long
        entries = [entry for entry in entries if isinstance(entry, int)]
    size = 1 + max(entries, default=-1)
    if size > MAX_ID:
        raise ValueError(f"has the token id {size - 1}; at most {MAX_ID - 1} is possible")
    if isinstance(vocab, dict) and len(set(vocab.values())) < len(vocab):
        raise ValueError("model: two tokens have the same id")
    if any(token["content"] == "" for token in added):
        raise ValueError("added_tokens: a token has no content")
    _check_unknown(model)
    _check_merges(model)
    for part in _parts(content.get("normalizer")):
        if part.get("type") == "Precompiled":
            _check_encoded_charsmap(part["precompiled_charsmap"])
        for key in ("content", "prepend"):
            if len(str(part.get(key, ""))) > MAX_INSERTED:
                raise ValueError(f"normalizer: {key} has more than {MAX_INSERTED} characters")
    for part in _parts(content.get("post_processor")):
        _check_processor(part, size)


def _check_unknown(model: Json) -> None:
    kind, vocab = model.get("type"), model["vocab"]
    if kind in ("WordPiece", "WordLevel", None) and isinstance(vocab, dict) and "merges" not in model:
        unknown = model.get("unk_token")
        if isinstance(unknown, str) and unknown not in vocab:
            raise ValueError(f"model: the unknown token {unknown!r} is not in the vocabulary")
    elif kind == "Unigram":
        if not vocab:
            raise ValueError("model: the vocabulary is empty")
        if model.get("unk_id") is None and not model.get("byte_fallback"):
            raise ValueError("model: unk_id is missing, so unknown characters cannot be encoded")


def _check_merges(model: Json) -> None:
    """Check that the merges of byte-pair encoding are of tokens in the vocabulary, and so are their results."""
    vocab, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
    for merge in model.get("merges") or []:
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if len(pair) != 2:
            raise ValueError(f"model: the merge {str(merge)[:60]!r} is not a pair of tokens")
        first, second = pair
        for token in (first, second, first + second[len(prefix) :]):
            if token not in vocab:
                raise ValueError(f"model: the merge {str(merge)[:60]!r} needs {token[:60]!r}, not in the vocabulary")


def _check_processor(part: Json, size: int) -> None:
    if part.get("type") in ("BertProcessing", "RobertaProcessing"):
        _check_ids([part["sep"][1], part["cls"][1]], size)
    elif part.get("type") == "TemplateProcessing":
        special = part["special_tokens"]
        for token in special.values():
            _check_ids(token["ids"], size)
        for template, sequences in (("single", {"A"}), ("pair", {"A", "B"})):
            used = set()
            for piece in part[template]:
                if "SpecialToken" in piece and (name := piece["SpecialToken"]["id"]) not in special:
                    raise ValueError(f"post_processor: {template} uses {name!r}, which is not in special_tokens")
                if "Sequence" in piece:
                    used.add(piece["Sequence"]["id"])
            if used != sequences:
                wanted = " and ".join(sorted(sequences))
                raise ValueError(f"post_processor: {template} must have the sequence {wanted}")


def _check_ids(ids: list[Any], size: int) -> None:
    for token in ids:
        if isinstance(token, int) and not 0 <= token < size:
            raise ValueError(f"post_processor: the token id {token} is not in the vocabulary")


def _parts(tree: Any) -> Iterator[Json]:
    """Yield a part of the pipeline and, of a sequence, its members."""
    waiting = [tree]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
            waiting += [member for key in LISTS for member in part.get(key) or []]


def _is_usual(content: Json) -> bool:
    """Return whether model, decoder and template are among those that published tokenizers have."""
    model = content["model"]
    kind = model.get("type")
    if kind not in USUAL_MODELS or any(model.get(key) for key in UNUSUAL_OPTIONS):
        return False
    if kind == "BPE" and (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix") not in SUFFIXES):
        return False
    decoders = {str(part.get("type")) for part in _parts(content.get("decoder"))}
    processors = {str(part.get("type")) for part in _parts(content.get("post_processor"))}
    return decoders <= USUAL_DECODERS and processors <= USUAL_PROCESSORS


def _is_safe(part: Json) -> bool:
    if part.get("type") == "Replace":
        return (part.get("pattern"), part.get("content")) in SAFE_REPLACEMENTS
    if part.get("type") == "Split":
        return part.get("pattern") in SAFE_SPLITS
    return isinstance(kind := part.get("type"), str) and kind in SAFE


def _check_encoded_charsmap(text: str | None) -> None:
    if text is None:
        return
    try:
        check_charsmap(base64.b64decode(text, validate=True))
    except (ValueError, binascii.Error) as error:
        raise ValueError(f"normalizer: precompiled_charsmap is damaged ({error})") from None


def check_charsmap(data: bytes) -> None:
    """Raise a ValueError for a character map of SentencePiece that leads outside itself.

    It is the size of a double-array trie in bytes, the trie, and the replacements, which end in zero bytes each. A unit
    of the trie has 8 bits of label, a bit that says that it has a value, and the offset of its children; a unit with
    the highest bit is a value: the place of a replacement. Walking may go from a unit to any of 256 children.
    """
    size = int.from_bytes(data[:4], "little")
    if not 1024 <= size <= len(data) - 4 or size % 4:
        raise ValueError("the size of its trie is wrong")
    units = np.frombuffer(data, "<u4", size // 4, 4).astype(np.int64)
    text = np.frombuffer(data, np.uint8, offset=4 + size)
    try:
        data[4 + size :].decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("its replacements are not UTF-8") from None
    walked = units >> 31 == 0
    walked[0] = True  # the root, whatever bits it has
    offsets = (units >> 10) << ((units & (1 << 9)) >> 6)
    children = np.arange(units.size) ^ offsets
    if bool((walked & ((children | 0xFF) >= units.size)).any()):
        raise ValueError("its trie leads outside itself")
    values = units[children[walked & (units & (1 << 8) != 0)]] & (1 << 31) - 1
    if int(values.max(initial=0)) > text.size:
        raise ValueError("a replacement lies outside it")
    inside = values[values < text.size]
    if bool((text[inside] & 0xC0 == 0x80).any()):
        raise ValueError("a replacement begins inside a character")


def check_scores(scores: list[float]) -> None:
    """Raise a ValueError for scores of Unigram pieces that cannot be compared."""
    if not all(map(math.isfinite, scores)):
        raise ValueError("a score is not a number")


def _try_in_child(data: bytes, name: str) -> None:
    """Encode some texts in a child process, which may crash or never end; the same bytes are tried once."""
    digest = hashlib.sha256(data).digest()
    if digest in _TRIED:
        return
    command = [sys.executable, "-P", tokenizer_trial.__file__, str(TRIAL_SECONDS)]
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}
    try:
        result = subprocess.run(command, input=data, capture_output=True, timeout=TRIAL_PATIENCE, env=environment)
    except subprocess.TimeoutExpired:
        result = None
    if result is None or result.returncode == -signal.SIGXCPU:
        raise UserError(f"{name}: encoding a few short texts with it does not end; is it damaged?")
    if result.returncode:
        try:
            reason = json.loads(result.stdout)
        except ValueError:
            reason = f"it crashes with code {result.returncode}"
        unreadable = result.returncode == tokenizer_trial.UNREADABLE
        what = "cannot be read" if unreadable else "short texts cannot be encoded with it"
        raise UserError(f"{name}: {what} ({reason})")
    _TRIED.add(digest)
