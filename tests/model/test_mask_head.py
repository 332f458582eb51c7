"""The MLM or LM head in chunks: the same loss and gradients, without the logits of all tokens at once."""

import pytest
import torch
from torch import Tensor

from bertree.model.heads import MaskHead
from bertree.model.network import build
from tests.support.batches import tiny

TOKENS = 50


def loss_and_gradients(chunk: int, **axes: object) -> tuple[float, list[Tensor], int]:
    """The loss of some states, its gradients, and the largest tensor that is kept for the backward pass."""
    torch.manual_seed(0)
    network = build(tiny(init_std=0.2, ffn_chunk=chunk, **axes), {"mask": 0})
    assert isinstance(network.heads["mask"], MaskHead)
    states = torch.randn(TOKENS, network.width, requires_grad=True)
    targets = torch.randint(0, 30, (TOKENS,))
    targets[3] = -100
    sizes = [0]

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = network.mask_loss(states, torch.arange(TOKENS), targets)
    loss.backward()
    parameters = [*network.heads.parameters(), network.encoder.embeddings.tokens.weight, states]
    return loss.item(), [p.grad for p in parameters if p.grad is not None], max(sizes)


@pytest.mark.parametrize("transform", [True, False])
def test_chunks_change_nothing_but_memory(transform: bool) -> None:
    whole, parts = (loss_and_gradients(chunk, mask_transform=transform) for chunk in (0, 16))
    assert parts[0] == pytest.approx(whole[0], rel=1e-6)
    assert len(parts[1]) == len(whole[1]) > 1
    for left, right in zip(whole[1], parts[1], strict=True):
        assert torch.allclose(left, right, atol=1e-5)
    assert parts[2] < whole[2]
