"""A network on padded batches, for graphs of other run times (ONNX): encoder, readout and the head of its task.

Such run times need rectangular tensors, so here, and only here, a batch is padded: `input_ids`, `attention_mask` and,
for models with segments, `token_type_ids`, each b x l, of any size. The graph uses the network's weights but not its
code, so only components of exactly known types are exported; a head is called as it is.

Outputs: of a head on texts `logits` (b x c; of multiple choice one logit for each option, which is a row), on tokens
`logits` (b x l x c), for questions `start_logits` and `end_logits` (b x l); without a head of a task
`sentence_embedding` (b x w), or `last_hidden_state` (b x l x h) of a model that makes no vectors.

Shape letters: b texts, l length of the longest, h width, n heads, d head width, w width of a vector, c classes.
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.errors import UserError
from bertree.interop.contents import Contents
from bertree.model.heads import ClassHead
from bertree.model.layers.attention import Attention
from bertree.model.layers.embeddings import Embeddings, TokenEmbeddings
from bertree.model.layers.feed_forward import FeedForward
from bertree.model.layers.positions import LearnedPositions
from bertree.model.layers.residual import Block, PreNorm
from bertree.model.masks import NAMES, Full
from bertree.model.network import Network
from bertree.model.pooling import SentencePooling
from bertree.model.readout import LayerFeatures
from bertree.model.transformer import TransformerEncoder, component_difference, unknown_component

PRETRAINING_HEADS = ("mask", "pair")


class PaddedModel(nn.Module):
    """Encoder, readout and head on padded batches. `task_head` is the name of its head, empty if it has none."""

    def __init__(self, contents: Contents) -> None:
        super().__init__()
        a, network = contents.architecture, contents.network
        if not a.has_attention or a.axes()["attention"] != "full":
            raise UserError("ONNX: is for transformers with full attention, not for a bilstm or other attention")
        if network.readout.lstm or network.crf is not None:
            what = (
                "an LSTM on the encoder (lstm)" if network.readout.lstm else "a CRF, which chooses tags together (crf)"
            )
            raise UserError(f"ONNX: the readout has {what}, which bertree cannot export; train a head without it")
        if part := _unsupported_part(network):
            raise UserError(f"ONNX: {part}, which bertree cannot export; it exports the parts it builds itself")
        self.network: Network = network.eval()
        self.names = ["input_ids", "attention_mask", *(["token_type_ids"] if a.reads_segments else [])]
        self.task_head = next((name for name in network.heads if name not in PRETRAINING_HEADS), "")
        plain = "last_hidden_state" if network.vector is None else "sentence_embedding"
        output = "logits" if self.task_head else plain
        self.outputs = ["start_logits", "end_logits"] if self.task_head == "span" else [output]

    @property
    def _encoder(self) -> TransformerEncoder:
        return cast(TransformerEncoder, self.network.encoder)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor | tuple[Tensor, ...]:
        """Return the tensors named in `outputs`."""
        x_blh = self._states(input_ids, attention_mask, token_type_ids)
        if not self.task_head:
            vector = self.network.vector
            return x_blh if vector is None else _pool(vector, x_blh.float(), attention_mask)
        head = cast(ClassHead, self.network.heads[self.task_head])
        logits: Tensor = head(self._read(head.reads, x_blh, attention_mask))
        return logits.unbind(-1) if self.task_head == "span" else logits

    def _read(self, reads: str, x_blh: Tensor, mask_bl: Tensor) -> Tensor:
        """Return the input of a head: the state of each token, or one for each text."""
        if reads == "tokens":
            return x_blh
        if reads == "vector":
            assert self.network.vector is not None
            return _pool(self.network.vector, x_blh.float(), mask_bl)
        summary_bh = POOLS[SUMMARIES[self._encoder.summary]](x_blh, mask_bl)
        if reads == "sequence":
            return summary_bh
        assert self._encoder.pooler is not None
        pooled_bh: Tensor = self._encoder.pooler(summary_bh).tanh()
        return pooled_bh

    def _states(self, ids_bl: Tensor, mask_bl: Tensor, segments_bl: Tensor | None) -> Tensor:
        """Return the last states, or those of the layers that the readout joins."""
        layers = self._layers(ids_bl, mask_bl, segments_bl)
        features = self.network.features
        if features is None:
            return list(layers)[-1]
        joined: Tensor = features.join([x_blh for depth, x_blh in enumerate(layers) if depth in features.depths])
        return joined

    def _layers(self, ids_bl: Tensor, mask_bl: Tensor, segments_bl: Tensor | None) -> Iterator[Tensor]:
        """Yield the embeddings, then the states of each layer."""
        encoder = self._encoder
        x_blh = self._embed(encoder.embeddings, ids_bl, segments_bl)
        lowest = torch.finfo(x_blh.dtype).min
        mask_b11l = torch.where(mask_bl[:, None, None, :] > 0, 0.0, lowest).to(x_blh.dtype)
        yield x_blh
        for depth, (attention, ffn) in enumerate(encoder.stack.sharing, 1):
            x_blh = self._block(cast(Block, encoder.stack.attention[attention]), x_blh, mask_b11l)
            x_blh = self._block(cast(Block, encoder.stack.ffn[ffn]), x_blh, mask_b11l)
            yield encoder.norm(x_blh) if depth == encoder.depth and encoder.norm is not None else x_blh

    def _embed(self, embeddings: Embeddings, ids_bl: Tensor, segments_bl: Tensor | None) -> Tensor:
        assert isinstance(embeddings.tokens, TokenEmbeddings)
        x_ble = F.embedding(ids_bl, embeddings.tokens.weight)
        if embeddings.segments is not None:
            rows = torch.zeros_like(ids_bl) if segments_bl is None else segments_bl
            x_ble = x_ble + F.embedding(rows, embeddings.segments.weight)
        if isinstance(embeddings.positions, LearnedPositions):
            positions = torch.arange(ids_bl.shape[1], device=ids_bl.device) + embeddings.positions.offset
            x_ble = x_ble + F.embedding(positions, embeddings.positions.weight)
        x_ble = x_ble if embeddings.norm is None else embeddings.norm(x_ble)
        return x_ble if embeddings.projection is None else embeddings.projection(x_ble)

    def _block(self, block: Block, x_blh: Tensor, mask_b11l: Tensor) -> Tensor:
        """Return the residual stream after attention or feed-forward."""
        pre_norm = type(self._encoder.stack.residual) is PreNorm
        input_blh = block.norm(x_blh) if pre_norm else x_blh
        if isinstance(block.part, Attention):
            change_blh = _attend(block.part, input_blh, mask_b11l)
        else:
            ffn = cast(FeedForward, block.part)
            change_blh = ffn.down(ffn.activation(ffn.up(input_blh)))
        out_blh: Tensor = x_blh + change_blh if pre_norm else block.norm(x_blh + change_blh)
        return out_blh


def _unsupported_part(network: Network) -> str:
    """Describe the first component that the graph would compute differently; empty if there is none."""
    if component := unknown_component(network.encoder):
        return component
    for module in network.encoder.modules():
        if isinstance(module, Attention) and not isinstance(module.mask, Full):
            return f"encoder.stack.attention has a {NAMES[type(module.mask)]} mask"
    supported: list[tuple[str, nn.Module | None, type[nn.Module]]] = [
        ("network", network, Network),
        ("network.vector", network.vector, SentencePooling),
        ("network.features", network.features, LayerFeatures),
    ]
    supported += [
        (f"network.heads.{n}", head, ClassHead) for n, head in network.heads.items() if n not in PRETRAINING_HEADS
    ]
    for name, part, kind in supported:
        if part is not None and (reason := component_difference(part, (kind,))):
            return f"{name} {reason}"
    return ""


def _attend(part: Attention, x_blh: Tensor, mask_b11l: Tensor) -> Tensor:
    qkv = part.qkv(x_blh).unflatten(-1, (3, part.heads, part.head_width))
    q_bnld, k_bnld, v_bnld = (x.transpose(1, 2) for x in qkv.unbind(2))
    scores_bnll = q_bnld @ k_bnld.transpose(2, 3) * part.head_width**-0.5 + mask_b11l
    out: Tensor = part.out((scores_bnll.softmax(-1) @ v_bnld).transpose(1, 2).flatten(2))
    return out


def _count(mask_bl: Tensor) -> Tensor:
    return mask_bl.sum(1, keepdim=True).clamp(min=1).float()


def _sum(x_blh: Tensor, mask_bl: Tensor) -> Tensor:
    return (x_blh * mask_bl[:, :, None].to(x_blh.dtype)).sum(1)


def _last(x_blh: Tensor, mask_bl: Tensor) -> Tensor:
    index_b1h = (mask_bl.sum(1) - 1).clamp(min=0)[:, None, None].expand(-1, 1, x_blh.shape[2])
    return x_blh.gather(1, index_b1h).squeeze(1)


def _weighted(x_blh: Tensor, mask_bl: Tensor) -> Tensor:
    position_l1 = torch.arange(1, x_blh.shape[1] + 1, device=x_blh.device)[:, None]
    return _sum(x_blh * position_l1, mask_bl) / (_count(mask_bl) * (_count(mask_bl) + 1) / 2)


POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda x_blh, mask_bl: x_blh[:, 0],
    "mean": lambda x_blh, mask_bl: _sum(x_blh, mask_bl) / _count(mask_bl),
    "sqrt": lambda x_blh, mask_bl: _sum(x_blh, mask_bl) / _count(mask_bl).sqrt(),
    "max": lambda x_blh, mask_bl: x_blh.masked_fill(mask_bl[:, :, None] == 0, torch.finfo(x_blh.dtype).min).amax(1),
    "min": lambda x_blh, mask_bl: x_blh.masked_fill(mask_bl[:, :, None] == 0, torch.finfo(x_blh.dtype).max).amin(1),
    "last": _last,
    "weighted": _weighted,
}
SUMMARIES = {"first": "cls", "last": "last", "mean": "mean"}  # what represents a text -> its pooling


def _pool(pooling: SentencePooling, x_blh: Tensor, mask_bl: Tensor) -> Tensor:
    x_bw = torch.cat([POOLS[name](x_blh, mask_bl) for name in pooling.config.pooling.split("+")], -1)
    for layer in pooling.dense:
        x_bw = layer(x_bw)
    return F.normalize(x_bw, dim=-1) if pooling.config.normalize else x_bw
