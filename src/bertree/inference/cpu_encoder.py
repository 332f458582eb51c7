"""A fast form of an encoder for inference on a CPU: the same weights, the same states to within rounding.

Differences from the modules it is built from: weights are packed once (see `cpu_linear`), bias, activation and residual
are fused into the matrix products, and attention is one call per layer. For that call, sequences are put into
bins of a width that suits the kernel, and a mask separates them; so padding exists inside attention only.
Products are computed for a rounded number of tokens, since oneDNN compiles a kernel for every number it meets.

No gradients, no dropout, only the last hidden states. Layers are recomputed from their weights, so only components of
exactly known types are accepted (`unknown_component`); an encoder with any other component has no fast form.

Shape letters: t tokens, u tokens rounded up, h width, n heads, d head width, b bins, w width of a bin.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.cpu_linear import PackedLinear, linear_class
from bertree.model.encoder import Encoder
from bertree.model.layers.attention import Attention
from bertree.model.layers.feed_forward import FeedForward, in_chunks
from bertree.model.layers.residual import Block, PreNorm
from bertree.model.masks import Full
from bertree.model.network import Network
from bertree.model.torch_internals import flash_attention_for_cpu, has_flash_attention_for_cpu
from bertree.model.transformer import TransformerEncoder, component_difference, unknown_component

WIDTHS = (32, 64, 128)  # of bins; or the longest sequence, rounded up to the kernel's step of 16
# Fixed cost of a bin, in columns of scores: measured, flash attention on AVX-512.
FIXED_COST = 50


@dataclass(frozen=True)
class AttentionBins:
    """The slots of a batch's tokens in the bins of attention."""

    tokens: Tensor  # b w, int64: the token in each slot; token 0 in an empty one
    slots: Tensor  # u, int64: the slot of each token
    mask: Tensor  # b x 1 x w x w, of the states' type: 0 where a token sees another, else -inf
    buffer: Tensor  # b w x 3 h: queries, keys and values in their slots, overwritten by every layer
    width: int

    @classmethod
    def arrange(cls, lengths: list[int], x_uh: Tensor) -> "AttentionBins":
        """Choose the cheapest width and fill the bins in order."""
        longest = max(lengths)
        possible = [-(-longest // 16) * 16, *(w for w in WIDTHS if w >= longest)]
        width = min(possible, key=lambda w: (_starts(lengths, w)[-1] // w + 1) * w * (FIXED_COST + w))
        starts_s, lengths_s = torch.tensor(_starts(lengths, width)), torch.tensor(lengths)
        count, bins = sum(lengths), int(starts_s[-1]) // width + 1
        sequence_t = torch.arange(len(lengths)).repeat_interleave(lengths_s)
        token_t = torch.arange(count)
        slot_t = token_t + (starts_s - lengths_s.cumsum(0) + lengths_s)[sequence_t]
        tokens, sequences = torch.zeros(bins * width, dtype=torch.long), torch.full((bins * width,), -1)
        tokens[slot_t], sequences[slot_t] = token_t, sequence_t
        slots_u = torch.zeros(len(x_uh), dtype=torch.long)
        slots_u[:count] = slot_t
        sequence_b1w = sequences.view(bins, 1, width)
        # Empty slots see each other, so that no row of scores is all -inf.
        apart = sequence_b1w[..., :, None] != sequence_b1w[..., None, :]
        mask = x_uh.new_zeros(apart.shape).masked_fill_(apart, float("-inf"))
        return cls(tokens, slots_u, mask, x_uh.new_empty(bins * width, 3 * x_uh.shape[1]), width)

    def attend(self, qkv_uh: Tensor, heads: int) -> Tensor:
        """Queries, keys and values, side by side -> mixed values (u x h)."""
        torch.index_select(qkv_uh, 0, self.tokens, out=self.buffer)
        q_bnwd, k_bnwd, v_bnwd = self.buffer.view(-1, self.width, 3, heads, qkv_uh.shape[1] // heads // 3).permute(
            2, 0, 3, 1, 4
        )
        mixed_bnwd, _ = flash_attention_for_cpu(q_bnwd, k_bnwd, v_bnwd, attn_mask=self.mask)
        mixed_uh: Tensor = mixed_bnwd.transpose(1, 2).reshape(len(self.tokens), -1).index_select(0, self.slots)
        return mixed_uh


def _starts(lengths: list[int], width: int) -> list[int]:
    """Return the first slot of each sequence; no sequence crosses the end of a bin."""
    starts, at = [], 0
    for length in lengths:
        if at % width + length > width:
            at += width - at % width
        starts.append(at)
        at += length
    return starts


@dataclass(frozen=True)
class CpuNorm:
    """A layer norm in the precision of its input."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def from_module(cls, norm: nn.LayerNorm) -> "CpuNorm":
        """Copy nothing: share the module's tensors."""
        return cls(norm.weight.detach(), norm.bias.detach(), norm.eps)

    def __call__(self, x_uh: Tensor) -> Tensor:
        """Norm each token's state."""
        return torch.native_layer_norm(x_uh, self.weight.shape, self.weight, self.bias, self.eps)[0]


class Mixing(Protocol):
    """What mixes the tokens of a layer: attention within a batch, or with a cache."""

    def attend(self, qkv_uh: Tensor, heads: int) -> Tensor:
        """Queries, keys and values, side by side -> mixed values."""


@dataclass(frozen=True)
class CpuBlock:
    """One layer."""

    heads: int
    activation: str
    pre_norm: bool
    qkv: PackedLinear
    out: PackedLinear
    up: PackedLinear
    down: PackedLinear
    attention_norm: CpuNorm
    ffn_norm: CpuNorm
    ffn_chunk: int  # tokens at a time; 0: all at once

    def __call__(self, x_uh: Tensor, mixing: Mixing) -> Tensor:
        """Return the residual stream after this layer."""
        if self.pre_norm:
            x_uh = self.out.add_residual(mixing.attend(self.qkv(self.attention_norm(x_uh)), self.heads), x_uh)
        else:
            x_uh = self.attention_norm(self.out.add_residual(mixing.attend(self.qkv(x_uh), self.heads), x_uh))
        return in_chunks(self._feed_forward, x_uh, self.ffn_chunk)

    def _feed_forward(self, x_uh: Tensor) -> Tensor:
        if self.pre_norm:
            return self.down.add_residual(self.up.with_activation(self.ffn_norm(x_uh), self.activation), x_uh)
        return self.ffn_norm(self.down.add_residual(self.up.with_activation(x_uh, self.activation), x_uh))


class CpuEncoder:
    """Batch -> last hidden states, equal to those of the encoder it was built from."""

    def __init__(self, encoder: TransformerEncoder, blocks: list[CpuBlock]) -> None:
        self.encoder = encoder
        self.blocks = blocks
        self.norm = None if encoder.norm is None else CpuNorm.from_module(cast(nn.LayerNorm, encoder.norm))

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """Return the last hidden states (t x h)."""
        x_th: Tensor = self.encoder.embeddings(batch)
        tokens = len(x_th)
        lengths = [length for length in batch.lengths.tolist() if length]
        if not lengths:
            return x_th
        x_uh = x_th.new_zeros(round_up(tokens), x_th.shape[1])
        x_uh[:tokens] = x_th
        bins = AttentionBins.arrange(lengths, x_uh)
        for block in self.blocks:
            x_uh = block(x_uh, bins)
        return (x_uh if self.norm is None else self.norm(x_uh))[:tokens]


def round_up(tokens: int) -> int:
    """Round a number of tokens up, to one of eight values per doubling."""
    step = max(8, (1 << (tokens - 1).bit_length()) // 16)
    return -(-tokens // step) * step


def build_cpu_encoder(encoder: Encoder, int8: bool = False) -> CpuEncoder | None:
    """Build the fast form of an encoder; None if it has unknown components or this CPU cannot compute it.

    `int8`: matrix products with 8-bit integers.
    """
    if unknown_component(encoder):
        return None
    weight = cast(nn.Embedding, encoder.embeddings.tokens).weight
    kind = linear_class(torch.int8 if int8 else weight.dtype)
    if (
        kind is None
        or not has_flash_attention_for_cpu()
        or weight.device.type != "cpu"
        or (int8 and weight.dtype != torch.float32)
    ):
        return None
    assert isinstance(encoder, TransformerEncoder)
    if not all(isinstance(cast(Attention, cast(Block, block).part).mask, Full) for block in encoder.stack.attention):
        return None
    return CpuEncoder(encoder, build_blocks(encoder, kind))


def build_blocks(encoder: TransformerEncoder, kind: type[PackedLinear]) -> list[CpuBlock]:
    """Build the layers of an encoder of known components, with linear layers of a kind."""
    packed: dict[nn.Linear, PackedLinear] = {}  # a shared layer is packed once

    def pack(linear: nn.Linear) -> PackedLinear:
        if linear not in packed:
            packed[linear] = kind(linear)  # type: ignore[call-arg]
        return packed[linear]

    blocks = []
    for attention_index, ffn_index in encoder.stack.sharing:
        attention_block = cast(Block, encoder.stack.attention[attention_index])
        ffn_block = cast(Block, encoder.stack.ffn[ffn_index])
        attention, ffn = cast(Attention, attention_block.part), cast(FeedForward, ffn_block.part)
        blocks.append(
            CpuBlock(
                heads=attention.heads,
                activation=ffn.activation_name,
                pre_norm=type(encoder.stack.residual) is PreNorm,
                qkv=pack(attention.qkv),
                out=pack(attention.out),
                up=pack(ffn.up),
                down=pack(ffn.down),
                attention_norm=CpuNorm.from_module(cast(nn.LayerNorm, attention_block.norm)),
                ffn_norm=CpuNorm.from_module(cast(nn.LayerNorm, ffn_block.norm)),
                ffn_chunk=ffn.chunk,
            )
        )
    return blocks


def weight_versions(module: nn.Module) -> tuple[object, ...] | None:
    """Return a value that changes when a weight is replaced or changed in place; None if changes are not counted."""
    tensors = list(module.state_dict(keep_vars=True).values())
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)


class CpuRuntime:
    """Chooses what computes a network's states: its fast form if there is one, else the network itself.

    The fast form holds copies of the weights, so it is rebuilt when a weight was replaced or changed in place
    (which PyTorch counts, except for changes through `.data`). Changes to weights created in inference mode are not
    counted; a network with such weights computes its states itself.
    """

    def __init__(self) -> None:
        self.int8 = False  # matrix products with 8-bit integers
        self._built: tuple[object, CpuEncoder | None] = (None, None)  # with the versions it was built from

    def __deepcopy__(self, memo: object) -> "CpuRuntime":
        """Copy the setting alone: packed weights cannot be copied, and are those of the original."""
        copied = CpuRuntime()
        copied.int8 = self.int8
        return copied

    def states_of(self, network: Network) -> Callable[[Batch], Tensor]:
        """Return a function from batches on the network's device to the heads' input."""
        versions = weight_versions(network.encoder)
        unknown = component_difference(network, (Network,)) or unknown_component(network.encoder)
        if network.features is not None or versions is None or unknown:
            encoder = None
        else:
            key = (self.int8, versions, _structure(network.encoder))
            if self._built[0] != key:
                self._built = (key, build_cpu_encoder(network.encoder, self.int8))
            encoder = self._built[1]
        if self.int8 and encoder is None:
            raise UserError(
                "int8: is for transformers with full attention that are read at their last layer, on a CPU"
                f"{f' ({unknown})' if unknown else ''}; use float32 or bfloat16"
            )
        return encoder or network


def _structure(encoder: Encoder) -> tuple[object, ...]:
    """Return what determines the result of an encoder of known components, apart from its weights."""
    assert isinstance(encoder, TransformerEncoder)
    stack = encoder.stack
    attention = [cast(Attention, cast(Block, block).part) for block in stack.attention]
    ffn = [cast(FeedForward, cast(Block, block).part) for block in stack.ffn]
    return (
        stack.sharing,
        stack.residual,
        tuple((a.heads, a.mask) for a in attention),
        tuple((f.activation, f.chunk) for f in ffn),
    )
