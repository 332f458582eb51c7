"""Read the models of SentencePiece, and build tokenizers that give the same ids as SentencePiece."""

import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from bertree.errors import UserError
from bertree.text.tokenizer_checks import check_charsmap, check_scores

UNIGRAM, BPE, WORD, CHARACTER = 1, 2, 3, 4  # algorithms, as the file numbers them
NORMAL, UNKNOWN, CONTROL, OWN = 1, 2, 3, 4  # kinds of pieces; OWN: symbols that the user defined
LONGEST_PIECE = 512  # characters
SPACE = "▁"


class PieceModel(NamedTuple):
    """The contents of a SentencePiece model, as far as they are used."""

    pieces: list[tuple[str, float]]  # with their scores
    kinds: list[int]
    unknown: int  # id
    charsmap: bytes  # of the normalizer; empty: none
    algorithm: int
    byte_fallback: bool
    spaces_last: bool  # a space belongs to the word before it
    prefix: bool  # a space is put before the text
    trims: bool  # spaces at both ends are removed, and several become one


def read_sentencepiece(data: bytes) -> PieceModel:
    """Read a model; raise UserError if the file is no model, or is damaged.

    The file is one protocol-buffer message; few fields are needed, so it is parsed here.
    """
    try:
        model = _read_model(data)
    except (struct.error, IndexError, UnicodeDecodeError, ValueError):
        raise UserError("spiece.model: is not a SentencePiece model") from None
    try:
        check_scores([score for _, score in model.pieces])
        if model.charsmap:
            check_charsmap(model.charsmap)
    except ValueError as error:
        raise UserError(f"spiece.model: is damaged ({error})") from None
    return model


def _read_model(data: bytes) -> PieceModel:
    pieces, kinds = [], []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in _read_message(data):
        if field == 1 and isinstance(value, bytes):
            fields = dict(_read_message(value))
            piece, score, kind = fields.get(1, b""), fields.get(2, bytes(4)), fields.get(3, NORMAL)
            if not isinstance(piece, bytes) or not isinstance(score, bytes) or not isinstance(kind, int):
                raise ValueError("broken piece")
            pieces.append((piece.decode("utf-8"), struct.unpack("<f", score)[0]))
            kinds.append(kind)
        elif field == 2 and isinstance(value, bytes):
            trainer = dict(_read_message(value))
        elif field == 3 and isinstance(value, bytes):
            normalizer = dict(_read_message(value))
    if not pieces:
        raise ValueError("no pieces")
    charsmap, algorithm = normalizer.get(2, b""), trainer.get(3, UNIGRAM)
    return PieceModel(
        pieces,
        kinds,
        unknown=kinds.index(UNKNOWN) if UNKNOWN in kinds else 0,
        charsmap=charsmap if isinstance(charsmap, bytes) else b"",
        algorithm=algorithm if isinstance(algorithm, int) else 0,
        byte_fallback=bool(trainer.get(35, 0)),
        spaces_last=bool(trainer.get(24, 0)),
        prefix=bool(normalizer.get(3, 1)),
        trims=bool(normalizer.get(4, 1)),
    )


