"""XLNet in use: masks are filled by its query stream, as transformers does it with `perm_mask`."""

from pathlib import Path

import pytest
import torch
import transformers

import bertree
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.network import build
from bertree.model.presets import PRESETS
from tests.support.xlnet_pieces import small_model

SMALL = {"layers": 2, "width": 16, "heads": 2, "ffn_width": 48, "vocab_size": 130, "init_std": 0.3}


@pytest.fixture
def xlnet(tmp_path: Path) -> Path:
    a = PRESETS["xlnet-base"].architecture.with_values(SMALL)
    torch.manual_seed(0)
    folder.write(Contents(a, build(a, {"mask": 0})), tmp_path / "m", to="huggingface")
    (tmp_path / "m" / "spiece.model").write_bytes(small_model())
    return tmp_path / "m"


@torch.no_grad()
def test_masks_are_filled_from_the_tokens_around_them(xlnet: Path) -> None:
    model = bertree.load(xlnet)
    assert model.tokenizer is not None
    text = "the [MASK] runs to the <mask>."
    candidates = model.fill_mask(text, 5)
    (encoded,) = model.tokenizer.encode([text.replace("[MASK]", "<mask>")])
    ids, segments = torch.tensor([encoded.ids]), torch.tensor([encoded.segments])
    masks = ids[0].eq(model.tokenizer.id_of("mask")).nonzero()[:, 0]
    assert len(masks) == 2
    hidden = torch.zeros(1, len(encoded.ids), len(encoded.ids))
    hidden[:, :, masks] = 1.0
    mapping = torch.zeros(1, 2, len(encoded.ids))
    mapping[0, [0, 1], masks] = 1.0
    theirs = transformers.XLNetLMHeadModel.from_pretrained(xlnet).eval()
    logits = theirs(ids, token_type_ids=segments, perm_mask=hidden, target_mapping=mapping).logits[0]
    wanted = logits[:, : model.tokenizer.size].softmax(-1).topk(5)
    for mine, ids_k, shares_k in zip(candidates, wanted.indices.tolist(), wanted.values.tolist(), strict=True):
        assert [candidate.id for candidate in mine] == ids_k
        assert [candidate.probability for candidate in mine] == pytest.approx(shares_k, abs=1e-6)
