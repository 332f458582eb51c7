"""Export a model as one ONNX file, for runtimes other than PyTorch: encoder, pooling and normalization in one graph.

Such runtimes need rectangular tensors, so here, and only here, a batch is padded: `input_ids`, `attention_mask` and,
for models with segments, `token_type_ids`, each b x l, of any size. The output is `sentence_embedding` (b x w), or
`last_hidden_state` (b x l x h) of a model that makes no vectors. The graph uses the network's weights but not its code,
so only components of exactly known types are exported.

Shape letters: b texts, l length of the longest, h width, n heads, d head width, w width of a vector.
"""

import importlib
import importlib.util
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.errors import UserError, install_hint
from bertree.files.atomic import new_folder
from bertree.interop.contents import Contents
from bertree.model.layers.attention import Attention
from bertree.model.layers.embeddings import Embeddings, TokenEmbeddings
from bertree.model.layers.feed_forward import FeedForward
from bertree.model.layers.positions import LearnedPositions
from bertree.model.layers.residual import Block, PreNorm
from bertree.model.masks import NAMES, Full
from bertree.model.network import Network
from bertree.model.pooling import SentencePooling
from bertree.model.transformer import TransformerEncoder, component_difference, unknown_component
from bertree.text.tokenizer import FILES as TOKENIZER_FILES

FILE, EXTERNAL_DATA = "model.onnx", "model.onnx.data"
PRECISIONS = ("float32", "int8")
MAX_SINGLE_FILE = 2**30  # bytes of weights; larger ones go to a second file (the format's limit is twice this)
NEEDED = {"float32": ("onnx", "onnxscript"), "int8": ("onnx", "onnxscript", "onnxruntime")}


