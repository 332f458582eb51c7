"""Next-token logits, computed from an encoder's weights without its modules.

Linear layers are packed once, the cache is written in place, and nothing else happens in a step. Layers are recomputed
from their weights, so only components of exactly known types are accepted (`unknown_component`).

Greedy decoding of one sequence on a CPU needs no logits but the largest. Such a step takes as long as reading the
weights, and the output matrix is a large share of them (a third in GPT-2). `ScreenedOutput` reads it as 8-bit integers
first, a quarter of the bytes. That gives every logit within a known error; the few tokens that may be the most likely
get their exact logits.

Shape letters: s sequences, one in each lane; t tokens, u tokens rounded up, l layers, n heads, d head width, m tokens
of a lane (in `ScreenedOutput`: tokens that may be the most likely), h width, v vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.inference.cpu_encoder import CpuBlock, CpuNorm, build_blocks, round_up
from bertree.inference.cpu_linear import (
    STEPS,
    TINY,
    EagerLinear,
    Int8Linear,
    PackedLinear,
    TransposedLinear,
    linear_class,
)
from bertree.model.heads import MaskHead
from bertree.model.kernels.layout import Layout
from bertree.model.kernels.table import attend_fused
from bertree.model.layers.attention import Attention
from bertree.model.layers.basic import without_weights
from bertree.model.layers.embeddings import TokenEmbeddings
from bertree.model.masks import Causal
from bertree.model.memory import KEYS, VALUES
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder, component_difference, unknown_component

ROUNDING = 1e-5  # relative error of both products, in addition to that of the 8-bit integers


class ScreenedOutput:
    """A linear layer that gives -inf for every output that cannot be the largest."""

    def __init__(self, linear: nn.Linear) -> None:
        self.weight_vh, bias = linear.weight.detach(), linear.bias
        self.bias_v = None if bias is None else bias.detach()
        self.rough = Int8Linear(linear)
        scale_v1 = self.rough.scale_o[:, None]
        rough_vh = (self.weight_vh / scale_v1).round_().mul_(scale_v1)
        self.norm_v = rough_vh.norm(dim=1)
        self.error_v = rough_vh.sub_(self.weight_vh).norm(dim=1) + ROUNDING * self.norm_v

    def __call__(self, x_1h: Tensor, banned_v: Tensor | None = None) -> Tensor:
        """Return the logits of the tokens that may be the most likely, and -inf for all others (1 x v).

        `banned_v`: -inf for tokens that are not to be considered, else 0."""
        rough_v = self.rough(x_1h)[0]
        step = x_1h.abs().amax().clamp(min=TINY) / STEPS  # a state is rounded by half of it at most
        rounding = step * (x_1h.shape[1] ** 0.5 / 2)
        margin_v = (self.error_v * x_1h.norm()).addcmul_(self.norm_v, rounding)
        if banned_v is not None:
            rough_v += banned_v
        likely_m = (rough_v + margin_v >= (rough_v - margin_v).amax()).nonzero()[:, 0]
        exact_m = self.weight_vh[likely_m] @ x_1h[0]
        if self.bias_v is not None:
            exact_m += self.bias_v[likely_m]
        return rough_v.fill_(-torch.inf).index_copy_(0, likely_m, exact_m)[None]


def can_screen() -> bool:
    """Whether this CPU multiplies 8-bit integers without overflow: it has instructions for it (VNNI)."""
    is_supported = getattr(torch.cpu, "_is_vnni_supported", None)
    return is_supported is not None and bool(is_supported()) and linear_class(torch.int8) is Int8Linear


@dataclass(frozen=True)
class DecoderWeights:
    """The weights of an encoder and its LM head, as `FastDecoder` computes with them."""

    encoder: TransformerEncoder
    head: MaskHead
    blocks: list[CpuBlock]
    norm: CpuNorm | None
    output: PackedLinear | ScreenedOutput  # hidden state, transformed -> logits

    @classmethod
    def of(cls, network: Network, one_lane: bool = False, greedy: bool = False) -> "DecoderWeights | None":
        """Prepare a network's weights; None if it has an unknown component, or attention that is not causal.

        `one_lane`: for one token at a time. `greedy`: the most likely token is always chosen, with `one_lane`."""
        encoder, head = network.encoder, network.heads["mask"]
        unknown = unknown_component(encoder, embeddings=False) or component_difference(head, (MaskHead,))
        if (
            unknown
            or component_difference(network, (Network,))
            or type(encoder.embeddings.tokens) is not TokenEmbeddings
        ):
            return None
        assert isinstance(encoder, TransformerEncoder)
        assert isinstance(head, MaskHead)
        if not all(isinstance(cast(Attention, block.part).mask, Causal) for block in encoder.stack.attention):
            return None
        weight_ve = head.matrix(encoder.embeddings.tokens)
        on_cpu = weight_ve.device.type == "cpu"
        packed = linear_class(weight_ve.dtype) if on_cpu and not one_lane else None
        kind = packed or (TransposedLinear if on_cpu and weight_ve.dtype == torch.float32 else EagerLinear)
        with without_weights():
            matrix = nn.Linear(1, 1)
        matrix.weight = weight_ve
        matrix.register_parameter("bias", head.bias)
        norm = None if encoder.norm is None else CpuNorm.from_module(cast(nn.LayerNorm, encoder.norm))
        screened = greedy and one_lane and kind is TransposedLinear and can_screen()
        output = ScreenedOutput(matrix) if screened else kind(matrix)  # type: ignore[call-arg]
        return cls(encoder, head, build_blocks(encoder, kind), norm, output)

    def logits(self, x_sh: Tensor, banned_v: Tensor | None = None) -> Tensor:
        """Return the logits of states after the last layer (s x v).

        `banned_v`: -inf for tokens that are not to be chosen; needed only where outputs are screened."""
        x_sh = self.head.transform(x_sh if self.norm is None else self.norm(x_sh))
        return self.output(x_sh, banned_v) if isinstance(self.output, ScreenedOutput) else self.output(x_sh)


@dataclass
class LaneCache:
    """Keys and values of each lane's tokens, from position 0 on, and their number."""

    keys_lsnmd: Tensor
    values_lsnmd: Tensor
    lengths: list[int]
    lengths_s: Tensor = field(init=False)  # the same on the device

    def __post_init__(self) -> None:
        self.lengths_s = torch.tensor(self.lengths, device=self.keys_lsnmd.device)

    def keep(self, lanes: Sequence[int]) -> None:
        """Continue with these lanes, in this order."""
        rows_s = torch.tensor(lanes, device=self.keys_lsnmd.device)
        self.keys_lsnmd, self.values_lsnmd = self.keys_lsnmd[:, rows_s], self.values_lsnmd[:, rows_s]
        self.lengths, self.lengths_s = [self.lengths[lane] for lane in lanes], self.lengths_s[rows_s]


