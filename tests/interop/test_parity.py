"""Same weights, same input, same numbers as transformers: every member, every head, random shapes."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertree.errors import UserError
from bertree.interop import folder
from bertree.model.network import build
from tests.support.batches import axes_of
from tests.support.parity import batch_of, flat, gradients, load, outputs, padded, peer, ragged, round_trip
from tests.support.shared import suite_has

HIDDEN, GRADIENT = 1e-5, 1e-4
HEADS = {
    "ForMaskedLM": "mask",
    "ForPreTraining": "mask+pair",
    "ForNextSentencePrediction": "pair",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
    "ForMultipleChoice": "choice",
}
MEMBERS = {
    "bert": list(HEADS),
    "megatron-bert": list(HEADS),
    "roberta": [h for h in HEADS if h not in ("ForPreTraining", "ForNextSentencePrediction")],
    "roberta-prelayernorm": [h for h in HEADS if h not in ("ForPreTraining", "ForNextSentencePrediction")],
    "albert": [h for h in HEADS if h != "ForNextSentencePrediction"],
    "distilbert": [h for h in HEADS if h not in ("ForPreTraining", "ForNextSentencePrediction")],
}


def settings(member: str, seed: int) -> dict[str, object]:
    """A random point of the member's space."""
    draw = random.Random(seed)
    heads, layers = draw.choice([1, 2, 4]), draw.randint(1, 4)
    width = heads * draw.choice([4, 8, 16])
    positions = draw.choice([24, 40])
    activation = draw.choice(["gelu", "gelu_new", "relu", "silu"])
    if member == "distilbert":
        return {
            "vocab_size": draw.randint(40, 99), "dim": width, "n_layers": layers, "n_heads": heads,
            "hidden_dim": draw.choice([16, 48]), "max_position_embeddings": positions, "activation": activation,
            "num_labels": 3,
        }  # fmt: skip
    common: dict[str, object] = {
        "vocab_size": draw.randint(40, 99), "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": draw.choice([16, 48]), "hidden_act": activation,
        "max_position_embeddings": positions, "type_vocab_size": draw.choice([1, 2, 3]),
        "layer_norm_eps": draw.choice([1e-12, 1e-5]), "num_labels": draw.choice([1, 2, 5]),
    }  # fmt: skip
    if member == "albert":
        common |= {"embedding_size": draw.choice([8, width]), "num_hidden_groups": draw.randint(1, layers)}
        common["num_labels"] = 2 if draw.random() < 0.5 else 5
    return common


@pytest.mark.parametrize("seed", suite_has([0], range(3)))
@pytest.mark.parametrize(("member", "suffix"), [(m, s) for m, suffixes in MEMBERS.items() for s in suffixes])
def test_heads_and_gradients_equal_transformers(member: str, suffix: str, seed: int, tmp_path: Path) -> None:
    point = settings(member, seed * 31 + len(suffix))
    if suffix in ("ForPreTraining", "ForQuestionAnswering"):
        point["num_labels"] = 2
    model = peer(member, suffix, seed, **point)
    contents = load(model, tmp_path)
    network = contents.network
    ids, kinds = ragged([7, 1, 12, 7, 3, 20], axes_of(contents).vocab_size, axes_of(contents).segments, seed)
    inputs, batch = padded(model, ids, kinds), batch_of(ids, kinds)
    theirs_hidden = flat(model.base_model(**inputs).last_hidden_state, ids)
    hidden = network(batch)
    assert (hidden - theirs_hidden).abs().max() < HIDDEN

    everything = torch.arange(hidden.shape[0])
    ours: list[torch.Tensor] = []
    if suffix == "ForMultipleChoice":  # three options for each of two questions
        inputs = {name: value.view(2, 3, -1) for name, value in inputs.items()}
    out = model(**inputs)
    kind = HEADS[suffix]
    if "mask" in kind:
        ours.append(network.mask_logits(hidden, everything))
    if "pair" in kind:
        ours.append(network.class_logits("pair", hidden, batch))
    if kind in ("sequence", "token", "span", "choice"):
        ours.append(network.class_logits(kind, hidden, batch))
    theirs = {
        "mask": lambda: [flat(out.logits, ids)],
        "mask+pair": lambda: [
            flat(out.prediction_logits, ids),
            out.sop_logits if member == "albert" else out.seq_relationship_logits,
        ],
        "pair": lambda: [out.logits],
        "sequence": lambda: [out.logits],
        "token": lambda: [flat(out.logits, ids)],
        "span": lambda: [flat(torch.stack([out.start_logits, out.end_logits], -1), ids)],
        "choice": lambda: [out.logits.reshape(-1, 1)],
    }[kind]()
    loss_ours = loss_theirs = torch.zeros(())
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        assert (mine - other).abs().max() < HIDDEN
        weight = torch.randn(mine.shape, generator=torch.Generator().manual_seed(seed)) / mine.numel() ** 0.5
        loss_ours, loss_theirs = loss_ours + (mine * weight).sum(), loss_theirs + (other * weight).sum()
    loss_ours.backward()
    loss_theirs.backward()
    assert gradients(network, contents, model) < GRADIENT


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("seed", suite_has([0, 1], range(4)))
def test_bare_encoders_equal_transformers(member: str, seed: int, tmp_path: Path) -> None:
    model = peer(member, "Model", seed, **settings(member, 100 + seed))
    contents = load(model, tmp_path)
    a = axes_of(contents)
    ids, kinds = ragged([5, 19, 2, 5], a.vocab_size, a.segments, seed)
    out, batch = model(**padded(model, ids, kinds), output_hidden_states=True), batch_of(ids, kinds)
    hidden = contents.network(batch)
    assert (hidden - flat(out.last_hidden_state, ids)).abs().max() < HIDDEN
    for ours, theirs in zip(contents.network.encoder.states(batch), out.hidden_states, strict=True):
        assert (ours - flat(theirs, ids)).abs().max() < HIDDEN
    if a.pooler:
        assert (contents.network.encoder.pool(hidden, batch) - out.pooler_output).abs().max() < HIDDEN
    else:
        assert member == "distilbert"


@pytest.mark.parametrize(
    ("member", "suffix"), [("bert", "LMHeadModel"), ("megatron-bert", "ForCausalLM"), ("roberta", "ForCausalLM")]
)
def test_encoders_that_read_from_left_to_right_equal_transformers(member: str, suffix: str, tmp_path: Path) -> None:
    model = peer(member, suffix, 0, **settings(member, 5), is_decoder=True)
    contents = round_trip(model, tmp_path)
    a = axes_of(contents)
    assert a.causal
    ids, kinds = ragged([5, 19, 2], a.vocab_size, a.segments, 0)
    out, batch = model(**padded(model, ids, kinds), use_cache=False), batch_of(ids, kinds)
    ours, theirs = outputs("mask", contents.network.eval(), batch, out, ids)
    assert (ours - theirs).abs().max() < HIDDEN
    pooled = replace(a, pooler=True)
    classifier = replace(contents, architecture=pooled, network=build(pooled, {"sequence": 2}))
    with pytest.raises(UserError, match="classifiers read the first token"):
        folder.write(classifier, tmp_path / "classifier", to="huggingface")
