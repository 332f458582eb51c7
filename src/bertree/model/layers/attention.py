"""Attention over a packed batch. The kernels that compute it are in `kernels.table`.

Shape letters: t tokens, k tokens that keys and values come from, n heads, d head width, h width.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.model.architecture import Transformer
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.table import attend, attend_fused
from bertree.model.layers.positions import Places, Positions, build_attention_positions
from bertree.model.masks import Causal, Full, Mask, Window


class LayerPast(Protocol):
    """What attention of one layer sees beside the tokens of the batch."""

    def attend(self, part: "Attention", x_th: Tensor, prepared: Any) -> Tensor:
        """Return the mixed values of a batch's tokens (t x n x d)."""
        ...


class Attention(nn.Module):
    """Multi-head self-attention; one matrix product for queries, keys and values.

    `mask`: what a token sees. `positions`: what changes queries, keys and scores by their places.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        mask: Mask | None = None,
        positions: Positions | None = None,
        bias: bool = True,
        head_width: int = 0,
    ) -> None:
        super().__init__()
        self.mask = mask or Full()
        self.positions = positions
        self.heads, self.head_width = heads, head_width or width // heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * heads * self.head_width, bias=bias)
        self.out = nn.Linear(heads * self.head_width, width, bias=bias)

    def forward(self, x_th: Tensor, batch: Batch, prepared: Any = None, past: LayerPast | None = None) -> Tensor:
        """Mix the hidden states of each sequence's tokens.

        `prepared`: what the positions need for the batch. `past`: what is seen beside the batch.
        """
        if past is not None:
            mixed_tnd = past.attend(self, x_th, prepared)
        elif self.positions is None:
            qkv_t3nd = self.qkv(x_th).unflatten(-1, (3, self.heads, self.head_width))
            mixed_tnd = attend_fused(qkv_t3nd, Layout.of(batch, self.mask), self.dropout if self.training else 0.0)
        else:
            prepared = self.positions.prepare(self.places(batch)) if prepared is None else prepared
            mixed_tnd = self.mix(*self.project(x_th), Layout.of(batch, self.mask), prepared)
        out: Tensor = self.out(mixed_tnd.flatten(1))
        return out

    def project(self, x_th: Tensor, source_kh: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of tokens, keys and values of the same tokens or of a source (t or k x n x d)."""
        if source_kh is None:
            qkv_t3nd: Tensor = self.qkv(x_th).unflatten(-1, (3, self.heads, self.head_width))
            return qkv_t3nd[:, 0], qkv_t3nd[:, 1], qkv_t3nd[:, 2]
        width = self.heads * self.head_width
        weights, biases = self.qkv.weight.split([width, 2 * width]), (None, None)
        if self.qkv.bias is not None:
            biases = self.qkv.bias.split([width, 2 * width])
        q_tnd = F.linear(x_th, weights[0], biases[0]).unflatten(-1, (self.heads, self.head_width))
        kv_k2nd = F.linear(source_kh, weights[1], biases[1]).unflatten(-1, (2, self.heads, self.head_width))
        return q_tnd, kv_k2nd[:, 0], kv_k2nd[:, 1]

    def mix(self, q_tnd: Tensor, k_knd: Tensor, v_knd: Tensor, layout: Layout, prepared: Any) -> Tensor:
        """Return the mixed values (t x n x d)."""
        relative = None
        if self.positions is not None:
            q_tnd, k_knd, relative = self.positions.change(q_tnd, k_knd, prepared)
        return attend(q_tnd, k_knd, v_knd, layout, self.dropout if self.training else 0.0, relative)

    def places(self, batch: Batch) -> Places:
        """Return the places of a batch's tokens, which see each other."""
        before = max(0, batch.max_seqlen - 1)
        ahead = before if self.mask.looks_ahead else 0
        segments = (batch.segments, batch.segments, batch.one_segment)
        return Places(batch.positions, batch.positions, before, ahead, *segments)


# The mask for each value of the axis `attention` (architecture.ATTENTION); a new kind also has a row in cost.KEYS.
MASKS: dict[str, Callable[[Transformer], Mask]] = {
    "full": lambda a: Full(),
    "causal": lambda a: Window(a.memory - 1, 0) if a.same_length else Causal(),
    "local": lambda a: Window(a.window, a.window if a.look_ahead else 0),
}


def build_attention(a: Transformer) -> list[Attention]:
    """Build the attention of the layers; what layers share is built once."""
    kinds = list(dict(zip(a.plan("attention"), a.attention_kinds, strict=True)).values())  # of each stored copy
    if missing := [kind for kind in kinds if kind not in MASKS] or ["shared_qk"] * a.shared_qk:
        raise UserError(f"architecture: {missing[0]}: attention of this kind cannot be built yet")
    masks = {kind: MASKS[kind](a) for kind in kinds}
    return [
        Attention(a.width, a.heads, a.attention_dropout, masks[kind], positions, a.attention_bias, a.head_width)
        for kind, positions in zip(kinds, build_attention_positions(a, kinds), strict=True)
    ]