class PromptMixing:
    """Attention of prompts, packed; their keys and values are written into the cache."""

    def __init__(self, cache: LaneCache, batch: Batch) -> None:
        self.cache, self.layer = cache, -1
        self.layout, self.tokens = Layout.of(batch, Causal()), len(batch.ids)
        self.lane_t, self.position_t = batch.sequence_ids, batch.positions

    def attend(self, qkv_uh: Tensor, heads: int) -> Tensor:
        """Queries, keys and values of the next layer, side by side -> mixed values."""
        self.layer += 1
        qkv_t3nd = qkv_uh[: self.tokens].unflatten(1, (3, heads, -1))
        self.cache.keys_lsnmd[self.layer, self.lane_t, :, self.position_t] = qkv_t3nd[:, 1]
        self.cache.values_lsnmd[self.layer, self.lane_t, :, self.position_t] = qkv_t3nd[:, 2]
        mixed_th = attend_fused(qkv_t3nd, self.layout).flatten(1)
        return F.pad(mixed_th, (0, 0, 0, len(qkv_uh) - self.tokens))


class StepMixing:
    """Attention of one token in each lane to the first `length` tokens of its lane."""

    def __init__(self, cache: LaneCache, length: int, even: bool) -> None:
        """`even`: all lanes have `length` tokens with the new one, so that no mask is needed."""
        self.cache, self.length, self.even, self.layer = cache, length, even, -1
        lengths_s = cache.lengths_s
        self.lanes_s = torch.arange(len(lengths_s), device=lengths_s.device)
        self.mask = None
        if not even:
            seen_sm = torch.arange(length, device=lengths_s.device) <= lengths_s[:, None]
            self.mask = seen_sm[:, None, None]

    def attend(self, qkv_sh: Tensor, heads: int) -> Tensor:
        """Queries, keys and values of the next layer, side by side -> mixed values."""
        self.layer += 1
        q_snd, k_snd, v_snd = qkv_sh.unflatten(1, (3, heads, -1)).unbind(1)
        keys_snmd, values_snmd = self.cache.keys_lsnmd[self.layer], self.cache.values_lsnmd[self.layer]
        if self.even:
            keys_snmd[:, :, self.length - 1], values_snmd[:, :, self.length - 1] = k_snd, v_snd
        else:
            keys_snmd[self.lanes_s, :, self.cache.lengths_s] = k_snd
            values_snmd[self.lanes_s, :, self.cache.lengths_s] = v_snd
        seen = slice(self.length)
        mixed_sn1d = F.scaled_dot_product_attention(
            q_snd[:, :, None], keys_snmd[:, :, seen], values_snmd[:, :, seen], attn_mask=self.mask
        )
        return mixed_sn1d.flatten(1)


