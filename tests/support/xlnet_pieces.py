"""A small SentencePiece model with XLNet's symbols."""

import io
import random

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