def build_plain(model: PieceModel) -> Tokenizer:
    """Build a tokenizer that gives the ids of SentencePiece itself, without special tokens around a text (Reformer)."""
    if model.spaces_last:
        raise UserError("spiece.model: treat_whitespace_as_suffix has no equal here")
    normal = {piece for (piece, _), kind in zip(model.pieces, model.kinds, strict=True) if kind == NORMAL}
    if max(map(len, normal), default=0) > LONGEST_PIECE:
        raise UserError(f"spiece.model: has a piece of more than {LONGEST_PIECE} characters")
    if model.algorithm == UNIGRAM:
        tokenizer = Tokenizer(models.Unigram(_unigram_scores(model), model.unknown, model.byte_fallback))
    elif model.algorithm in (BPE, CHARACTER):
        tokenizer = Tokenizer(_bpe(model, normal))
    elif model.algorithm == WORD:
        tokenizer = Tokenizer(_words(model))
    else:
        raise UserError(f"spiece.model: its algorithm {model.algorithm} is none of Unigram, BPE, words and characters")
    steps: list[Any] = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if model.trims:
        steps += [normalizers.Replace(Regex(r"\A +|[ ▁]+\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps.append(normalizers.Replace(" ", SPACE))
    if model.prefix:
        steps.append(normalizers.Prepend(SPACE))
    unframed: list[Any] = []
    if model.algorithm == WORD:
        steps += [normalizers.Replace(SPACE, f"  {SPACE}"), normalizers.Replace(Regex(r"\A +"), "")]
        steps += [normalizers.Prepend(" "), normalizers.Replace(Regex(r"\z"), " ")]
        unframed = [decoders.Replace(" ", "")]
    else:
        # Not if a piece goes beyond a word, nor for characters: unknown ones become one token, also across words.
        split = model.algorithm != CHARACTER and not any(SPACE in piece[1:] for piece in normal)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "never", split=split)
    tokenizer.normalizer = normalizers.Sequence(steps)
    strip = [decoders.Strip(" ", 1, 0)] if model.prefix else []
    tokenizer.decoder = decoders.Sequence(
        [*unframed, decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    special = [piece for (piece, _), kind in zip(model.pieces, model.kinds, strict=True) if kind in (UNKNOWN, CONTROL)]
    add_special(tokenizer, filter(None, special))
    return tokenizer


def add_special(tokenizer: Tokenizer, tokens: Iterable[str], mask: str = "") -> None:
    """Make tokens special; `mask` includes the space before it."""
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False, lstrip=t == mask) for t in tokens])


def _unigram_scores(model: PieceModel) -> list[tuple[str, float]]:
    """Return the pieces with the scores by which SentencePiece chooses: a user's own symbol wins over its parts."""
    of_kind = list(zip(model.pieces, model.kinds, strict=True))
    best = max((score for (_, score), kind in of_kind if kind == NORMAL), default=0.0)
    return [(p, len(p.encode()) * best - 0.1 if kind == OWN else s) for (p, s), kind in of_kind]


def _words(model: PieceModel) -> models.Unigram:
    """Build a model of whole words. The text has a space on both sides of each word, and so have the pieces, so that
    none matches a part of a word and a run of unknown words is one token, as in SentencePiece."""
    if model.byte_fallback:
        raise UserError("spiece.model: a model of words with byte_fallback cannot be read")
    of_kind = zip(model.pieces, model.kinds, strict=True)
    framed = [(piece if kind in (UNKNOWN, CONTROL) else f" {piece} ", 0.0) for (piece, _), kind in of_kind]
    return models.Unigram(framed, model.unknown)


def _bpe(model: PieceModel, normal: set[str]) -> models.BPE:
    """Build the merges: any two pieces whose union is a piece, the union with the highest score first; of a model of
    characters there are none."""
    if OWN in model.kinds:
        what = "BPE model" if model.algorithm == BPE else "model of characters"
        raise UserError(f"spiece.model: a {what} with symbols that its user defined cannot be read")
    vocab = {piece: number for number, (piece, _) in enumerate(model.pieces)}
    if len(vocab) < len(model.pieces):
        raise UserError("spiece.model: two pieces are the same")
    by_score = sorted((piece for piece in model.pieces if piece[0] in normal), key=lambda piece: -piece[1])
    merges = [
        (piece[:at], piece[at:])
        for piece, _ in by_score
        for at in range(1, len(piece))
        if piece[:at] in normal and piece[at:] in normal
    ]
    unknown = model.pieces[model.unknown][0]
    return models.BPE(vocab, merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback)


def _read_message(data: bytes) -> list[tuple[int, int | bytes]]:
    """Return the fields of a protocol-buffer message: numbers as int, everything else as bytes."""
    fields: list[tuple[int, int | bytes]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise ValueError("number too long")

    while at < len(data):
        key = varint()
        field, wire = key >> 3, key & 7
        if wire == 0:
            fields.append((field, varint()))
            continue
        size = {1: 8, 5: 4}.get(wire) or (varint() if wire == 2 else -1)
        if size < 0 or at + size > len(data):
            raise ValueError("broken field")
        fields.append((field, data[at : at + size]))
        at += size
    return fields
