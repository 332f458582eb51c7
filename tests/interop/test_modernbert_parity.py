"""ModernBERT: same weights, same input, same numbers as transformers, every head, local and global layers."""

import json
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

from bertree.errors import UserError
from bertree.interop.huggingface.config import (
    architecture_from_config,
    config_from_architecture,
    family_of_architecture,
)
from bertree.model.cost import parameters
from bertree.model.presets import PRESETS
from tests.support.parity import batch_of, flat, gradients, load, outputs, padded, peer, ragged, round_trip
from tests.support.shared import suite_has

HIDDEN, GRADIENT = 1e-5, 1e-4
HEADS = {
    "Model": "",
    "ForMaskedLM": "mask",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "choice",
}
LENGTHS = [7, 1, 30, 7, 3, 20]


def settings(seed: int) -> dict[str, object]:
    """A random point of ModernBERT's space."""
    draw = random.Random(seed)
    heads, layers, biases = draw.choice([1, 2, 4]), draw.randint(2, 5), draw.choice([False, False, True])
    point: dict[str, object] = {
        "vocab_size": draw.randint(40, 99), "hidden_size": heads * draw.choice([4, 8, 16]), "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": draw.choice([12, 24]), "max_position_embeddings": 40,
        "local_attention": draw.choice([4, 8, 64]), "norm_eps": draw.choice([1e-5, 1e-6]), "norm_bias": biases,
        "classifier_bias": biases, "attention_bias": draw.choice([False, True]), "mlp_bias": draw.choice([False, True]),
        "classifier_pooling": draw.choice(["cls", "mean"]), "hidden_activation": draw.choice(["gelu", "silu"]),
        "num_labels": draw.choice([1, 2, 5]), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if draw.random() < 0.5:
        point["layer_types"] = [draw.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
    if draw.random() < 0.5:
        bases = {"full_attention": 1000.0, "sliding_attention": 300.0}
        point["rope_parameters"] = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    return point


@pytest.mark.parametrize("seed", suite_has([0, 1], range(4)))
@pytest.mark.parametrize("suffix", HEADS)
def test_states_logits_and_gradients_equal_transformers(suffix: str, seed: int, tmp_path: Path) -> None:
    point = settings(seed * 31 + len(suffix))
    if suffix == "ForQuestionAnswering":
        point["num_labels"] = 2
    model = peer("modernbert", suffix, seed, **point)
    contents = load(model, tmp_path)
    network = contents.network
    ids, kinds = ragged(LENGTHS, contents.architecture.vocab_size, 0, seed)
    inputs, batch = padded(model, ids, kinds), batch_of(ids, kinds)
    kind = HEADS[suffix]
    if kind == "choice":
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    ours, theirs = outputs(kind, network, batch, model(**inputs), ids)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < HIDDEN
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed)) / ours.numel() ** 0.5
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    assert gradients(network, contents, model) < GRADIENT


def test_the_loss_of_masked_tokens_equals_transformers(tmp_path: Path) -> None:
    model = peer("modernbert", "ForMaskedLM", 0, **settings(3))
    contents = load(model, tmp_path)
    ids, kinds = ragged(LENGTHS, contents.architecture.vocab_size, 0, 0)
    inputs = padded(model, ids, kinds)
    labels = torch.full_like(inputs["input_ids"], -100)
    labels[:, ::3] = inputs["input_ids"][:, ::3]
    labels = labels.masked_fill(inputs["attention_mask"] == 0, -100)
    theirs = model(**inputs, labels=labels).loss
    targets = flat(labels, ids)
    chosen = (targets != -100).nonzero()[:, 0]
    hidden = contents.network(batch_of(ids, kinds))
    ours = contents.network.mask_loss(hidden, chosen, targets[chosen]) / len(chosen)
    assert float((ours - theirs).abs()) < HIDDEN
    assert float(F.cross_entropy(contents.network.mask_logits(hidden, chosen), targets[chosen]) - ours) < HIDDEN


@pytest.mark.parametrize("suffix", HEADS)
def test_what_is_read_and_written_is_the_same_for_transformers(suffix: str, tmp_path: Path) -> None:
    model = peer("modernbert", suffix, 0, **settings(5) | {"num_labels": 2})
    contents = round_trip(model, tmp_path)
    again = type(model).from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    ids, kinds = ragged(LENGTHS, contents.architecture.vocab_size, 0, 0)
    inputs = padded(model, ids, kinds)
    if suffix == "ForMultipleChoice":
        inputs = {name: tensor[None] for name, tensor in inputs.items()}
    assert (again(**inputs)[0] - model(**inputs)[0]).abs().max() < HIDDEN


@pytest.mark.parametrize("name", ["modernbert-base", "modernbert-large"])
def test_parameters_equal_transformers(name: str) -> None:
    a = PRESETS[name].architecture
    config = config_from_architecture(a, family_of_architecture(a), 0)
    with torch.device("meta"):
        theirs = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**config))
    counts = parameters(a)
    assert counts.total + counts.mlm_head == sum(p.numel() for p in theirs.parameters())


OLD = {
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "local_attention": 128,
}


def test_keys_of_older_releases_say_the_same(tmp_path: Path) -> None:
    old = {"model_type": "modernbert", "classifier_pooling": "mean", **OLD}
    new = json.loads(transformers.ModernBertConfig(classifier_pooling="mean").to_json_string(use_diff=False))
    assert "layer_types" in new
    assert architecture_from_config(old, "old") == architecture_from_config(new, "new")
    written = config_from_architecture(
        architecture_from_config(old, "old"), family_of_architecture(architecture_from_config(new, "new")), 0
    )
    assert {key: written[key] for key in OLD} == OLD
    assert written["rope_parameters"] == {
        kind: {"rope_type": "default", "rope_theta": base}
        for kind, base in (("full_attention", 160000.0), ("sliding_attention", 10000.0))
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"layer_types": ["full_attention"]}, "layer_types: must list 22 layers"),
        ({"layer_types": ["linear_attention"] * 22}, "layer_types: 'linear_attention' is not one of"),
        ({"layer_types": 7}, "layer_types"),
        ({"local_attention": 1}, "local_attention: must be an even number"),
        ({"global_attn_every_n_layers": 0}, "global_attn_every_n_layers: must be 1 or more"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type 'default'"),
        ({"rope_parameters": {"full_attention": 3}}, "rope_parameters"),
        ({"rope_parameters": [1]}, "rope_parameters"),
        ({"rope_parameters": {"full_attention": {"rope_theta": "high"}}}, "rope_theta must be a number"),
        ({"classifier_pooling": "max"}, "classifier_pooling: 'max'"),
        ({"classifier_bias": True}, "classifier_bias: must be as norm_bias"),
        ({"decoder_bias": False}, "decoder_bias"),
        ({"hidden_activation": "silly"}, "hidden_activation: 'silly'"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
    ],
)
def test_a_configuration_without_an_equal_is_refused_by_its_key(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UserError, match=named):
        architecture_from_config({"model_type": "modernbert"} | changes, "config.json")
