"""Adaptive embeddings and softmax against Transformer-XL's, recorded in tests/golden."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from bertree.batch import IGNORED
from bertree.model.layers.embeddings import AdaptiveEmbeddings, AdaptiveSoftmax, VocabularyClusters

GOLDEN = Path(__file__).parents[2] / "golden" / "transformer_xl.safetensors"


def golden(case: str) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Return the settings and the tensors of a case."""
    with safe_open(GOLDEN, "pt") as file:
        settings = json.loads(file.metadata()["cases"])[case]
        names = [name for name in file.keys() if name.startswith(f"{case}/")]  # noqa: SIM118
        return settings, {name.removeprefix(f"{case}/"): file.get_tensor(name) for name in names}


def parts(case: str) -> tuple[AdaptiveEmbeddings, AdaptiveSoftmax, dict[str, Tensor]]:
    """Return both parts of a case with its weights."""
    settings, tensors = golden(case)
    starts = (0, *settings["cutoffs"], settings["vocab_size"])
    clusters = VocabularyClusters.cut(starts, settings["d_embed"], settings["div_val"])
    embeddings = AdaptiveEmbeddings(clusters, settings["d_model"], settings["d_model"] ** 0.5)
    own = [i for i in range(len(clusters)) if f"weights/crit.out_projs.{i}" in tensors]
    softmax = AdaptiveSoftmax(clusters, settings["d_model"], own)
    with torch.no_grad():
        for i, table in enumerate(embeddings.tables):
            table.weight.copy_(tensors[f"weights/transformer.word_emb.emb_layers.{i}.weight"])
        for i, projection in enumerate(embeddings.projections):
            projection.weight.copy_(tensors[f"weights/transformer.word_emb.emb_projs.{i}"])
        for i in own:
            softmax.projections[str(i)].weight.copy_(tensors[f"weights/crit.out_projs.{i}"])
        biases = [
            tensors[name] for name in sorted(tensors) if name.startswith("weights/crit.out_layers.") and "bias" in name
        ]
        softmax.bias.copy_(torch.cat(biases))
        if len(clusters) > 1:
            softmax.cluster_weight.copy_(tensors["weights/crit.cluster_weight"])
            softmax.cluster_bias.copy_(tensors["weights/crit.cluster_bias"])
    return embeddings, softmax, tensors


@pytest.mark.parametrize("case", ["plain", "adaptive", "pre-norm", "narrow-embeddings"])
def test_log_probabilities_are_those_of_transformer_xl(case: str) -> None:
    embeddings, softmax, adaptive_parts = parts(case)
    for segment in range(3):
        theirs = adaptive_parts[f"log-probabilities/{segment}"].flatten(0, 1)
        ours = softmax(adaptive_parts[f"hidden/{segment}"].flatten(0, 1), embeddings)
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-5)
        assert torch.allclose(ours.exp().sum(1), torch.ones(len(ours)), atol=1e-5)


@pytest.mark.parametrize("case", ["plain", "adaptive", "pre-norm", "narrow-embeddings"])
def test_targets_are_computed_in_their_cluster_alone(case: str) -> None:
    embeddings, softmax, adaptive_parts = parts(case)
    hidden_mh = adaptive_parts["hidden/0"].flatten(0, 1).requires_grad_()
    targets_m = adaptive_parts["ids"][:, :6].flatten()
    targets_m[::5] = IGNORED
    ours = softmax.loss(hidden_mh, embeddings, targets_m)
    whole = F.nll_loss(softmax(hidden_mh, embeddings), targets_m, ignore_index=IGNORED, reduction="sum")
    torch.testing.assert_close(ours, whole)
    (grad,), (expected,) = torch.autograd.grad(ours, [hidden_mh]), torch.autograd.grad(whole, [hidden_mh])
    torch.testing.assert_close(grad, expected)


def test_embeddings_of_each_cluster_are_projected_and_scaled() -> None:
    embeddings, _, adaptive_parts = parts("adaptive")
    ids_t = adaptive_parts["ids"].flatten()
    rows = embeddings(ids_t)
    for row, token in zip(rows, ids_t.tolist(), strict=True):
        cluster = sum(token >= start for start in embeddings.clusters.starts[1:-1])
        start = embeddings.clusters.starts[cluster]
        expected = 4.0 * embeddings.projection(cluster) @ embeddings.table(cluster)[token - start]
        torch.testing.assert_close(row, expected)
