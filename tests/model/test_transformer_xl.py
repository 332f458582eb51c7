"""Transformer-XL: relative positions, memory and adaptive softmax against outputs of transformers 4.37.2."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from bertree.batch import Batch, Continuation
from bertree.model.architecture import Transformer
from bertree.model.memory import MEMORY
from bertree.model.network import Network, build

GOLDEN = Path(__file__).parent.parent / "golden" / "transformer_xl.safetensors"
CASES = ("plain", "adaptive", "pre-norm", "narrow-embeddings")
SEGMENT = 6


def golden(case: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a case's configuration and tensors."""
    with safe_open(GOLDEN, "pt") as file:
        settings = json.loads(file.metadata()["cases"])[case]
        names = [name for name in file.keys() if name.startswith(f"{case}/")]  # noqa: SIM118
        return settings, {name.removeprefix(f"{case}/"): file.get_tensor(name) for name in names}


def architecture(settings: dict[str, Any]) -> Transformer:
    """Return the architecture of a case."""
    return Transformer(
        vocab_size=settings["vocab_size"],
        width=settings["d_model"],
        layers=settings["n_layer"],
        heads=settings["n_head"],
        head_width=settings["d_head"],
        ffn_width=settings["d_inner"],
        embedding_width=settings["d_embed"],
        attention="causal",
        positions="relative",
        clamp=max(0, settings["clamp_len"]),
        same_length=settings["same_length"],
        memory=settings["mem_len"],
        memory_start="zeros",
        shared_position_bias=not settings.get("untie_r", True),
        cutoffs=",".join(map(str, settings["cutoffs"])),
        embedding_divisor=settings["div_val"],
        embedding_scale=True,
        embedding_norm=False,
        segments=0,
        activation="relu",
        norm_eps=1e-5,
        attention_bias=False,
        residual="pre-norm" if settings.get("pre_lnorm") else "post-norm",
        final_norm=False,
        mask_transform=False,
        pooler=False,
        sequence_head="linear",
        dropout=0.0,
        attention_dropout=0.0,
    )


def names(settings: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, str]:
    """Return transformers' name of each of our tensors."""
    renamed = {}
    for i in range(settings["n_layer"]):
        theirs, attention, ffn = f"transformer.layers.{i}.", f"encoder.stack.attention.{i}.", f"encoder.stack.ffn.{i}."
        renamed |= {
            attention + "part.qkv.weight": theirs + "dec_attn.qkv_net.weight",
            attention + "part.out.weight": theirs + "dec_attn.o_net.weight",
            attention + "part.positions.project.weight": theirs + "dec_attn.r_net.weight",
        }
        for ours, their_end in (("weight", "weight"), ("bias", "bias")):
            renamed[f"{attention}norm.{ours}"] = f"{theirs}dec_attn.layer_norm.{their_end}"
            renamed[f"{ffn}norm.{ours}"] = f"{theirs}pos_ff.layer_norm.{their_end}"
            renamed[f"{ffn}part.up.{ours}"] = f"{theirs}pos_ff.CoreNet.0.{their_end}"
            renamed[f"{ffn}part.down.{ours}"] = f"{theirs}pos_ff.CoreNet.3.{their_end}"
        if settings.get("untie_r", True):
            renamed[attention + "part.positions.content_bias"] = theirs + "dec_attn.r_w_bias"
            renamed[attention + "part.positions.distance_bias"] = theirs + "dec_attn.r_r_bias"
    if not settings.get("untie_r", True):
        shared = "encoder.stack.attention.0.part.positions."
        renamed[shared + "content_bias"] = "transformer.r_w_bias"
        renamed[shared + "distance_bias"] = "transformer.r_r_bias"
    tokens, words = "encoder.embeddings.tokens.", "transformer.word_emb."
    for i in range(len(settings["cutoffs"]) + 1):
        renamed[f"{tokens}tables.{i}.weight" if settings["cutoffs"] else f"{tokens}weight"] = (
            f"{words}emb_layers.{i}.weight"
        )
        renamed[f"{tokens}projections.{i}.weight"] = f"{words}emb_projs.{i}"
        renamed[f"heads.mask.projections.{i}.weight"] = f"crit.out_projs.{i}"
    renamed["heads.mask.cluster_weight"] = "crit.cluster_weight"
    renamed["heads.mask.cluster_bias"] = "crit.cluster_bias"
    return {ours: their_name for ours, their_name in renamed.items() if f"weights/{their_name}" in tensors}


def network(settings: dict[str, Any], tensors: dict[str, Tensor]) -> Network:
    """Return the network of a case with its weights."""
    network = build(architecture(settings), {"mask": 0}).eval()
    state = {ours: tensors[f"weights/{their_name}"] for ours, their_name in names(settings, tensors).items()}
    biases = [name for name in tensors if name.startswith("weights/crit.out_layers.") and name.endswith("bias")]
    state["heads.mask.bias"] = torch.cat([tensors[name] for name in sorted(biases)])
    missing, unknown = network.load_state_dict(state, strict=False)
    assert not missing
    assert not unknown
    return network


def segment(ids_sl: Tensor, fresh: bool, labels: Any = None) -> Batch:
    """Pack the rows of a segment, which continue those of the one before."""
    rows = len(ids_sl)
    lanes = Continuation(torch.arange(rows), torch.full((rows,), fresh), rows)
    return Batch(**{**vars(Batch.pack(ids_sl.tolist())), "continuation": lanes})


@pytest.mark.parametrize("case", CASES)
def test_three_segments_with_memory_equal_transformers(case: str) -> None:
    settings, tensors = golden(case)
    model, state = network(settings, tensors), None
    for number, ids_sl in enumerate(tensors["ids"].split(SEGMENT, 1)):
        with torch.no_grad():
            hidden_th, state = model.encode(segment(ids_sl, number == 0), state)
            logits_tv = model.mask_logits(hidden_th, torch.arange(len(hidden_th))).log_softmax(-1)
            shape = (*ids_sl.shape, -1)
            assert (hidden_th.view(shape) - tensors[f"hidden/{number}"]).abs().max() < 1e-5
            assert (logits_tv.view(shape) - tensors[f"log-probabilities/{number}"]).abs().max() < 1e-5
            place_sl = torch.arange(ids_sl.numel()).view_as(ids_sl)
            targets = ids_sl[:, 1:].flatten()
            loss = model.mask_loss(hidden_th, place_sl[:, :-1].flatten(), targets)
            assert float(loss) == pytest.approx(float(tensors[f"losses/{number}"].sum()), rel=1e-5)
    assert state is not None
    assert (state[MEMORY] - tensors["memory"].transpose(1, 2)).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_transformers(case: str) -> None:
    settings, tensors = golden(case)
    model = network(settings, tensors)
    ids_sl = tensors["ids"][:, :SEGMENT]
    hidden_th, _ = model.encode(segment(ids_sl, True))
    place_sl = torch.arange(ids_sl.numel()).view_as(ids_sl)
    targets = ids_sl[:, 1:].flatten()
    (model.mask_loss(hidden_th, place_sl[:, :-1].flatten(), targets) / len(targets)).backward()
    parameters = dict(model.named_parameters())
    compared = {ours: f"gradients/{peer_name}" for ours, peer_name in names(settings, tensors).items()}
    assert sum(peer_name in tensors for peer_name in compared.values()) > 10
    for ours, their_name in compared.items():
        if their_name in tensors and "memory" not in ours:
            grad = parameters[ours].grad
            assert grad is not None, ours
            assert (grad - tensors[their_name]).abs().max() < 1e-5, ours
