"""Tokenizers of GPT-1 and CTRL: byte-pair encoding within words, whose last piece is marked.

Both learn merges of pieces with `</w>` at the end of a word. GPT-1's vocabulary has the same mark; CTRL's has none at
the end of a word and `@@` at the end of every other piece. The library knows one form only, so CTRL's vocabulary is
translated into GPT-1's form, with its own ids.
"""

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from bertree.errors import UserError
from bertree.files.formats import Json

END, CONTINUED = "</w>", "@@"
CTRL_WORDS = r"\S+\n?"  # CTRL's words: a line break belongs to the word before it
Pairs = list[tuple[str, str]]


def first_end(pairs: Pairs) -> str | None:
    """Return the first marked piece that early merges make; None if they are merges of bytes."""
    return next((first + second for first, second in pairs[:1000] if second.endswith(END)), None)


def build_gpt(vocab: dict[str, int], pairs: Pairs, config: Json) -> Tokenizer:
    """Build GPT-1's tokenizer: lower case, words and punctuation split as BERT does."""
    tokenizer = Tokenizer(_bpe(vocab, pairs, config))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _finish(tokenizer, config)


def build_ctrl(vocab: dict[str, int], merges: str, config: Json) -> Tokenizer:
    """Build CTRL's tokenizer: words between white space.

    As in transformers, a merge is split at any white space (the file has no-break spaces within pieces), and the last
    of equal ones counts. A merge whose result is not in the vocabulary is left out, so that its two parts remain, where
    transformers has an unknown token; the authors' code splits such pieces again.
    """
    unknown = _unknown(config)
    table = {unknown: vocab[unknown]} if unknown in vocab else {}
    for token, number in vocab.items():
        if token != unknown:
            table[token.removesuffix(CONTINUED) if token.endswith(CONTINUED) else token + END] = number
    if len(table) != len(vocab):
        raise UserError("vocab.json: two tokens are the same piece of a word, so it is not a vocabulary of CTRL")
    places = {tuple(line.split()): place for place, line in enumerate(merges.split("\n")[1:])}
    pairs = [(pair[0], pair[1]) for pair in sorted(places, key=places.__getitem__) if len(pair) == 2]
    tokenizer = Tokenizer(_bpe(table, [(a, b) for a, b in pairs if {a, b, a + b} <= table.keys()], config))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(CTRL_WORDS), "removed", invert=True)
    return _finish(tokenizer, config)


def _unknown(config: Json) -> str:
    named = config.get("unk_token", "<unk>")
    return str(named.get("content")) if isinstance(named, dict) else str(named)


def _bpe(vocab: dict[str, int], pairs: Pairs, config: Json) -> models.BPE:
    unknown = _unknown(config)
    if unknown not in vocab:
        raise UserError(f"vocab.json: has no {unknown} token")
    return models.BPE(vocab, pairs, unk_token=unknown, end_of_word_suffix=END)


def _finish(tokenizer: Tokenizer, config: Json) -> Tokenizer:
    tokenizer.decoder = decoders.BPEDecoder(suffix=END)
    tokenizer.add_special_tokens([AddedToken(_unknown(config), special=True, normalized=False)])
    return tokenizer
