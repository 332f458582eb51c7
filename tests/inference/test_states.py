"""Hidden states of every layer and attention probabilities: those of transformers, for every member of the family."""

from pathlib import Path

import pytest
import torch

import bertree
from bertree.errors import UserError
from bertree.inference.load import make_model, random_model
from bertree.model.presets import preset
from tests.interop.test_parity import MEMBERS, settings
from tests.support.parity import load, padded, peer, ragged
from tests.support.parts import UNKNOWN

SMALL = {"layers": 3, "width": 16, "heads": 2, "ffn_width": 24, "vocab_size": 60}


@pytest.mark.parametrize("member", MEMBERS)
@pytest.mark.parametrize("seed", range(2))
def test_equal_to_transformers(member: str, seed: int, tmp_path: Path) -> None:
    theirs = peer(member, "Model", seed, **settings(member, seed))
    model = make_model(load(theirs, tmp_path))
    ids, _ = ragged([7, 1, 12, 20], model.architecture.vocab_size, 1, seed)
    with torch.no_grad():
        out = theirs(**padded(theirs, ids, [[0] * len(row) for row in ids]), output_hidden_states=True)
    # Their MegatronBert norms the last states after it has listed them.
    hidden = [*out.hidden_states[:-1], out.last_hidden_state]
    for row, states in enumerate(model.hidden(ids, layers="all")):
        assert states.shape == (model.architecture.layers + 1, len(ids[row]), model.architecture.width)
        wanted = torch.stack([state[row, : len(ids[row])] for state in hidden])
        torch.testing.assert_close(states, wanted, atol=1e-5, rtol=1e-4)
    for sequence in ids:
        with torch.no_grad():
            out = theirs(**padded(theirs, [sequence], [[0] * len(sequence)]), output_attentions=True)
        torch.testing.assert_close(model.attentions(sequence), torch.cat(out.attentions), atol=1e-5, rtol=1e-4)


def test_which_layers() -> None:
    model = random_model(preset("bert-base").architecture.with_values(SMALL), {})
    rows = [[5, 6, 7], [8]]
    every = model.hidden(rows, layers="all")
    last, embeddings = model.hidden(rows), model.hidden(rows, layers=0)
    chosen = model.hidden(rows, layers=[-1, 1])
    for row in range(2):
        torch.testing.assert_close(last[row], every[row][3])
        torch.testing.assert_close(embeddings[row], every[row][0])
        torch.testing.assert_close(chosen[row], every[row][[3, 1]])
    for wrong in (4, -5, [0, 9], [], "last", True, 1.0, [None], None):
        with pytest.raises(UserError, match="layers"):
            model.hidden(rows, layers=wrong)


def test_layers_of_a_bilstm() -> None:
    model = random_model(preset("bilstm").architecture.with_values({"vocab_size": 60, "layers": 2}), {})
    assert [model.hidden([[5, 6]], layers=layer)[0].shape[1] for layer in (0, 1, 2)] == [300, 400, 400]
    with pytest.raises(UserError, match="another width"):
        model.hidden([[5, 6]], layers="all")
    with pytest.raises(UserError, match="bilstm has no attention"):
        model.attentions([5, 6])


def test_attention_is_causal_and_of_known_parts() -> None:
    a = preset("bert-base").architecture.with_values(SMALL | {"attention": "causal"})
    attentions = random_model(a, {}).attentions([5, 6, 7, 8])
    assert attentions.shape == (3, 2, 4, 4)
    assert torch.equal(attentions, attentions.tril())
    torch.testing.assert_close(attentions.sum(-1), torch.ones(3, 2, 4))
    model = random_model(a, {})
    UNKNOWN["attention"][0](model.network.encoder)
    with pytest.raises(UserError, match="is a ScaledAttention"):
        model.attentions([5, 6])
    with pytest.raises(UserError, match="has RotaryPositions, whose attention cannot be computed"):
        random_model(a.with_values({"positions": "rotary"}), {}).attentions([5, 6])


def test_attention_of_a_window() -> None:
    a = preset("bert-base").architecture.with_values(SMALL | {"attention": "local", "window": 1})
    attentions = random_model(a, {}).attentions([5, 6, 7, 8])
    near = torch.ones(4, 4).tril(1).triu(-1)
    assert torch.equal(attentions > 0, near.bool().expand_as(attentions))


def test_tokens_stand_beside_attention(small_folder: Path) -> None:
    model = bertree.load(small_folder)
    assert model.tokens(("unbelievably", "yes")) == [
        "[CLS]",
        "un",
        "##bel",
        "##ie",
        "##va",
        "##bly",
        "[SEP]",
        "yes",
        "[SEP]",
    ]
    assert model.attentions(("unbelievably", "yes")).shape[-2:] == (9, 9)
    for wrong in (None, 3):
        with pytest.raises(UserError, match=f"texts: {wrong} is not a string"):
            model.attentions(wrong)


def test_attentions_of_a_list_are_those_of_each_input(small_folder: Path) -> None:
    model = bertree.load(small_folder)
    inputs = ["a word", ("one", "two"), [5, 6, 7]]
    for in_list, text in zip(model.attentions(inputs), inputs, strict=True):
        torch.testing.assert_close(in_list, model.attentions(text))
    assert [attentions.shape[-1] for attentions in model.attentions([[5, 6], [7, 8, 9]])] == [2, 3]
    assert model.attentions(torch.tensor([5, 6, 7])).shape[-1] == 3
    assert model.attentions(iter(["a"]))[0].ndim == 4
    assert model.attentions([]) == []
