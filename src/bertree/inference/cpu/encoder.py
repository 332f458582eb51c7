"""An encoder as it serves on a CPU: the same weights laid out for speed, the same states to within rounding.

What is different from the modules it is made of: weights are packed once (see `products`), what follows a product is
fused to it, and attention is one call a layer. For the latter, whole sequences are put side by side into bins of a
width the kernel likes, and a mask keeps them apart; so padding exists only inside attention, where it is cheap.
Products are computed for a rounded number of tokens, since oneDNN compiles a kernel for every number it meets.

No gradients, no dropout, no state before the last; what is not a bidirectional transformer has no such form.

Shape letters: t tokens, u tokens rounded up, h width, n heads, d head width, b bins, w width of a bin.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.cpu.linear import Product, products
from bertree.model.attention import Attention
from bertree.model.encoder import Encoder, part_difference, unknown_part
from bertree.model.feed_forward import FeedForward
from bertree.model.network import Network
from bertree.model.residual import Joined, PreNorm

WIDTHS = (32, 64, 128)  # of bins; or what the longest sequence needs, in steps of 16, the kernel's
# What a bin costs beside its scores, in columns of them: measured, flash attention on AVX-512.
FIXED = 50
_flash = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


@dataclass(frozen=True)
class Bins:
    """Where in bins the tokens of a batch stand."""

    slots: Tensor  # b w, int64: which token stands there; token 0 where none does
    places: Tensor  # u, int64: where each token stands
    hidden: Tensor  # b x 1 x w x w, of the states' type: 0 where a token sees another, else -inf
    room: Tensor  # b w x 3 h: what every layer puts there in turn
    width: int

    @classmethod
    def of(cls, lengths: list[int], x_uh: Tensor) -> "Bins":
        """The cheapest of the possible widths, filled in order."""
        longest = max(lengths)
        possible = [-(-longest // 16) * 16, *(w for w in WIDTHS if w >= longest)]
        width = min(possible, key=lambda w: (_starts(lengths, w)[-1] // w + 1) * w * (FIXED + w))
        starts_s, lengths_s = torch.tensor(_starts(lengths, width)[:-1]), torch.tensor(lengths)
        tokens, bins = sum(lengths), int(starts_s[-1]) // width + 1
        owner_t = torch.arange(len(lengths)).repeat_interleave(lengths_s)
        order_t = torch.arange(tokens)
        placed_t = order_t + (starts_s - lengths_s.cumsum(0) + lengths_s)[owner_t]
        slots, owners = torch.zeros(bins * width, dtype=torch.long), torch.full((bins * width,), -1)
        slots[placed_t], owners[placed_t] = order_t, owner_t
        places_u = torch.zeros(len(x_uh), dtype=torch.long)
        places_u[:tokens] = placed_t
        of_b1w = owners.view(bins, 1, width)
        apart = of_b1w[..., :, None] != of_b1w[..., None, :]  # free slots see each other: no row sees nothing
        hidden = x_uh.new_zeros(apart.shape).masked_fill_(apart, float("-inf"))
        return cls(slots, places_u, hidden, x_uh.new_empty(bins * width, 3 * x_uh.shape[1]), width)

    def attend(self, qkv_uh: Tensor, heads: int) -> Tensor:
        """Queries, keys and values, side by side -> mixed values (u x h)."""
        torch.index_select(qkv_uh, 0, self.slots, out=self.room)
        q_bnwd, k_bnwd, v_bnwd = self.room.view(-1, self.width, 3, heads, qkv_uh.shape[1] // heads // 3).permute(
            2, 0, 3, 1, 4
        )
        assert _flash is not None
        mixed_bnwd = _flash(q_bnwd, k_bnwd, v_bnwd, attn_mask=self.hidden)[0]
        found: Tensor = mixed_bnwd.transpose(1, 2).reshape(len(self.slots), -1).index_select(0, self.places)
        return found


def _starts(lengths: list[int], width: int) -> list[int]:
    """Where each sequence starts, none across the end of a bin; and where the last one starts once more."""
    starts, at = [], 0
    for length in lengths:
        if at % width + length > width:
            at += width - at % width
        starts.append(at)
        at += length
    return [*starts, starts[-1]]


@dataclass(frozen=True)
class Norm:
    """A layer norm, in the precision of what it is given."""

    weight: Tensor
    bias: Tensor
    eps: float

    @classmethod
    def of(cls, norm: nn.LayerNorm) -> "Norm":
        """That of a module."""
        return cls(norm.weight.detach(), norm.bias.detach(), norm.eps)

    def __call__(self, x_uh: Tensor) -> Tensor:
        """Each token's states normed."""
        return torch.native_layer_norm(x_uh, self.weight.shape, self.weight, self.bias, self.eps)[0]


