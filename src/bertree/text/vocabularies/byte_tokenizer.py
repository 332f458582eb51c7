"""A tokenizer of bytes: id = byte + 2, as google/reformer-enwik8 has it; 0 pads, 1 ends a document."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from bertree.files.formats import Json

SPECIAL = ["<pad>", "<eos>"]
SIZE = len(SPECIAL) + 256
CONFIG: Json = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_input_names": ["input_ids", "attention_mask"],
    "clean_up_tokenization_spaces": False,
    "pad_token": "<pad>",
    "eos_token": "<eos>",
}


def build_bytes() -> Tokenizer:
    """Build the tokenizer."""
    vocab = {token: number for number, token in enumerate([*SPECIAL, *_characters()])}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return tokenizer


def _characters() -> list[str]:
    """Return the character that stands for each byte in the library: itself if it can be seen, else one from 256 on."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]
