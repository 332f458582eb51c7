"""The memory of inference in `bertree info`, beside what a forward pass holds; and the parts of the embeddings."""

import pytest
import torch

from bertree.batch import Batch
from bertree.inference.load import random_model
from bertree.model import cost
from bertree.model.presets import preset
from tests.support.live_bytes import LiveBytes

SMALL = {"layers": 2, "width": 96, "heads": 4, "vocab_size": 400}
ERROR = 0.1  # which docs/memory.md states


@pytest.mark.parametrize("name", ["bert-base", "albert-base", "gpt2", "modernbert-base", "xlnet-base"])
@pytest.mark.parametrize(("sequences", "length"), [(8, 64), (2, 256)])
def test_the_estimate(name: str, sequences: int, length: int) -> None:
    a = preset(name).architecture.with_values(SMALL)
    model = random_model(a, {})
    batch = Batch.pack(torch.randint(5, 400, (sequences, length)).tolist())
    with torch.no_grad(), LiveBytes() as live:
        model.network(batch)
    weights = 4 * sum(parameter.numel() for parameter in model.parameters())
    measured = weights + live.most
    assert cost.inference_bytes(a, sequences, length) == pytest.approx(measured, rel=ERROR)


def test_the_parts_of_the_embeddings() -> None:
    parts = cost.embedding_parts(preset("albert-xxlarge").architecture)
    assert parts["tokens_v_x_e"] + parts["projection_e_x_h"] == 30_000 * 128 + 128 * 4096 == 4_364_288
    bert = preset("bert-base").architecture
    assert cost.embedding_parts(bert.with_values({"vocab_size": 30_000}))["tokens_v_x_e"] == 23_040_000
    for name in ("bert-base", "roberta-base", "transformer-xl-base", "reformer-base", "bilstm"):
        a = preset(name).architecture
        parts = cost.embedding_parts(a)
        assert sum(parts.values()) == cost.parameters(a).embeddings
        assert min(parts.values()) >= 0
