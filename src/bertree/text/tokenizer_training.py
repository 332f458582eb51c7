"""Train a tokenizer: BERT's WordPiece, RoBERTa's byte-level BPE, ALBERT's or XLNet's Unigram, ELMo's words, or bytes.

The algorithms are those of the `tokenizers` library. This module adds the family's normalization, special tokens and
template, and a report on held-out documents.

The library's WordPiece and Unigram trainers give different ids on every run, because they number pieces in the order of
a hash table. Here the same text always gives the same tokenizer: WordPiece is given its alphabet, which takes a second
pass over the text, and Unigram's pieces are sorted afterwards.
"""

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from bertree.errors import UserError, suggest
from bertree.files.atomic import new_folder
from bertree.text import vocabulary_files
from bertree.text.tokenizer import CONFIG, JSON, Tokenizer

BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
ALBERT = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
NAMES = {
    "wordpiece": BERT,
    "bpe": ROBERTA,
    "unigram": ALBERT,
    "xlnet": vocabulary_files.XLNET,
    "words": vocabulary_files.ELMO,
    "bytes": vocabulary_files.BYTE_SPECIAL,
}
OF_BYTES = ("bpe", "bytes")
CASED = (*OF_BYTES, "xlnet", "words")  # kinds that keep capitals unless asked not to
HELD_OUT = 20  # every n-th document is held out for the report
HELD_OUT_CHARACTERS = 4_000_000  # at most, to bound the memory
BYTES = 256
LONG_LINE, LONG_WORD = 4096, 1000  # characters
WORD_RUN = re.compile(rf"[^\W_]{{{LONG_WORD}}}(?=[^\W_])")
Documents = Callable[[], Iterable[str]]


@dataclass(frozen=True, kw_only=True)
class TokenizerReport:
    """Figures of a tokenizer on held-out text."""

    documents: int
    words: int
    tokens: int
    unknown: int
    size: int  # bytes of UTF-8

    @property
    def fertility(self) -> float:
        """Tokens per word; words are separated by white space."""
        return self.tokens / max(self.words, 1)

    @property
    def unknown_rate(self) -> float:
        """Share of tokens that are the unknown token."""
        return self.unknown / max(self.tokens, 1)

    @property
    def compression(self) -> float:
        """Bytes of text per token."""
        return self.size / max(self.tokens, 1)


@dataclass
class HeldOutSplit:
    """Holds out every n-th document and passes the others on."""

    every: int = HELD_OUT
    held: list[str] = field(default_factory=list)
    passed: int = 0
    characters: int = 0

    def training(self, documents: Iterable[str]) -> Iterator[str]:
        """Yield the documents to train on."""
        for number, document in enumerate(documents, start=1):
            if number % self.every == 0 and self.characters < HELD_OUT_CHARACTERS:
                self.held.append(document)
                self.characters += len(document)
            else:
                self.passed += 1
                yield document


def train(
    documents: Documents, kind: str, vocab_size: int, cased: bool | None = None, name: str = "corpus"
) -> Tokenizer:
    """Train a tokenizer of one of the kinds; the vocabulary is smaller if the text does not yield more.

    `documents` starts a new pass over the text on each call; `name` stands for them in messages. `cased` defaults to
    False for WordPiece and Unigram, as in BERT-uncased and ALBERT, and to True for XLNet's Unigram. Byte-level BPE and
    bytes are always cased.
    """
    if kind not in NAMES:
        raise UserError(f"tokenizer kind '{kind}': unknown; {suggest(kind, NAMES)}")
    least = len(NAMES[kind]) + (BYTES if kind in OF_BYTES else 1)
    if not least <= vocab_size <= 1_000_000:
        raise UserError(f"vocab_size {vocab_size}: must be between {least} and 1,000,000 for {kind}")
    if kind in OF_BYTES and cased is False:
        what = "byte-level BPE" if kind == "bpe" else "a tokenizer of bytes"
        raise UserError(f"cased: {what} keeps case; choose wordpiece or unigram, or drop this option")
    if kind == "words" and cased is False:
        raise UserError("cased: words are spelled as they stand in the text; choose wordpiece, or drop this option")
    lower = kind not in CASED if cased is None else not cased
    if kind == "bytes":
        for _ in documents():  # counted, and held out for the report
            pass
        return Tokenizer(vocabulary_files.build_bytes(), vocabulary_files.BYTE_CONFIG)
    make = {"wordpiece": _wordpiece, "bpe": _bpe, "words": _words}.get(kind) or partial(_unigram, special=NAMES[kind])
    try:
        backend = make(documents, vocab_size, lower)
    except UserError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise UserError(f"{name}: a {kind} vocabulary cannot be trained on this text ({error})") from None
    if backend.get_vocab_size() <= len(NAMES[kind]):
        raise UserError(f"{name}: has no text to train a vocabulary on")
    if kind == "words":
        return Tokenizer(backend, vocabulary_files.ELMO_CONFIG)
    if kind == "bpe":
        vocabulary_files.set_roberta_template(backend)
    elif kind == "xlnet":
        vocabulary_files.set_xlnet_template(backend)
    else:
        vocabulary_files.set_bert_template(backend, mask_takes_space=kind == "unigram")
    return Tokenizer(backend, _config(kind, lower))