class FastDecoder:
    """Computes from weights that were prepared once."""

    in_place = True

    def __init__(self, weights: DecoderWeights, banned_v: Tensor | None = None) -> None:
        """`banned_v`: -inf for tokens that are never chosen, else 0; needed only where outputs are screened."""
        self.weights, self.banned_v = weights, banned_v
        self.cache = LaneCache(torch.empty(0), torch.empty(0), [])

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each lane."""
        return self.cache.lengths

    @property
    def capacity(self) -> int:
        """Tokens that a lane can hold."""
        return self.cache.keys_lsnmd.shape[3]

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> Tensor:
        """Read prompts and return the logits of their next tokens."""
        encoder, weights = self.weights.encoder, self.weights
        batch = Batch.pack(prompts).to(next(encoder.parameters()).device)
        state = encoder.start_cache(len(prompts), capacity)
        self.cache = LaneCache(state[KEYS], state[VALUES], list(map(len, prompts)))
        x_th: Tensor = encoder.embeddings(batch)
        if x_th.device.type == "cpu":
            x_th = F.pad(x_th, (0, 0, 0, round_up(len(x_th)) - len(x_th)))
        mixing = PromptMixing(self.cache, batch)
        for block in weights.blocks:
            x_th = block(x_th, mixing)
        return weights.logits(x_th[batch.last], self.banned_v)

    def step(self, ids_s: Tensor) -> Tensor:
        """Read the next token of every lane and return the logits of the token after it."""
        longest = max(self.lengths)
        logits_sv = self.compute(ids_s, longest + 1, min(self.lengths) == longest)
        self.count(1)
        return logits_sv

    def compute(self, ids_s: Tensor, length: int, even: bool) -> Tensor:
        """Compute a step; see `decoders.StepDecoder`."""
        cache, weights = self.cache, self.weights
        x_sh: Tensor = weights.encoder.embeddings(one_token_batch(ids_s, cache.lengths_s))
        mixing = StepMixing(cache, length, even)
        for block in weights.blocks:
            x_sh = block(x_sh, mixing)
        cache.lengths_s += 1
        return weights.logits(x_sh, self.banned_v)

    def count(self, tokens: int) -> None:
        """Count tokens of every lane, on the host."""
        self.cache.lengths = [length + tokens for length in self.cache.lengths]

    def rewind(self) -> None:
        """Undo the count of a computed step on the device."""
        self.cache.lengths_s -= 1

    def keep(self, lanes: Sequence[int]) -> None:
        """Continue with these lanes, in this order."""
        self.cache.keep(lanes)


def one_token_batch(ids_s: Tensor, positions_s: Tensor) -> Batch:
    """Return a batch of sequences of one token each, at these positions."""
    bounds = torch.arange(len(ids_s) + 1, dtype=torch.int32, device=ids_s.device)
    return Batch(ids_s, positions_s, torch.zeros_like(ids_s), bounds, 1)
