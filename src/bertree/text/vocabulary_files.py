"""Build tokenizers from the vocabulary files of the original releases, as the original code reads them.

GPT-1 and CTRL use byte-pair encoding within words. Both learn merges of pieces with `</w>` at the end of a word. The
vocabulary of GPT-1 has the same mark; the one of CTRL has no mark at the end of a word and `@@` at the end of every
other piece. The library supports only the first form, so CTRL's vocabulary is translated into it, with its own ids.

A tokenizer of bytes needs no files: id = byte + 2, as in google/reformer-enwik8; 0 pads, 1 ends a document.

ELMo's vocabulary is whole words. It reads their characters, so words outside the vocabulary are spelled
(`cleaning.py`).
"""

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bertree.errors import UserError
from bertree.files.formats import Json, parse_json
from bertree.text.cleaning import WORDS
from bertree.text.sentencepiece import SPACE, UNIGRAM, PieceModel, add_special, build_plain, read_sentencepiece

ELMO = ["<S>", "</S>", "<UNK>"]
ELMO_CHARACTERS = 50
ELMO_CONFIG: Json = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "max_characters_per_token": ELMO_CHARACTERS,
    "cls_token": "<S>",
    "sep_token": "</S>",
    "unk_token": "<UNK>",
}
XLNET = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]  # special tokens, by their ids
WORD_END, CONTINUED = "</w>", "@@"
CTRL_WORDS = r"\S+\n?"  # CTRL's words: a line break belongs to the word before it
Pairs = list[tuple[str, str]]
BYTE_SPECIAL = ["<pad>", "<eos>"]
BYTE_VOCAB_SIZE = len(BYTE_SPECIAL) + 256
BYTE_CONFIG: Json = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "pad_token": "<pad>",
    "eos_token": "<eos>",
}


def build_tokenizer(files: dict[str, bytes], config: Json) -> Tokenizer | None:
    """Build the tokenizer of the first vocabulary found among the files; None if there is none."""
    if "vocab.txt" in files:
        lines = files["vocab.txt"].decode("utf-8").split("\n")
        build = build_wordpiece if "[UNK]" in map(str.rstrip, lines) else build_word_level
        return build(lines, config)
    if "vocab.json" in files and "merges.txt" in files:
        return build_bpe(files["vocab.json"], files["merges.txt"], config)
    if "spiece.model" in files:
        return build_sentencepiece(files["spiece.model"], config)
    if "vocab.json" in files or "merges.txt" in files:
        raise UserError("a BPE tokenizer needs both vocab.json and merges.txt")
    return None


def build_wordpiece(lines: list[str], config: Json) -> Tokenizer:
    """Build BERT's WordPiece tokenizer: one token per line, its id is the line number."""
    vocab = {line.rstrip("\r"): number for number, line in enumerate(lines) if line or number < len(lines) - 1}
    # Default without `do_lower_case`: a vocabulary with capitals is cased.
    cased = any(token != token.lower() for token in vocab if not token.startswith("["))
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", not cased),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    set_bert_template(tokenizer)
    return tokenizer


def build_word_level(lines: list[str], config: Json) -> Tokenizer:
    """Build Transformer-XL's tokenizer: words between white space; a line is a word, perhaps followed by its count."""
    words = [line.split() for line in lines]
    if not words[-1]:
        words.pop()
    if not all(words):
        raise UserError(f"vocab.txt: line {words.index([]) + 1} is empty")
    vocab = {word[0]: number for number, word in enumerate(words)}
    unknown = next((token for token in ("<unk>", "<UNK>") if token in vocab), None)
    if unknown is None:
        raise UserError(
            "vocab.txt: has no [UNK], <unk> or <UNK>, so it is a vocabulary neither of WordPiece nor of words"
        )
    tokenizer = Tokenizer(models.WordLevel(vocab, unknown))
    if config.get("lower_case", False):
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    _add_present(tokenizer, (unknown, "<eos>"))
    return tokenizer