def _lines(documents: Documents) -> Iterator[str]:
    for document in documents():
        for line in document.split("\n"):
            yield from (line,) if len(line) <= LONG_WORD else _cut_long(line)


def _cut_long(line: str) -> Iterator[str]:
    """Cut a long line at white space, which changes no word, and put spaces into very long words.

    The trainers' time grows with the square of the length of a word, and long lines are slow too.
    """
    line = WORD_RUN.sub(r"\g<0> ", line)
    start = 0
    while len(line) - start > LONG_LINE:
        space = line.rfind(" ", start + 1, start + LONG_LINE)
        end = space if space > 0 else start + LONG_LINE
        yield line[start:end]
        start = end
    yield line[start:]


def _wordpiece(documents: Documents, vocab_size: int, lower: bool) -> Backend:
    normalizer = normalizers.BertNormalizer(lowercase=lower)

    def assemble(model: models.WordPiece) -> Backend:
        backend = Backend(model)
        backend.normalizer = normalizer
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##")
        return backend

    # A rare script must not crowd out the vocabulary: characters beyond these are [UNK].
    limit = max(1, min(1000, (vocab_size - len(BERT)) // 2))
    alphabet, inner = wordpiece_alphabet(map(normalizer.normalize_str, _lines(documents)), limit)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        # Given as special tokens, the inner letters get their ids in this order; they are not special below.
        special_tokens=[*BERT, *(f"##{letter}" for letter in inner)],
        min_frequency=2,
        limit_alphabet=limit,
        initial_alphabet=alphabet,
        continuing_subword_prefix="##",
        show_progress=False,
    )
    learner = assemble(models.WordPiece(unk_token="[UNK]"))
    learner.train_from_iterator(_lines(documents), trainer)
    vocab = learner.get_vocab(with_added_tokens=True)
    return assemble(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))


def wordpiece_alphabet(lines: Iterable[str], limit: int) -> tuple[list[str], list[str]]:
    """Return the most frequent characters of normalized lines, and those among them that occur within words."""
    counts: Counter[str] = Counter()
    inside: set[str] = set()
    spaces = _PunctuationMap()
    for line in lines:
        counts.update(line)
        for word in line.translate(spaces).split():
            inside.update(word[1:])
    letters = [letter for letter in counts if not letter.isspace()]
    alphabet = sorted(sorted(letters, key=lambda letter: (-counts[letter], letter))[:limit])
    return alphabet, [letter for letter in alphabet if letter in inside]


class _PunctuationMap(dict[int, int | str]):
    """Maps punctuation as BERT defines it (all ASCII symbols too) to a space."""

    def __missing__(self, code: int) -> int | str:
        character = chr(code)
        symbol = code < 128 and not character.isalnum()
        self[code] = " " if symbol or unicodedata.category(character)[0] == "P" else code
        return self[code]


