"""What the layers of a model compute: hidden states, attention probabilities and the logit lens.

Shape letters: t tokens of one text, n heads, d head width, h width, v vocabulary.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.inputs import Input, batch_by_length, check_finite, is_one_input, list_inputs, map_jobs
from bertree.inference.loaded import LoadedModel
from bertree.inference.mask_filling import Candidate, top_candidates
from bertree.model.encoder import Encoder
from bertree.model.layers.attention import Attention
from bertree.model.layers.residual import Block
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder, unknown_attention
from bertree.text.tokenizer import Tokenizer

Layers = int | Sequence[int] | str
Lens = list[list[list[Candidate]]]  # layer -> token -> candidates


def hidden_states(
    model: LoadedModel, texts: Iterable[Input] | Input, layers: Layers, max_length: int | None
) -> Tensor | list[Tensor]:
    """Return the hidden states of one text, or of each of a list; see `Model.hidden`."""
    encoded = model.tokenize(_inputs(texts), max_length)
    depths = parse_layers(layers, model.architecture.layers)

    @torch.no_grad()
    def compute(rows: list[int]) -> tuple[list[int], Sequence[Tensor]]:
        batch = model.pack([encoded[row] for row in rows]).to(model.device)
        states = layer_states(model.network.encoder, batch, depths)
        if isinstance(layers, int):
            return rows, batch.split(states[0])
        return rows, torch.stack(states).split(batch.lengths.tolist(), 1)

    results: dict[int, Tensor] = {}
    with model.evaluating():
        batches = batch_by_length([len(e.ids) for e in encoded], model.device)
        for rows, states in map_jobs(compute, batches, model.device):
            results.update(zip(rows, states, strict=True))
    return results[0] if is_one_input(texts) else [results[row] for row in range(len(encoded))]


def _inputs(texts: Iterable[Input] | Input) -> list[Input]:
    return cast(list[Input], [texts] if is_one_input(texts) else list_inputs(cast(Iterable[Input], texts)))


def parse_layers(layers: Layers, count: int) -> list[int]:
    """Return numbers of layers from 0 (the embeddings) to `count`; negative ones count from the last."""
    if layers == "all":
        return list(range(count + 1))
    if isinstance(layers, str) or not isinstance(layers, int | Sequence):
        raise UserError(f"layers: must be a number, a list of numbers, or 'all', not {layers!r}")
    depths: list[int] = []
    for layer in [layers] if isinstance(layers, int) else layers:
        if type(layer) is not int or not -count - 1 <= layer <= count:
            raise UserError(
                f"layers: {layer!r} is not a layer of this model; it has 0 (the embeddings) to {count}; -1 is the last"
            )
        depths.append(layer if layer >= 0 else count + 1 + layer)
    if not depths:
        raise UserError("layers: the list is empty")
    return depths


def layer_states(encoder: Encoder, batch: Batch, layers: Sequence[int]) -> list[Tensor]:
    """Return the hidden states of layers (each t x h), in the order given. No layer above them is computed."""
    if list(layers) == [encoder.depth]:
        return [encoder(batch)]
    by_depth: dict[int, Tensor] = {}
    for depth, state_th in enumerate(encoder.states(batch)):
        if depth in layers:
            by_depth[depth] = state_th
        if depth == max(layers):
            break
    if len({state.shape[1] for state in by_depth.values()}) > 1:
        raise UserError("layers: the embeddings of this model (layer 0) have another width; ask for them alone")
    return [by_depth[layer] for layer in layers]


def text_attentions(
    model: LoadedModel, texts: Iterable[Input] | Input, max_length: int | None
) -> Tensor | list[Tensor]:
    """Return the attention probabilities of one text, or of each of a list; see `Model.attentions`."""
    if not model.architecture.has_attention:
        raise UserError(f"attentions: a {model.architecture.body} has no attention")
    encoded = model.tokenize(_inputs(texts), max_length)
    with model.evaluating(), torch.no_grad():
        batches = [model.pack([sequence]).to(model.device) for sequence in encoded]
        probabilities = [attention_probabilities(model.network.encoder, batch) for batch in batches]
    return probabilities[0] if is_one_input(texts) else probabilities


def attention_probabilities(encoder: Encoder, batch: Batch) -> Tensor:
    """Return the attention probabilities of a batch of one text (layers x n x t x t), in float32."""
    if unknown := unknown_attention(encoder):
        raise UserError(f"attentions: {unknown}, whose attention cannot be computed")
    return torch.stack([one_ntt for _, _, one_ntt in layer_attentions(encoder, encoder.states(batch), batch)])


def layer_attentions(encoder: Encoder, states: Iterable[Tensor], batch: Batch) -> Iterator[tuple[int, slice, Tensor]]:
    """Yield, layer by layer, the place of each text in the batch and its attention probabilities (n x t x t).

    The fast kernels never hold them, so they are computed again from each layer's input and weights.
    """
    assert isinstance(encoder, TransformerEncoder)
    bounds = batch.cu_seqlens.tolist()
    for layer, ((index, _), state_th) in enumerate(zip(encoder.stack.sharing, states, strict=False)):
        block = cast(Block, encoder.stack.attention[index])
        attention = cast(Attention, block.part)
        input_th = encoder.stack.residual.read(state_th, block)
        qkv_t3nd = attention.qkv(input_th).unflatten(-1, (3, attention.heads, attention.head_width))
        q_ntd, k_ntd, _ = qkv_t3nd.permute(1, 2, 0, 3).float()
        for place in map(slice, bounds, bounds[1:]):
            scores_ntt = q_ntd[:, place] @ k_ntd[:, place].transpose(1, 2) * attention.head_width**-0.5
            seen_tt = attention.mask.sees(batch.positions[place], batch.positions[place])
            yield layer, place, scores_ntt.masked_fill(~seen_tt, float("-inf")).softmax(-1)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """One text in every layer of a model."""

    tokens: list[str]
    attention: Tensor | None  # layers x heads x tokens x tokens; None: not available for this kind of attention
    lens: Lens | None  # of the embeddings and of each layer; None: the model has no head that reads them
    norms: Tensor  # lengths of the hidden states: layers + 1 x tokens
    dropped: int  # tokens that were cut


def inspect_text(model: LoadedModel, text: str | tuple[str, str], k: int, max_length: int | None) -> Inspection:
    """Return what every layer computes for one text; see `Model.inspect`."""
    if k < 1:
        raise UserError(f"k: must be at least 1, not {k}")
    tokenizer = model.required_tokenizer
    (encoded,) = tokenizer.encode_batch([text], min(max_length or model.max_length, model.max_length))
    batch = model.pack([encoded]).to(model.device)
    encoder = model.network.encoder
    with model.evaluating(), torch.no_grad():
        states = list(encoder.states(batch))
        attention = None if unknown_attention(encoder) else attention_probabilities(encoder, batch)
        lens = logit_lens(model.network, states, tokenizer, k)
    norms = torch.stack([state_th.float().norm(dim=1) for state_th in states])
    check_finite(norms, model.name)
    tokens = model.token_names(encoded)
    return Inspection(tokens=tokens, attention=attention, lens=lens, norms=norms, dropped=encoded.dropped)


def logit_lens(network: Network, states: list[Tensor], tokenizer: Tokenizer, k: int) -> Lens | None:
    """Return the k most likely tokens at each token of each layer, as the MLM or LM head reads its states (t x h).

    States before the last layer are normalized as the last ones are. None if there is no such head.
    """
    if not has_lens(network):
        return None
    logits = (lens_logits(network, state_th, depth)[:, : tokenizer.size] for depth, state_th in enumerate(states))
    return [top_candidates(logits_tv.softmax(-1), tokenizer, k) for logits_tv in logits]


def has_lens(network: Network) -> bool:
    """Return whether an MLM or LM head reads the states: not those of a query stream, or of a readout."""
    encoder = network.encoder
    plain = isinstance(encoder, TransformerEncoder) and encoder.query_start is None
    return plain and "mask" in network.heads and network.features is None


def lens_logits(network: Network, state_th: Tensor, depth: int) -> Tensor:
    """Return the logits (t x v) that the MLM or LM head makes of the states of a layer, in float32."""
    encoder = network.encoder
    assert isinstance(encoder, TransformerEncoder)
    normed_th = encoder.norm(state_th) if encoder.norm is not None and depth < encoder.depth else state_th
    return network.mask_logits(normed_th, torch.arange(len(state_th), device=state_th.device)).float()
