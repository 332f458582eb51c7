"""Sentence vectors: pooling of a text's states, dense layers, normalization.

What Sentence-BERT puts on an encoder, as a value. Which layers are read is a choice of `Readout`, below it. Sums and
vectors are float32 whatever the precision of the encoder: a mean over hundreds of tokens in half precision would depend
on their order.

Shape letters: t tokens, s sequences, w width of the states, d width of the vector.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError, suggest

MOST = 2**16  # files are not trusted: a width of a billion must not be built
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")


def _cls(states_tw: Tensor, batch: Batch) -> Tensor:
    return states_tw[batch.first if batch.summary is None else batch.summary].float()


def _last(states_tw: Tensor, batch: Batch) -> Tensor:
    return states_tw[batch.last].float()


def _sum(states_tw: Tensor, batch: Batch) -> Tensor:
    empty = states_tw.new_zeros(len(batch.cu_seqlens) - 1, states_tw.shape[1], dtype=torch.float32)
    return empty.index_add(0, batch.sequence_ids, states_tw.float())


def _counts(batch: Batch) -> Tensor:
    return batch.lengths.clamp(min=1).float()[:, None]


def mean_states(states_tw: Tensor, batch: Batch) -> Tensor:
    """Return the mean of each sequence's states, in float32 (s x w)."""
    return _sum(states_tw, batch) / _counts(batch)


def _sqrt(states_tw: Tensor, batch: Batch) -> Tensor:
    return _sum(states_tw, batch) / _counts(batch).sqrt()


def _weighted(states_tw: Tensor, batch: Batch) -> Tensor:
    """Weight tokens by their position, for causal encoders, whose later tokens have seen more."""
    n = _counts(batch)
    return _sum(states_tw.float() * (batch.positions + 1.0)[:, None], batch) / (n * (n + 1) / 2)


def _extreme(states_tw: Tensor, batch: Batch, reduction: str) -> Tensor:
    empty = states_tw.new_zeros(len(batch.cu_seqlens) - 1, states_tw.shape[1], dtype=torch.float32)
    index = batch.sequence_ids[:, None].expand(-1, states_tw.shape[1])
    return empty.scatter_reduce(0, index, states_tw.float(), reduction, include_self=False)


POOLINGS: dict[str, Callable[[Tensor, Batch], Tensor]] = {
    "cls": _cls,  # the token that represents a text: the first, or the last of an encoder that ends in it
    "mean": mean_states,
    "max": partial(_extreme, reduction="amax"),
    "min": partial(_extreme, reduction="amin"),
    "last": _last,
    "sqrt": _sqrt,
    "weighted": _weighted,
}


@dataclass(frozen=True)
class Dense:
    """Settings of a linear layer on the vector."""

    width: int
    activation: str = "tanh"
    bias: bool = True


@dataclass(frozen=True)
class PoolingConfig:
    """How a text's states become one vector. Defaults: their mean."""

    pooling: str = "mean"  # of POOLINGS; several are concatenated: mean+max
    normalize: bool = False  # scale vectors to length 1
    dense: tuple[Dense, ...] = ()  # layers after the pooling
    similarity: str = "cosine"  # how vectors are meant to be compared
    prompts: tuple[tuple[str, str], ...] = ()  # texts to put in front, by name: ("query", "query: ")
    prompt: str = ""  # name of the prompt that is used by default; empty: none

    def __post_init__(self) -> None:
        for name in self.pooling.split("+"):
            if name not in POOLINGS:
                raise UserError(f"vector.pooling: unknown value '{name}', {suggest(name, POOLINGS)}")
        if self.similarity not in SIMILARITIES:
            raise UserError(f"vector.similarity: unknown '{self.similarity}', {suggest(self.similarity, SIMILARITIES)}")
        for layer in self.dense:
            if layer.activation not in ACTIVATIONS:
                raise UserError(f"vector.dense: unknown '{layer.activation}', {suggest(layer.activation, ACTIVATIONS)}")
            if not 1 <= layer.width <= MOST:
                raise UserError(f"vector.dense: a width must lie between 1 and {MOST}, not {layer.width}")
        if self.prompt and self.prompt not in dict(self.prompts):
            raise UserError(f"vector.prompt: there is no prompt '{self.prompt}'")

    def prompt_text(self, name: str | None, model: str = "the model") -> str:
        """Return the prompt of that name; None: the default prompt. `model`: its name, for messages."""
        prompts = dict(self.prompts)
        if name and name not in prompts:
            why = suggest(name, prompts) if prompts else "it has no prompts"
            raise UserError(f"{model}: has no prompt '{name}': {why}")
        return prompts.get(self.prompt if name is None else name, "")

    def width(self, states: int) -> int:
        """Return the width of the vector, given the width of the states."""
        return self.dense[-1].width if self.dense else states * len(self.pooling.split("+"))

    def as_mapping(self) -> Mapping[str, Any]:
        """Return plain values, as bertree.toml holds them."""
        return {
            "pooling": self.pooling,
            "normalize": self.normalize,
            "widths": [layer.width for layer in self.dense],
            "activations": [layer.activation for layer in self.dense],
            "biases": [layer.bias for layer in self.dense],
            "similarity": self.similarity,
            "kinds": [kind for kind, _ in self.prompts],
            "prompts": [text for _, text in self.prompts],
            "prompt": self.prompt,
        }


class DenseLayer(nn.Module):
    """A linear layer and its activation."""

    def __init__(self, width: int, dense: Dense) -> None:
        super().__init__()
        self.linear = nn.Linear(width, dense.width, bias=dense.bias)
        self.activation = ACTIVATIONS[dense.activation]()

    def forward(self, x_sd: Tensor) -> Tensor:
        """Transform vectors; the result is float32."""
        out_sd: Tensor = self.activation(self.linear(x_sd.to(self.linear.weight.dtype))).float()
        return out_sd


class SentencePooling(nn.Module):
    """States of tokens -> vectors of texts. `ends_in_summary`: `cls` is the last token (XLNet)."""

    def __init__(self, width: int, config: PoolingConfig, ends_in_summary: bool = False) -> None:
        super().__init__()
        self.config = config
        self.ends_in_summary = ends_in_summary
        self.state_width = width
        self.width = config.width(width)
        self._pools = [POOLINGS[name] for name in config.pooling.split("+")]
        widths = [width * len(self._pools), *(layer.width for layer in config.dense)]
        self.dense = nn.ModuleList(DenseLayer(w, layer) for w, layer in zip(widths, config.dense, strict=False))

    def forward(self, states_tw: Tensor, batch: Batch) -> Tensor:
        """Return one vector per sequence (s x d), in float32."""
        x_sd = self.unscaled(states_tw, batch)
        return F.normalize(x_sd, dim=-1) if self.config.normalize else x_sd

    def unscaled(self, states_tw: Tensor, batch: Batch) -> Tensor:
        """Return the vectors before they are scaled to length 1, if they are."""
        if self.ends_in_summary and batch.summary is None:
            batch = replace(batch, summary=batch.last)
        with torch.autocast(states_tw.device.type, enabled=False):
            pooled = [pool(states_tw, batch) for pool in self._pools]
            x_sd = pooled[0] if len(pooled) == 1 else torch.cat(pooled, -1)
            for layer in self.dense:
                x_sd = layer(x_sd)
        return x_sd