@dataclass(frozen=True)
class Block:
    """One layer."""

    heads: int
    activation: str
    before: bool  # norms come before their part
    qkv: Product
    out: Product
    up: Product
    down: Product
    mixing: Norm
    thinking: Norm

    def __call__(self, x_uh: Tensor, bins: Bins) -> Tensor:
        """Residual stream in, residual stream out."""
        if self.before:
            x_uh = self.out.onto(bins.attend(self.qkv(self.mixing(x_uh)), self.heads), x_uh)
            return self.down.onto(self.up.activated(self.thinking(x_uh), self.activation), x_uh)
        x_uh = self.mixing(self.out.onto(bins.attend(self.qkv(x_uh), self.heads), x_uh))
        return self.thinking(self.down.onto(self.up.activated(x_uh, self.activation), x_uh))


class Engine:
    """Batch -> last hidden states, as the encoder it was made of gives them."""

    def __init__(self, encoder: Encoder, blocks: list[Block]) -> None:
        self.encoder = encoder
        self.blocks = blocks
        self.norm = None if encoder.norm is None else Norm.of(encoder.norm)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Tensor:
        """The last hidden states (t x h)."""
        x_th: Tensor = self.encoder.embeddings(batch)
        tokens = len(x_th)
        lengths = [length for length in batch.lengths.tolist() if length]
        if not lengths:
            return x_th
        x_uh = x_th.new_zeros(rounded(tokens), x_th.shape[1])
        x_uh[:tokens] = x_th
        bins = Bins.of(lengths, x_uh)
        for block in self.blocks:
            x_uh = block(x_uh, bins)
        return (x_uh if self.norm is None else self.norm(x_uh))[:tokens]


def rounded(tokens: int) -> int:
    """A number of tokens no smaller, one of eight for every doubling."""
    step = max(8, (1 << (tokens - 1).bit_length()) // 16)
    return -(-tokens // step) * step


def build_engine(encoder: Encoder, whole: bool = False) -> Engine | None:
    """The fast form of an encoder, or None if one of its parts is unknown here. `whole`: products in 8-bit integers."""
    weight = encoder.embeddings.tokens.weight
    kind = products(torch.int8 if whole else weight.dtype)
    if kind is None or _flash is None or weight.device.type != "cpu" or (whole and weight.dtype != torch.float32):
        return None
    if unknown_part(encoder):
        return None
    stored: dict[nn.Linear, Product] = {}  # a shared layer is packed once

    def packed(linear: nn.Linear) -> Product:
        if linear not in stored:
            stored[linear] = kind(linear)  # type: ignore[call-arg]
        return stored[linear]

    blocks = []
    for attention, ffn in encoder.stack.plan:
        mixing, thinking = cast(Joined, encoder.stack.attention[attention]), cast(Joined, encoder.stack.ffn[ffn])
        mixer, thinker = cast(Attention, mixing.part), cast(FeedForward, thinking.part)
        if mixer.causal or type(mixing) is not type(thinking):
            return None
        blocks.append(
            Block(
                mixer.heads,
                thinker.activation_name,
                type(mixing) is PreNorm,
                packed(mixer.qkv),
                packed(mixer.out),
                packed(thinker.up),
                packed(thinker.down),
                Norm.of(mixing.norm),
                Norm.of(thinking.norm),
            )
        )
    return Engine(encoder, blocks)


def marks(module: nn.Module) -> tuple[object, ...] | None:
    """What changes when a weight is replaced or changed in place; None where PyTorch does not count that."""
    tensors = list(module.state_dict(keep_vars=True).values())
    if any(tensor.is_inference() for tensor in tensors):
        return None
    return tuple((tensor.data_ptr(), tensor._version) for tensor in tensors)


class Served:
    """A network's states, computed by its engine where there is one, else by the network itself.

    The engine's weights are copies, so it is made anew when a weight was replaced or changed in place since (which
    PyTorch counts, but for changes through `.data`). Weights that were made in inference mode are not counted: those
    are computed by the network."""

    def __init__(self) -> None:
        self.whole = False  # products in 8-bit integers
        self._made: tuple[object, Engine | None] = (None, None)

    def of(self, network: Network) -> Callable[[Batch], Tensor]:
        """What computes the states that stand above a network's top: for batches on its own device."""
        counted = marks(network.encoder)
        unknown = part_difference(network, (Network,)) or unknown_part(network.encoder)
        if network.features is not None or counted is None or unknown:
            engine = None
        else:
            now = (self.whole, counted, _structure(network.encoder))
            if self._made[0] != now:
                self._made = (now, build_engine(network.encoder, self.whole))
            engine = self._made[1]
        if self.whole and engine is None:
            raise UserError(
                "int8: is for transformers that see whole texts and are read at their last layer, "
                f"on a CPU with VNNI or AMX{f' ({unknown})' if unknown else ''}; use float32 or bfloat16"
            )
        return engine or network


def _structure(encoder: Encoder) -> tuple[object, ...]:
    """What an encoder of known parts computes with beside its weights."""
    stack = encoder.stack
    attention = [cast(Attention, cast(Joined, block).part) for block in stack.attention]
    ffn = [cast(FeedForward, cast(Joined, block).part) for block in stack.ffn]
    kinds = tuple(type(block) for block in (*stack.attention, *stack.ffn))
    return stack.plan, kinds, tuple((a.heads, a.causal) for a in attention), tuple(f.activation for f in ffn)
