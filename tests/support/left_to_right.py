"""What tests of left-to-right models share: small members, and a tokenizer that writes no special tokens, as GPT's."""

from pathlib import Path

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.text.tokenizer import Tokenizer
from tests.support.learnable import WORDS

END = "<|endoftext|>"


def gpt_tokenizer() -> Tokenizer:
    """Byte-level BPE with one special token, which it writes nowhere."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[END], initial_alphabet=alphabet, show_progress=False, min_frequency=1
    )
    backend.train_from_iterator([" ".join(WORDS)] * 4, trainer)
    return Tokenizer(backend, {"bos_token": END, "eos_token": END})


SMALL = {"layers": 2, "width": 32, "heads": 2, "ffn_width": 64, "max_positions": 64, "init_std": 0.1}
# Presets made small; one has all that Transformer-XL may have.
MEMBERS: dict[str, tuple[str, dict[str, object]]] = {
    "gpt1": ("gpt1", {"ffn_width": 128}),
    "gpt1-both": ("gpt1-both", {"ffn_width": 128}),
    "gpt2": ("gpt2", {}),
    "ctrl": ("ctrl", {}),
    "transformer-xl": ("transformer-xl-enwik8-12", {"memory": 16}),
    "transformer-xl-adaptive": (
        "transformer-xl-large",
        {"memory": 16, "memory_start": "zeros", "cutoffs": "50,120", "head_width": 8, "embedding_divisor": 2},
    ),
}


def member(name: str, vocab_size: int) -> Transformer:
    """The architecture of a small member."""
    base, axes = MEMBERS[name]
    a = preset(base).architecture.with_values(SMALL | {"vocab_size": vocab_size} | axes)
    assert isinstance(a, Transformer)
    return a


def save_member(name: str, path: Path, words: Tokenizer) -> Path:
    """A folder with an untrained member and its language-model head."""
    a = member(name, words.size)
    torch.manual_seed(0)
    folder.write(Contents(a, build(a, {"mask": 0}), words), path)
    return path
