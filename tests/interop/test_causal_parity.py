"""Left-to-right members: same weights, same input, same numbers as transformers, every head, random shapes."""

import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

from bertree.model.cost import parameters
from bertree.model.network import build
from bertree.model.presets import PRESETS
from tests.support.parity import batch_of, flat, gradients, load, outputs, padded, peer, ragged, round_trip
from tests.support.shared import suite_has

HIDDEN, GRADIENT = 1e-5, 1e-4
HEADS = {
    "Model": "",
    "LMHeadModel": "mask",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "span",
}
MEMBERS = {"gpt2": list(HEADS), "openai-gpt": list(HEADS)[:3], "ctrl": list(HEADS)[:3]}
LENGTHS = [7, 1, 12, 7, 3, 20]


def settings(member: str, seed: int) -> dict[str, object]:
    """A random point of the member's space."""
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    point: dict[str, object] = {
        "vocab_size": draw.randint(40, 99), "n_embd": heads * draw.choice([4, 8, 16]), "n_layer": draw.randint(1, 4),
        "n_head": heads, "n_positions": draw.choice([24, 40]), "num_labels": draw.choice([1, 2, 5]),
        "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip
    if member == "gpt2":
        point["n_inner"] = draw.choice([None, 24])
        point["activation_function"] = draw.choice(["gelu_new", "gelu", "relu", "silu"])
    if member == "openai-gpt":
        point["afn"] = draw.choice(["gelu", "relu"])
    if member == "ctrl":
        point["dff"] = draw.choice([24, 48])
    else:
        point["layer_norm_epsilon"] = draw.choice([1e-5, 1e-6])
    return point


@pytest.mark.parametrize("seed", suite_has([0], range(3)))
@pytest.mark.parametrize(("member", "suffix"), [(m, s) for m, suffixes in MEMBERS.items() for s in suffixes])
def test_states_logits_and_gradients_equal_transformers(member: str, suffix: str, seed: int, tmp_path: Path) -> None:
    point = settings(member, seed * 31 + len(suffix))
    if suffix == "ForQuestionAnswering":
        point["num_labels"] = 2
    model = peer(member, suffix, seed, **point)
    contents = load(model, tmp_path)
    network = contents.network
    ids, kinds = ragged(LENGTHS, contents.architecture.vocab_size, 0, seed)
    inputs, batch = padded(model, ids, kinds), batch_of(ids, kinds)
    out = model(**inputs, output_hidden_states=True)
    assert (network(batch) - flat(out.hidden_states[-1], ids)).abs().max() < HIDDEN
    ours, theirs = outputs(HEADS[suffix], network, batch, out, ids)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < HIDDEN
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed)) / ours.numel() ** 0.5
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    assert gradients(network, contents, model) < GRADIENT


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("seed", range(2))
def test_losses_of_next_tokens_equal_transformers(member: str, seed: int, tmp_path: Path) -> None:
    model = peer(member, "LMHeadModel", seed, **settings(member, 50 + seed))
    contents = load(model, tmp_path)
    ids, kinds = ragged(LENGTHS, contents.architecture.vocab_size, 0, seed)
    inputs = padded(model, ids, kinds)
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    theirs = model(**inputs, labels=labels).loss
    hidden = contents.network(batch_of(ids, kinds))
    stream = torch.tensor([token for row in ids for token in row])
    ends = torch.tensor([len(row) for row in ids]).cumsum(0)
    chosen = torch.tensor([i for i in range(len(stream)) if i + 1 not in ends])
    ours = contents.network.mask_loss(hidden, chosen, stream[chosen + 1]) / len(chosen)
    assert float((ours - theirs).abs()) < HIDDEN
    ours.backward()
    theirs.backward()
    assert gradients(contents.network, contents, model) < GRADIENT
    logits = contents.network.mask_logits(hidden, chosen)
    assert float(F.cross_entropy(logits, stream[chosen + 1])) == pytest.approx(float(ours), abs=HIDDEN)


@pytest.mark.parametrize(("member", "suffix"), [(m, s) for m, suffixes in MEMBERS.items() for s in suffixes])
def test_what_is_read_and_written_is_the_same_for_transformers(member: str, suffix: str, tmp_path: Path) -> None:
    point = settings(member, 7)
    point["num_labels"] = 2
    model = peer(member, suffix, 0, **point)
    contents = round_trip(model, tmp_path)
    again = type(model).from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    again.config.pad_token_id = 0  # of the tokenizer, which this model has not
    ids, kinds = ragged(LENGTHS, contents.architecture.vocab_size, 0, 0)
    inputs = padded(model, ids, kinds)
    assert (again(**inputs)[0] - model(**inputs)[0]).abs().max() < HIDDEN


@pytest.mark.parametrize(
    ("preset", "suffix"), [("gpt1", "OpenAIGPTLMHeadModel"), ("gpt2", "GPT2LMHeadModel"), ("ctrl", "CTRLLMHeadModel")]
)
def test_presets_have_as_many_parameters_as_transformers_models(preset: str, suffix: str) -> None:
    kind = getattr(transformers, suffix)
    with torch.device("meta"):
        model = kind(kind.config_class())
        ours = build(PRESETS[preset].architecture, {"mask": 0})
    count = sum(p.numel() for p in model.parameters())
    assert count == sum(p.numel() for p in ours.parameters())
    counted = parameters(PRESETS[preset].architecture)
    assert count == counted.total + counted.mlm_head
