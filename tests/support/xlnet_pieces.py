"""A small SentencePiece model with XLNet's symbols, and the steps of XLNet's authors around SentencePiece."""

import io
import random
import unicodedata

import sentencepiece

CONTROL = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]
OWN = ["<eop>", ".", "(", ")", '"', "-", "–", "£", "€"]
WORDS = [
    *("river", "rivers", "the", "sea", "Sea", "naive", "mail", "e-mail", "people", "running", "run", "Paris."),
    *("9", "500", "1,000", "2010,", "12,", "3,", "(a)", '"so"'),
]


def small_model(vocab_size: int = 110) -> bytes:
    """Train a model with XLNet's special pieces, and with pieces of a digit and a comma."""
    draw = random.Random(0)
    lines = [" ".join(draw.choices(WORDS, k=8)) for _ in range(600)]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=vocab_size, hard_vocab_limit=False,
        minloglevel=2, normalization_rule_name="nmt_nfkc", control_symbols=CONTROL, user_defined_symbols=OWN,
        num_threads=1,  # several threads add up in any order, so the scores differ from run to run
    )  # fmt: skip
    return model.getvalue()


def author_text(text: str, lower: bool = False) -> str:
    """Do what the authors do with a text before SentencePiece reads it."""
    text = " ".join(text.split()).replace("``", '"').replace("''", '"')
    text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return text.lower() if lower else text


def ends_in_digit_and_comma(piece: str) -> bool:
    """Return whether the authors divide this piece again."""
    return len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit()


def author_ids(model: sentencepiece.SentencePieceProcessor, text: str, lower: bool = False) -> list[int]:
    """Return the ids without special tokens; a piece that ends in a digit and a comma is divided again without it."""
    pieces: list[str] = []
    for piece in model.encode(author_text(text, lower), out_type=str):
        if not ends_in_digit_and_comma(piece):
            pieces.append(piece)
            continue
        parts = model.encode(piece[:-1].replace("▁", ""), out_type=str)
        if piece[0] != "▁" and parts[0][0] == "▁":
            parts = [parts[0][1:], *parts[1:]] if len(parts[0]) > 1 else parts[1:]
        pieces += [*parts, ","]
    return [model.piece_to_id(piece) for piece in pieces]