def write(contents: Contents, folder: Path, precision: str = "float32") -> None:
    """Write the model and its tokenizer, completely or not at all. int8: ONNX Runtime's dynamic quantization."""
    if precision not in PRECISIONS:
        raise UserError(f"precision {precision}: an ONNX file is written in {' or '.join(PRECISIONS)}")
    missing = [name for name in NEEDED[precision] if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX: {', '.join(missing)} not installed; {install_hint('onnx')}")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else ONNX Runtime sends telemetry
    module = PaddedModel(contents)
    with new_folder(folder, (FILE, EXTERNAL_DATA, *TOKENIZER_FILES)) as work, _quiet():
        if precision == "int8":
            with tempfile.TemporaryDirectory(dir=work) as scratch:
                _export(module, Path(scratch) / FILE)
                _quantize(Path(scratch) / FILE, work / FILE)
        else:
            _export(module, work / FILE)
        if contents.tokenizer:
            contents.tokenizer.save(work, contents.max_length, contents.architecture.reads_segments)


class PaddedModel(nn.Module):
    """The encoder and its pooling on padded batches."""

    def __init__(self, contents: Contents) -> None:
        super().__init__()
        a, network = contents.architecture, contents.network
        if not a.has_attention or a.axes()["attention"] != "full" or network.features is not None:
            raise UserError(
                "ONNX: is for transformers with full attention whose last layer is read, "
                "not for a bilstm, other kinds of attention, or a readout of other layers"
            )
        if part := _unsupported_part(network):
            raise UserError(f"ONNX: {part}, which bertree cannot export; it exports the parts it builds itself")
        self.network: Network = network.eval()
        self.names = ["input_ids", "attention_mask", *(["token_type_ids"] if a.reads_segments else [])]

    @property
    def _encoder(self) -> TransformerEncoder:
        return cast(TransformerEncoder, self.network.encoder)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """Return vectors (b x w), or states (b x l x h)."""
        encoder = self._encoder
        x_blh = self._embed(encoder.embeddings, input_ids, token_type_ids)
        lowest = torch.finfo(x_blh.dtype).min
        mask_b11l = torch.where(attention_mask[:, None, None, :] > 0, 0.0, lowest).to(x_blh.dtype)
        for attention, ffn in encoder.stack.sharing:
            x_blh = self._block(cast(Block, encoder.stack.attention[attention]), x_blh, mask_b11l)
            x_blh = self._block(cast(Block, encoder.stack.ffn[ffn]), x_blh, mask_b11l)
        x_blh = x_blh if encoder.norm is None else encoder.norm(x_blh)
        vector = self.network.vector
        return x_blh if vector is None else _pool(vector, x_blh.float(), attention_mask)

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
    if found := unknown_component(network.encoder):
        return found
    for module in network.encoder.modules():
        if isinstance(module, Attention) and not isinstance(module.mask, Full):
            return f"encoder.stack.attention has a {NAMES[type(module.mask)]} mask"
    for name, part, known in (("network", network, Network), ("network.vector", network.vector, SentencePooling)):
        if part is not None and (reason := component_difference(part, (known,))):
            return f"{name} {reason}"
    return ""


def _attend(part: Attention, x_blh: Tensor, mask_b11l: Tensor) -> Tensor:
    qkv = part.qkv(x_blh).unflatten(-1, (3, part.heads, part.head_width))
    q_bnld, k_bnld, v_bnld = (x.transpose(1, 2) for x in qkv.unbind(2))
    scores_bnll = q_bnld @ k_bnld.transpose(2, 3) * part.head_width**-0.5 + mask_b11l
    out: Tensor = part.out((scores_bnll.softmax(-1) @ v_bnld).transpose(1, 2).flatten(2))
    return out


def _pool(pooling: SentencePooling, x_blh: Tensor, mask_bl: Tensor) -> Tensor:
    real_bl1 = mask_bl[:, :, None].to(x_blh.dtype)
    count_b1 = real_bl1.sum(1).clamp(min=1.0)
    last_b1h = (mask_bl.sum(1) - 1).clamp(min=0)[:, None, None].expand(-1, 1, x_blh.shape[2])
    position_l1 = torch.arange(1, x_blh.shape[1] + 1, device=x_blh.device)[:, None]
    pools: dict[str, Callable[[], Tensor]] = {
        "cls": lambda: x_blh[:, 0],
        "mean": lambda: (x_blh * real_bl1).sum(1) / count_b1,
        "sqrt": lambda: (x_blh * real_bl1).sum(1) / count_b1.sqrt(),
        "max": lambda: x_blh.masked_fill(real_bl1 == 0, torch.finfo(x_blh.dtype).min).amax(1),
        "last": lambda: x_blh.gather(1, last_b1h).squeeze(1),
        "weighted": lambda: (x_blh * real_bl1 * position_l1).sum(1) / (count_b1 * (count_b1 + 1) / 2),
    }
    x_bw = torch.cat([pools[name]() for name in pooling.config.pooling.split("+")], -1)
    for layer in pooling.dense:
        x_bw = layer(x_bw)
    return F.normalize(x_bw, dim=-1) if pooling.config.normalize else x_bw


def _export(module: PaddedModel, path: Path) -> None:
    example = tuple(torch.ones(2, 3, dtype=torch.long) for _ in module.names)  # a separate tensor for each input
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    weights = sum(p.numel() * p.element_size() for p in module.parameters())
    out = "last_hidden_state" if module.network.vector is None else "sentence_embedding"
    torch.onnx.export(
        module,
        example,
        str(path),
        dynamo=True,
        input_names=module.names,
        output_names=[out],
        dynamic_shapes=tuple(sizes for _ in module.names),
        external_data=weights > MAX_SINGLE_FILE,
        verbose=False,
    )


def _quantize(source: Path, target: Path) -> None:
    tools = importlib.import_module("onnxruntime.quantization")
    model = importlib.import_module("onnx").load(str(source))
    del model.graph.value_info[:]  # the tool transposes weights, which would contradict the noted shapes
    tools.quantize_dynamic(model, str(target), per_channel=True, weight_type=tools.QuantType.QInt8)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings, which say nothing about the model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