def _add_present(tokenizer: Tokenizer, names: Sequence[str], mask: str = "") -> set[str]:
    """Make those tokens special that the vocabulary has, and return them; `mask` includes the space before it."""
    present = [token for token in names if tokenizer.token_to_id(token) is not None]
    add_special(tokenizer, present, mask)
    return set(present)


def _set_template(tokenizer: Tokenizer, single: str, pair: str, tokens: Sequence[str]) -> None:
    ids = [(token, tokenizer.token_to_id(token)) for token in tokens]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


def set_bert_template(tokenizer: Tokenizer, mask_takes_space: bool = False) -> None:
    """Set BERT's template: [CLS] A [SEP] or [CLS] A [SEP] B [SEP], the second part in segment 1.

    ALBERT's mask token includes the space before it, since a space is part of the piece that follows it.
    """
    names = ("[PAD]", "<pad>", "[UNK]", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    if {"[CLS]", "[SEP]"} <= _add_present(tokenizer, names, "[MASK]" if mask_takes_space else ""):
        pair = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
        _set_template(tokenizer, "[CLS]:0 $A:0 [SEP]:0", pair, ("[CLS]", "[SEP]"))


def build_bpe(vocab: bytes, merges: bytes, config: Json) -> Tokenizer:
    """Build a tokenizer of byte-pair encoding: GPT-2's and RoBERTa's of bytes, GPT-1's or CTRL's of words."""
    table, text = parse_json(vocab, "vocab.json"), merges.decode("utf-8")
    lines = [line for line in text.split("\n") if line and not line.startswith("#version")]
    split = [tuple(line.split(" ")) for line in lines]
    if not isinstance(table, dict) or any(len(pair) != 2 for pair in split):
        raise UserError("vocab.json must map tokens to ids and merges.txt must have two pieces per line")
    if len(set(table.values())) < len(table):
        raise UserError("vocab.json: two tokens have the same id")
    pairs = [(a, b) for a, b in split]
    end = first_word_end(pairs)
    if end is None:
        return build_byte_bpe(table, pairs, config)
    return build_gpt(table, pairs, config) if end in table else build_ctrl(table, text, config)


def build_byte_bpe(vocab: dict[str, int], pairs: Pairs, config: Json) -> Tokenizer:
    """Build GPT-2's and RoBERTa's tokenizer: byte-level pieces, merged in the order they were learned."""
    tokenizer = Tokenizer(models.BPE(vocab, pairs))
    prefix = bool(config.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    set_roberta_template(tokenizer, prefix)
    return tokenizer


def set_roberta_template(tokenizer: Tokenizer, prefix: bool = False) -> None:
    """Set RoBERTa's template: <s> A </s> or <s> A </s></s> B </s>, all in segment 0; <mask> includes the space before
    it."""
    names = ("<s>", "</s>", "<unk>", "<pad>", "<mask>", "<|endoftext|>")
    if {"<s>", "</s>"} <= _add_present(tokenizer, names, "<mask>"):
        start, end = ((token, tokenizer.token_to_id(token) or 0) for token in ("<s>", "</s>"))
        tokenizer.post_processor = processors.RobertaProcessing(end, start, True, prefix)


def build_sentencepiece(data: bytes, config: Json) -> Tokenizer:
    """Build ALBERT's or XLNet's tokenizer from a SentencePiece model, or one without their special tokens."""
    model = read_sentencepiece(data)
    names = {piece for piece, _ in model.pieces}
    for has in ({"[CLS]", "[SEP]"}, {"<cls>", "<sep>"}):
        if has <= names and model.algorithm == UNIGRAM:
            return build_unigram(model, config, xlnet="<cls>" in has)
    return build_plain(model)


def build_unigram(model: PieceModel, config: Json, xlnet: bool) -> Tokenizer:
    """Build ALBERT's or XLNet's tokenizer from the pieces and scores of a SentencePiece model."""
    # The original code splits a number from its comma in a second step: "9,5" is 9 , 5.
    scored = [(p, s - 100 if len(p) > 1 and p[-1] == "," and p[-2].isdigit() else s) for p, s in model.pieces]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=model.unknown))
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not config.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", not xlnet):
        steps.append(normalizers.Lowercase())
    if model.charsmap:
        steps.append(normalizers.Precompiled(model.charsmap))
    steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    tokenizer.normalizer = normalizers.Sequence(steps)
    split_at_spaces(tokenizer)
    if xlnet:
        set_xlnet_template(tokenizer)
    else:
        set_bert_template(tokenizer, mask_takes_space=True)
    return tokenizer


