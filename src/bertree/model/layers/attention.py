"""Attention over a packed batch. The kernels that compute it are in `kernels.table`.

Shape letters: t tokens, n heads, d head width, h width.
"""

from collections.abc import Callable

from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.table import attend, attend_fused
from bertree.model.layers.positions import Positions, Rotation, build_attention_positions
from bertree.model.masks import Causal, Full, Mask, Window


class Attention(nn.Module):
    """Multi-head self-attention; one matrix product for queries, keys and values.

    `mask`: what a token sees. `positions`: what changes queries and keys by their places.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        mask: Mask | None = None,
        positions: Positions | None = None,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.mask = mask or Full()
        self.positions = positions
        self.heads, self.head_width = heads, width // heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)

    def forward(self, x_th: Tensor, batch: Batch, rotation: Rotation | None = None) -> Tensor:
        """Mix the hidden states of each sequence's tokens; `rotation`: what the positions prepared for the batch."""
        qkv_t3nd = self.qkv(x_th).unflatten(-1, (3, self.heads, self.head_width))
        dropout = self.dropout if self.training else 0.0
        layout = Layout.of(batch, self.mask)
        if self.positions is None:
            mixed_tnd = attend_fused(qkv_t3nd, layout, dropout)
        else:
            q_tnd, k_tnd, v_tnd = qkv_t3nd.unbind(1)
            rotation = rotation or self.positions.prepare(batch.positions)
            if rotation is not None:
                q_tnd, k_tnd = self.positions.rotate(q_tnd, k_tnd, rotation, rotation)
            mixed_tnd = attend(q_tnd, k_tnd, v_tnd, layout, dropout)
        out: Tensor = self.out(mixed_tnd.flatten(1))
        return out


# The mask for each value of the axis `attention` (architecture.ATTENTION); a new kind also has a row in cost.KEYS.
MASKS: dict[str, Callable[[Transformer], Mask]] = {
    "full": lambda a: Full(),
    "causal": lambda a: Causal(),
    "local": lambda a: Window(a.window, a.window),
}


def build_attention(a: Transformer) -> list[Attention]:
    """Build the attention of the layers; what layers share is built once."""
    kinds = dict(zip(a.plan("attention"), a.attention_kinds, strict=True))  # of each stored copy
    masks = {kind: MASKS[kind](a) for kind in kinds.values()}
    positions = {kind: build_attention_positions(a, kind) for kind in masks}  # layers of one kind share them
    return [
        Attention(a.width, a.heads, a.attention_dropout, masks[kind], positions[kind], a.attention_bias)
        for kind in kinds.values()
    ]
