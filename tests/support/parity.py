"""One helper for all members: a Hugging Face model and ours from the same folder, on the same ragged batch."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor

from bertree.batch import Batch
from bertree.interop import folder
from bertree.interop.contents import Contents, head_classes
from bertree.interop.huggingface.config import family_of_config, require_transformer
from bertree.interop.huggingface.family import hf_tensor_names
from bertree.model.network import Network

CONFIGS = {
    "bert": transformers.BertConfig,
    "megatron-bert": transformers.MegatronBertConfig,
    "roberta": transformers.RobertaConfig,
    "roberta-prelayernorm": transformers.RobertaPreLayerNormConfig,
    "albert": transformers.AlbertConfig,
    "distilbert": transformers.DistilBertConfig,
    "gpt2": transformers.GPT2Config,
    "openai-gpt": transformers.OpenAIGPTConfig,
    "ctrl": transformers.CTRLConfig,
    "xlnet": transformers.XLNetConfig,
    "reformer": transformers.ReformerConfig,
    "modernbert": transformers.ModernBertConfig,
}


def peer(model_type: str, class_suffix: str, seed: int, **settings: object) -> transformers.PreTrainedModel:
    """A Hugging Face model whose every parameter is random, so that no swapped tensor goes unnoticed."""
    torch.manual_seed(seed)
    config = CONFIGS[model_type](**settings)
    config._attn_implementation = "eager"
    title = CONFIGS[model_type].__name__.removesuffix("Config")
    model = getattr(transformers, title + class_suffix)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.tie_weights()
    return model


def ragged(
    lengths: list[int], vocab: int, segments: int, seed: int, lowest: int = 3
) -> tuple[list[list[int]], list[list[int]]]:
    """Random ids (never a padding id) and segments of the given lengths."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(lowest, vocab, (n,), generator=draw).tolist() for n in lengths]
    kinds = [[0] * (n // 2) + [min(1, max(segments - 1, 0))] * (n - n // 2) for n in lengths]
    return ids, kinds


def padded(model: transformers.PreTrainedModel, ids: list[list[int]], kinds: list[list[int]]) -> dict[str, Tensor]:
    """The same batch as Hugging Face takes it."""
    longest, pad = max(map(len, ids)), model.config.pad_token_id or 0
    inputs = {
        "input_ids": torch.tensor([row + [pad] * (longest - len(row)) for row in ids]),
        "attention_mask": torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids]),
    }
    if hasattr(model.config, "type_vocab_size"):
        inputs["token_type_ids"] = torch.tensor([row + [0] * (longest - len(row)) for row in kinds])
    return inputs


def flat(tensor: Tensor, ids: list[list[int]]) -> Tensor:
    """Padded rows -> the stream of real tokens."""
    return torch.cat([tensor[i, : len(row)] for i, row in enumerate(ids)])


def outputs(kind: str, network: Network, batch: Batch, out: Any, ids: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return what a head computes, ours and theirs, without padding; the states, if `kind` is empty."""
    hidden = network(batch)
    if not kind:
        return hidden, flat(out.last_hidden_state, ids)
    if kind == "mask":
        return network.mask_logits(hidden, torch.arange(len(hidden))), flat(out.logits, ids)
    ours = network.class_logits(kind, hidden, batch)
    if kind == "span":
        return ours, flat(torch.stack([out.start_logits, out.end_logits], -1), ids)
    return ours, flat(out.logits, ids) if kind == "token" else out.logits.reshape(len(ids), -1)


def gradients(network: torch.nn.Module, contents: Contents, model: transformers.PreTrainedModel) -> float:
    """Largest difference between the gradients of the two models, relative to the largest gradient."""
    heads = head_classes(contents.network)
    a = require_transformer(contents.architecture)
    family = family_of_config(model.config.to_dict(), "config")
    table = hf_tensor_names(family, a, heads, contents.network.state_dict())
    theirs = dict(model.named_parameters())
    worst = 0.0
    for ours, parameter in network.named_parameters():
        stored = table[ours]
        other = [theirs[name].grad for name in stored.names]
        if parameter.grad is None:
            assert all(g is None or not g.any() for g in other), f"{ours} has a gradient there and none here"
            continue
        expected = [torch.zeros_like(theirs[n]) if g is None else g for n, g in zip(stored.names, other, strict=True)]
        joined = stored.join(expected, parameter.shape)
        worst = max(worst, float((parameter.grad - joined).abs().max() / joined.abs().max().clamp(min=1.0)))
    return worst


def load(model: transformers.PreTrainedModel, path: Path) -> Contents:
    """Save with Hugging Face, read with bertree."""
    model.save_pretrained(path)
    contents = folder.read(path)
    contents.network.eval()
    return contents


def batch_of(ids: list[list[int]], kinds: list[list[int]]) -> Batch:
    """The packed form."""
    return Batch.pack(ids, kinds)


def round_trip(model: transformers.PreTrainedModel, where: Path) -> Contents:
    """Read a model of transformers, write it in both layouts (`ours` is Hugging Face's), and check every tensor."""
    contents = load(model, where / "theirs")
    folder.write(contents, where / "ours", to="huggingface")
    before, after = (load_file(where / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor, after[name]), name
    folder.write(contents, where / "both")
    both = folder.read(where / "both")
    assert both.architecture == contents.architecture
    ours, kept = ((where / name / "model.safetensors").read_bytes() for name in ("ours", "both"))
    assert ours == kept
    state = contents.network.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in both.network.state_dict().items())
    return contents