def split_at_spaces(tokenizer: Tokenizer) -> None:
    """Split texts into words that begin with a mark for the space before them, and join them again."""
    marked = pre_tokenizers.Metaspace(SPACE, "always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), marked])
    tokenizer.decoder = decoders.Metaspace(SPACE, "always")


def set_xlnet_template(tokenizer: Tokenizer) -> None:
    """Set XLNet's template: A <sep> <cls> or A <sep> B <sep> <cls>, the second part in segment 1, <cls> in 2; <mask>
    includes the space before it."""
    _add_present(tokenizer, XLNET, "<mask>")
    pair = "$A:0 <sep>:0 $B:1 <sep>:1 <cls>:2"
    _set_template(tokenizer, "$A:0 <sep>:0 <cls>:2", pair, ("<sep>", "<cls>"))


def first_word_end(pairs: Pairs) -> str | None:
    """Return the first marked piece that early merges make; None if they are merges of bytes."""
    return next((first + second for first, second in pairs[:1000] if second.endswith(WORD_END)), None)


def build_gpt(vocab: dict[str, int], pairs: Pairs, config: Json) -> Tokenizer:
    """Build GPT-1's tokenizer: lower case, words and punctuation split as BERT does."""
    tokenizer = Tokenizer(_word_bpe(vocab, pairs, config))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _finish_word_bpe(tokenizer, config)


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
            table[token.removesuffix(CONTINUED) if token.endswith(CONTINUED) else token + WORD_END] = number
    if len(table) != len(vocab):
        raise UserError("vocab.json: two tokens are the same piece of a word, so it is not a vocabulary of CTRL")
    ranks = {tuple(line.split()): rank for rank, line in enumerate(merges.split("\n")[1:])}
    pairs = [(pair[0], pair[1]) for pair in sorted(ranks, key=ranks.__getitem__) if len(pair) == 2]
    tokenizer = Tokenizer(_word_bpe(table, [(a, b) for a, b in pairs if {a, b, a + b} <= table.keys()], config))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(CTRL_WORDS), "removed", invert=True)
    return _finish_word_bpe(tokenizer, config)


def _unknown(config: Json) -> str:
    named = config.get("unk_token", "<unk>")
    return str(named.get("content")) if isinstance(named, dict) else str(named)


def _word_bpe(vocab: dict[str, int], pairs: Pairs, config: Json) -> models.BPE:
    unknown = _unknown(config)
    if unknown not in vocab:
        raise UserError(f"vocab.json: has no {unknown} token")
    return models.BPE(vocab, pairs, unk_token=unknown, end_of_word_suffix=WORD_END)


def _finish_word_bpe(tokenizer: Tokenizer, config: Json) -> Tokenizer:
    tokenizer.decoder = decoders.BPEDecoder(suffix=WORD_END)
    add_special(tokenizer, [_unknown(config)])
    return tokenizer


def build_words(vocab: dict[str, int]) -> Tokenizer:
    """Build ELMo's tokenizer of whole words: <S> A </S>, or <S> A </S> B </S>."""
    tokenizer = Tokenizer(models.WordLevel(vocab, "<UNK>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    add_special(tokenizer, ELMO)
    _set_template(tokenizer, "<S> $A </S>", "<S>:0 $A:0 </S>:0 $B:0 </S>:0", ("<S>", "</S>"))
    return tokenizer


def build_bytes() -> Tokenizer:
    """Build the tokenizer of bytes."""
    vocab = {token: number for number, token in enumerate([*BYTE_SPECIAL, *_byte_characters()])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    add_special(tokenizer, BYTE_SPECIAL)
    return tokenizer


def _byte_characters() -> list[str]:
    """Return the character the library uses for each byte: itself if it is printable, else one from 256 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    substitutes = iter(range(256, 512))
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]
