"""A tiny untrained XLNet in a folder, whose tokenizer writes <sep> and <cls> behind the texts."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.text import vocabulary_files
from bertree.text.tokenizer import Tokenizer
from tests.support.learnable import WORDS

SPECIAL = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
SMALL: dict[str, Any] = {"layers": 2, "width": 32, "heads": 2, "ffn_width": 64, "max_positions": 64, "init_std": 0.1}


def xlnet_tokenizer() -> Tokenizer:
    """Every word of the made-up tasks is one token, in XLNet's template."""
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *dict.fromkeys(WORDS)])}
    backend = Backend(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    vocabulary_files.set_xlnet_template(backend)
    return Tokenizer(
        backend, {"cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>", "pad_token": "<pad>"}
    )


def save_xlnet(path: Path, heads: dict[str, int] | None = None, **axes: Any) -> Path:
    """Write the model."""
    words = xlnet_tokenizer()
    a = preset("xlnet-base").architecture.with_values(SMALL | {"vocab_size": words.size} | axes)
    torch.manual_seed(0)
    folder.write(Contents(a, build(a, heads if heads is not None else {"mask": 0}), words), path)
    return path
