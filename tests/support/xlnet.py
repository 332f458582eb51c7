"""Transformers' XLNet and ours with the same weights, and batches with an order of prediction."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import XLNetConfig, XLNetModel

from bertree.batch import Batch, Continuation, Permutation
from bertree.model.architecture import Transformer
from bertree.model.network import Network, build

VOCAB, WIDTH, LAYERS, HEADS = 60, 32, 3, 4


def architecture(**axes: Any) -> Transformer:
    """A small XLNet without dropout."""
    return Transformer(
        **{
            "vocab_size": VOCAB,
            "width": WIDTH,
            "layers": LAYERS,
            "heads": HEADS,
            "ffn_width": 64,
            "embedding_width": WIDTH,
            "positions": "relative",
            "segments": 3,
            "segment_encoding": "relative",
            "query_stream": True,
            "summary": "last",
            "embedding_norm": False,
            "attention_bias": False,
            "mask_transform": False,
            "pooler": False,
            "sequence_head": "summary",
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
        | axes
    )


def peer(**settings: Any) -> XLNetModel:
    """Transformers' model of the same size, with weights far from those it starts with."""
    sizes = {"vocab_size": VOCAB, "d_model": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "d_inner": 64}
    model = XLNetModel(XLNetConfig(**sizes | {"dropout": 0.0} | settings)).eval()
    draw = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.25 * torch.randn(parameter.shape, generator=draw))
    return model


def tensors(
    model: XLNetModel, of: Callable[[Tensor], Tensor | None] = lambda parameter: parameter
) -> dict[str, Tensor]:
    """The peer's parameters by our names and in our shapes; `of`: or their gradients."""
    theirs = {name: of(parameter) for name, parameter in model.named_parameters()}
    theirs = {name: x if x is not None else torch.zeros(()) for name, x in theirs.items()}
    renamed = {"encoder.embeddings.tokens.weight": theirs["word_embedding.weight"]}
    renamed["encoder.query_start"] = theirs["mask_emb"].flatten()
    for i in range(model.config.n_layer):
        theirs_prefix, attention, ffn = (
            f"layer.{i}.rel_attn.",
            f"encoder.stack.attention.{i}.",
            f"encoder.stack.ffn.{i}.",
        )
        q, k, v, r = (theirs[theirs_prefix + letter].flatten(1).T for letter in "qkvr")
        renamed |= {
            attention + "part.qkv.weight": torch.cat([q, k, v]),
            attention + "part.out.weight": theirs[theirs_prefix + "o"].flatten(1),
            attention + "part.positions.project.weight": r,
            attention + "part.positions.content_bias": theirs[theirs_prefix + "r_w_bias"],
            attention + "part.positions.distance_bias": theirs[theirs_prefix + "r_r_bias"],
            attention + "part.positions.segment_bias": theirs[theirs_prefix + "r_s_bias"],
            attention + "part.positions.segment_vectors": theirs[theirs_prefix + "seg_embed"],
        }
        for kind in ("weight", "bias"):
            renamed[f"{attention}norm.{kind}"] = theirs[f"{theirs_prefix}layer_norm.{kind}"]
            renamed[f"{ffn}norm.{kind}"] = theirs[f"layer.{i}.ff.layer_norm.{kind}"]
            renamed[f"{ffn}part.up.{kind}"] = theirs[f"layer.{i}.ff.layer_1.{kind}"]
            renamed[f"{ffn}part.down.{kind}"] = theirs[f"layer.{i}.ff.layer_2.{kind}"]
    return renamed


def twin(model: XLNetModel, **axes: Any) -> Network:
    """Ours with the weights of the peer."""
    network = build(architecture(**axes)).eval()
    network.load_state_dict(tensors(model))
    return network


def draw_orders(lengths: Sequence[int], seed: int, targets: int | None = None) -> tuple[list[Tensor], list[Tensor]]:
    """Random ranks of the tokens of some sequences, and the tokens to predict; `targets`: how many of each sequence,
    else a third. One more token of each has a rank of its own and is not predicted, as special tokens."""
    draw = torch.Generator().manual_seed(seed)
    ranks, chosen = [], []
    for length in lengths:
        count = max(1, length // 3) if targets is None else targets
        ranked = torch.randperm(length, generator=draw)[: count + 1]
        rank = torch.zeros(length, dtype=torch.int64)
        rank[ranked] = 1 + torch.randperm(len(ranked), generator=draw)
        ranks.append(rank)
        chosen.append(ranked[:count].sort().values)
    return ranks, chosen


def with_order(batch: Batch, ranks: Sequence[Tensor], chosen: Sequence[Tensor]) -> Batch:
    """Add an order of prediction to a batch."""
    starts = batch.cu_seqlens[:-1].tolist()
    sizes = torch.tensor([0, *(len(tokens) for tokens in chosen)])
    order = Permutation(
        torch.cat([*ranks]).to(torch.int32),
        torch.cat([tokens + start for tokens, start in zip(chosen, starts, strict=True)]),
        sizes.cumsum(0).to(torch.int32),
        int(sizes.max()),
    )
    return replace(batch, permutation=order)


def in_lanes(batch: Batch, fresh: bool, **more: Any) -> Batch:
    """Let each sequence of a batch continue the lane of its number."""
    count = len(batch.cu_seqlens) - 1
    return replace(batch, continuation=Continuation(torch.arange(count), torch.full((count,), fresh), count, **more))


def masks_of(rank: Tensor, chosen: Tensor) -> dict[str, Tensor]:
    """The peer's arguments for an order: what each token does not see, and the tokens to predict."""
    length = len(rank)
    hidden = rank[None, :] > rank[:, None]
    hidden[chosen, chosen] = True
    mapping = torch.zeros(len(chosen), length)
    mapping[torch.arange(len(chosen)), chosen] = 1.0
    return {"perm_mask": hidden[None].float(), "target_mapping": mapping[None]}