def _bpe(documents: Documents, vocab_size: int, lower: bool) -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=ROBERTA,
        min_frequency=2,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_lines(documents), trainer)
    return backend


def _words(documents: Documents, vocab_size: int, lower: bool) -> Backend:
    """Count words; their ids are in the order of their frequency, as an adaptive softmax needs them."""
    special = vocabulary_files.ELMO
    counter = vocabulary_files.build_words({token: number for number, token in enumerate(special)})
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    counter.train_from_iterator(_lines(documents), trainer)
    return vocabulary_files.build_words(counter.get_vocab(with_added_tokens=False))


def _unigram(documents: Documents, vocab_size: int, lower: bool, special: list[str]) -> Backend:
    backend = Backend(models.Unigram())
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lower:
        steps.append(normalizers.Lowercase())
    # The original's character map is NFKC with uniform white space; these two steps do the same.
    steps += [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")]
    backend.normalizer = normalizers.Sequence(steps)
    vocabulary_files.split_at_spaces(backend)
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(_lines(documents), trainer)
    pieces = json.loads(backend.to_str())["model"]["vocab"]
    ordered = [*pieces[: len(special)], *_sort_pieces(pieces[len(special) :])]
    backend.model = models.Unigram([(piece, score) for piece, score in ordered], unk_id=special.index("<unk>"))
    return backend


def _sort_pieces(pieces: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Sort Unigram pieces and remove what depends on the order of a hash table.

    Sums taken in another order differ in their last digits, so scores are rounded. Letters that training left without a
    score get the lowest one, then 0.0001 more each, in the order they come: here in alphabetical order.
    """
    scores = {piece: round(score, 6) for piece, score in pieces}
    lowest, step = min(scores.values(), default=0.0), 0
    letters: dict[str, float] = {}
    while level := {p: s for p, s in scores.items() if len(p) == 1 and abs(s - lowest - step * 1e-4) < 2e-6}:
        letters |= level
        step += 1
    scores |= dict(zip(sorted(letters), sorted(letters.values(), reverse=True), strict=True))
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _config(kind: str, lower: bool) -> dict[str, Any]:
    """Return what Hugging Face's AutoTokenizer needs beside tokenizer.json."""
    names = {"bpe": ["input_ids", "attention_mask"]}.get(kind, ["input_ids", "token_type_ids", "attention_mask"])
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names}
    config |= {"clean_up_tokenization_spaces": False, "do_lower_case": lower}
    if kind == "xlnet":  # its summary is read at the last token
        config["padding_side"] = "left"
    start, pad, end, unknown, mask = _special_tokens(kind)
    return config | {
        "cls_token": start,
        "pad_token": pad,
        "sep_token": end,
        "unk_token": unknown,
        "mask_token": mask,
    }


def _special_tokens(kind: str) -> tuple[str, str, str, str, str]:
    if kind == "bpe":
        return "<s>", "<pad>", "</s>", "<unk>", "<mask>"
    if kind == "xlnet":
        return "<cls>", "<pad>", "<sep>", "<unk>", "<mask>"
    pad, unknown = NAMES[kind][:2]
    return "[CLS]", pad, "[SEP]", unknown, "[MASK]"


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, both or neither."""
    with new_folder(folder, (JSON, CONFIG)) as work:
        (work / JSON).write_text(tokenizer.backend.to_str(), encoding="utf-8")
        (work / CONFIG).write_text(json.dumps(tokenizer.config, indent=2), encoding="utf-8")


def evaluate(tokenizer: Tokenizer, documents: list[str]) -> TokenizerReport:
    """Measure fertility, unknown rate and compression on documents."""
    unknown_id = tokenizer.id_of("unk")
    tokens = unknown = 0
    for start in range(0, len(documents), 64):
        batch = documents[start : start + 64]
        for encoding in tokenizer.encode_plain(batch):
            tokens += len(encoding.ids)
            unknown += sum(token == unknown_id for token in encoding.ids)
    return TokenizerReport(
        documents=len(documents),
        words=sum(len(document.split()) for document in documents),
        tokens=tokens,
        unknown=unknown,
        size=sum(len(document.encode()) for document in documents),
    )
