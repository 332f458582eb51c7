"""Attention over a packed batch. The kernels that compute it are in `kernels.table`.

Shape letters: t tokens, k tokens that keys and values come from, n heads, d head width, h width.
"""

from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.kernels.layout import Layout, RelativeScores
from bertree.model.kernels.table import attend, attend_fused
from bertree.model.layers.basic import product_and_bias
from bertree.model.layers.positions import Positions, TokenPositions
from bertree.model.masks import Full, Mask


class LayerPast(Protocol):
    """What attention of one layer sees besides the tokens of the batch."""

    def attend(self, attention: "Attention", x_th: Tensor, prepared: Any) -> Tensor:
        """Return the mixed values of a batch's tokens (t x n x d)."""
        ...


class Attention(nn.Module):
    """Multi-head self-attention; one matrix product for queries, keys and values.

    `mask`: what a token sees. `positions`: what changes queries, keys and scores by their positions.
    """

    fuses = True  # a kernel may take queries, keys and values as one tensor

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
        self._add_projection(width, bias)
        self.out = nn.Linear(heads * self.head_width, width, bias=bias)

    def _add_projection(self, width: int, bias: bool) -> None:
        self.qkv = nn.Linear(width, 3 * self.heads * self.head_width, bias=bias)

    def forward(self, x_th: Tensor, batch: Batch, prepared: Any = None, past: LayerPast | None = None) -> Tensor:
        """Mix the hidden states of each sequence's tokens.

        `prepared`: what the positions need for the batch. `past`: what is seen besides the batch.
        """
        out: Tensor = self.out(self._mixed(x_th, batch, prepared, past))
        return out

    def before_bias(
        self, x_th: Tensor, batch: Batch, prepared: Any = None, past: LayerPast | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result without the bias of the last layer, and that bias; None: it is in the result."""
        return product_and_bias(self.out, self._mixed(x_th, batch, prepared, past))

    def _mixed(self, x_th: Tensor, batch: Batch, prepared: Any, past: LayerPast | None) -> Tensor:
        """Return the mixed values of each token, its heads side by side."""
        if past is not None:
            mixed_tnd = past.attend(self, x_th, prepared)
        elif self.fuses and (self.positions is None or self.positions.changes_fused(x_th)):
            qkv_t3nd = self.qkv(x_th).unflatten(-1, (3, self.heads, self.head_width))
            if self.positions is not None:
                qkv_t3nd = self.positions.change_fused(qkv_t3nd, self._prepared(batch, prepared))
            mixed_tnd = attend_fused(qkv_t3nd, Layout.of(batch, self.mask), self._dropout_now)
        else:
            q_tnd, k_tnd, v_tnd = self.project_within(x_th)
            relative = None
            if self.positions is not None:
                q_tnd, k_tnd, relative = self.positions.change(q_tnd, k_tnd, self._prepared(batch, prepared))
            mixed_tnd = self.attend_within(q_tnd, k_tnd, v_tnd, batch, relative)
        return mixed_tnd.flatten(1)

    def _prepared(self, batch: Batch, prepared: Any) -> Any:
        """Return what the positions need for a batch."""
        if prepared is None and self.positions is not None:
            return self.positions.prepare(self.token_positions(batch))
        return prepared

    @property
    def _dropout_now(self) -> float:
        return self.dropout if self.training else 0.0

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

    def project_within(self, x_th: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values for `attend_within` (t x n x d)."""
        return self.project(x_th)

    def mix(self, q_tnd: Tensor, k_knd: Tensor, v_knd: Tensor, layout: Layout, prepared: Any) -> Tensor:
        """Return the mixed values (t x n x d)."""
        relative = None
        if self.positions is not None:
            q_tnd, k_knd, relative = self.positions.change(q_tnd, k_knd, prepared)
        return attend(q_tnd, k_knd, v_knd, layout, self._dropout_now, relative)

    def attend_within(
        self, q_tnd: Tensor, k_tnd: Tensor, v_tnd: Tensor, batch: Batch, relative: RelativeScores | None
    ) -> Tensor:
        """Queries, keys and values of a batch's tokens, changed by their positions -> mixed values (t x n x d)."""
        return attend(q_tnd, k_tnd, v_tnd, Layout.of(batch, self.mask), self._dropout_now, relative)

    def token_positions(self, batch: Batch) -> TokenPositions:
        """Return the positions of a batch's tokens, which see each other."""
        before = max(0, batch.max_seqlen - 1)
        ahead = before if self.mask.looks_ahead else 0
        segments = (batch.segments, batch.segments, batch.one_segment)
        return TokenPositions(batch.positions, batch.positions, before, ahead, *segments)
