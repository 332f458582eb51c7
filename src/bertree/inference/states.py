"""Hidden states of any layer, and attention probabilities.

Shape letters: t tokens of one text, n heads, d head width, h width.
"""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.model.encoder import Encoder
from bertree.model.layers.attention import Attention
from bertree.model.layers.residual import Block
from bertree.model.transformer import TransformerEncoder, unknown_attention

Layers = int | Sequence[int] | str


def parse_layers(layers: Layers, count: int) -> list[int]:
    """Return numbers of layers from 0 (the embeddings) to `count`; negative ones count from the last."""
    if layers == "all":
        return list(range(count + 1))
    if isinstance(layers, str) or not isinstance(layers, int | Sequence):
        raise UserError(f"layers: must be a number, a list of numbers, or 'all', not {layers!r}")
    found: list[int] = []
    for layer in [layers] if isinstance(layers, int) else layers:
        if type(layer) is not int or not -count - 1 <= layer <= count:
            raise UserError(
                f"layers: {layer!r} is not a layer of this model; it has 0 (the embeddings) to {count}; -1 is the last"
            )
        found.append(layer if layer >= 0 else count + 1 + layer)
    if not found:
        raise UserError("layers: the list is empty")
    return found


def layer_states(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """Return the hidden states of layers (each t x h), in the order given. No layer above them is computed."""
    if list(layers) == [encoder.depth]:
        return [encoder(batch)]
    found: dict[int, Tensor] = {}
    for depth, state_th in enumerate(encoder.states(batch)):
        if depth in layers:
            found[depth] = state_th
        if depth == max(layers):
            break
    if len({state.shape[1] for state in found.values()}) > 1:
        raise UserError("layers: the embeddings of this model (layer 0) have another width; ask for them alone")
    return [found[layer] for layer in layers]


def attention_probabilities(encoder: Encoder, batch: Batch) -> Tensor:
    """Return the attention probabilities of a batch of one text (layers x n x t x t), in float32.

    The fast kernels never hold them, so they are computed again from each layer's input and weights.
    """
    if unknown := unknown_attention(encoder):
        raise UserError(f"attentions: {unknown}, whose attention cannot be computed")
    assert isinstance(encoder, TransformerEncoder)
    found = []
    for (index, _), state_th in zip(encoder.stack.sharing, encoder.states(batch), strict=False):
        block = cast(Block, encoder.stack.attention[index])
        part = cast(Attention, block.part)
        input_th = encoder.stack.residual.read(state_th, block)
        qkv_t3nd = part.qkv(input_th).unflatten(-1, (3, part.heads, part.head_width))
        q_ntd, k_ntd, _ = qkv_t3nd.permute(1, 2, 0, 3).float()
        scores_ntt = q_ntd @ k_ntd.transpose(1, 2) * part.head_width**-0.5
        seen_tt = part.mask.sees(batch.positions, batch.positions)
        found.append(scores_ntt.masked_fill(~seen_tt, float("-inf")).softmax(-1))
    return torch.stack(found)
