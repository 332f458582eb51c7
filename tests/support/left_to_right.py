"""What tests of left-to-right models share: a tokenizer that writes no special tokens, as GPT's."""

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

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
