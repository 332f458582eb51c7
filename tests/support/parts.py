"""Parts that bertree does not build itself, to be put into a network it built."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.model.layers.attention import Attention
from bertree.model.layers.feed_forward import FeedForward
from bertree.model.layers.residual import Block, PostNorm
from bertree.model.transformer import TransformerEncoder


class GatedFeedForward(FeedForward):
    """A feed-forward part whose inner states are gated by themselves: it has the same weights."""

    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        inner = self.up(x_th)
        return self.down(self.activation(inner) * inner)


class ScaledAttention(Attention):
    def forward(self, x_th: Tensor, batch: Batch) -> Tensor:
        return 2.0 * super().forward(x_th, batch)


class ScaledResidual(PostNorm):
    def apply(self, x_th: Tensor, block: Block, *arguments: Any) -> Tensor:
        return 0.5 * super().apply(x_th, block, *arguments)


class ScaledBlock(Block):
    def branch(self, x_th: Tensor, *arguments: Any) -> Tensor:
        return 0.5 * super().branch(x_th, *arguments)


class RootNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).add(self.eps).rsqrt()


def _gated(encoder: TransformerEncoder) -> None:
    encoder.stack.ffn[1].part.__class__ = GatedFeedForward


def _attention(encoder: TransformerEncoder) -> None:
    encoder.stack.attention[0].part.__class__ = ScaledAttention


def _residual(encoder: TransformerEncoder) -> None:
    encoder.stack.residual = ScaledResidual()


def _block(encoder: TransformerEncoder) -> None:
    encoder.stack.ffn[0].__class__ = ScaledBlock


def _norm(encoder: TransformerEncoder) -> None:
    encoder.stack.attention[1].norm.__class__ = RootNorm


def _activation(encoder: TransformerEncoder) -> None:
    encoder.stack.ffn[1].part.activation = torch.nn.functional.softsign


def _hook(encoder: TransformerEncoder) -> None:
    encoder.stack.ffn[0].part.up.register_forward_hook(lambda module, arguments, out: out * 2)


def _no_bias(encoder: TransformerEncoder) -> None:
    encoder.stack.ffn[0].part.down.bias = None


# What is put in -> how messages name it.
UNKNOWN: dict[str, tuple[Callable[[TransformerEncoder], None], str]] = {
    "gated feed-forward": (_gated, "encoder.stack.ffn.1.part is a GatedFeedForward"),
    "attention": (_attention, "encoder.stack.attention.0.part is a ScaledAttention"),
    "residual": (_residual, "encoder.stack has the residual connection ScaledResidual"),
    "block": (_block, "encoder.stack.ffn.0 is a ScaledBlock"),
    "norm": (_norm, "encoder.stack.attention.1.norm is a RootNorm"),
    "activation": (_activation, "encoder.stack.ffn.1.part has the activation"),
    "hook": (_hook, "encoder.stack.ffn.0.part.up has a forward hook"),
    "no bias": (_no_bias, "encoder.stack.ffn.0.part.down has no bias"),
}
