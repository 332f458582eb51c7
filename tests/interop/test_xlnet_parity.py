"""XLNet: same weights, same input, same numbers as transformers, every head, random shapes.

transformers pads on the left, so that the last token of every row is the one that stands for the text.
"""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from bertree.interop import folder
from tests.support.parity import batch_of, gradients, load, peer

HIDDEN, GRADIENT = 1e-5, 1e-4
HEADS = {
    "Model": "",
    "LMHeadModel": "mask",
    "ForTokenClassification": "token",
    "ForQuestionAnsweringSimple": "span",
}
LENGTHS = [7, 1, 12, 7, 3, 20]


def settings(seed: int) -> dict[str, object]:
    """A random point of XLNet's space."""
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    return {
        "vocab_size": draw.randint(40, 99), "d_model": heads * draw.choice([4, 8, 16]), "n_layer": draw.randint(1, 4),
        "n_head": heads, "d_inner": draw.choice([24, 64]), "num_labels": draw.choice([1, 2, 5]),
        "ff_activation": draw.choice(["gelu", "gelu_new", "relu"]), "layer_norm_eps": draw.choice([1e-12, 1e-6]),
        "clamp_len": draw.choice([-1, 4]), "mem_len": draw.choice([None, 8]), "pad_token_id": 0,
    }  # fmt: skip


def inputs(vocab: int, seed: int) -> tuple[list[list[int]], list[list[int]]]:
    """Random ids; segments 0, 1 and, at the end, 2."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(3, vocab, (n,), generator=draw).tolist() for n in LENGTHS]
    return ids, [[0] * ((n - 1) // 2) + [1] * (n - 1 - (n - 1) // 2) + [2] for n in LENGTHS]


def padded(ids: list[list[int]], kinds: list[list[int]]) -> dict[str, Tensor]:
    """The same batch as transformers takes it, padded on the left."""
    longest = max(map(len, ids))
    return {
        "input_ids": torch.tensor([[0] * (longest - len(row)) + row for row in ids]),
        "attention_mask": torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in ids]),
        "token_type_ids": torch.tensor([[3] * (longest - len(row)) + row for row in kinds]),
    }


def flat(tensor: Tensor, ids: list[list[int]]) -> Tensor:
    """Padded rows -> the stream of real tokens."""
    return torch.cat([tensor[i, -len(row) :] for i, row in enumerate(ids)])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("suffix", HEADS)
def test_states_logits_and_gradients_equal_transformers(suffix: str, seed: int, tmp_path: Path) -> None:
    point = settings(seed * 31 + len(suffix))
    if suffix == "ForQuestionAnsweringSimple":
        point["num_labels"] = 2
    model = peer("xlnet", suffix, seed, **point)
    contents = load(model, tmp_path)
    network = contents.network
    ids, kinds = inputs(contents.architecture.vocab_size, seed)
    batch = batch_of(ids, kinds)
    out = model(**padded(ids, kinds), output_hidden_states=True)
    hidden = network(batch)
    assert (hidden - flat(out.hidden_states[-1], ids)).abs().max() < HIDDEN
    kind = HEADS[suffix]
    if kind == "mask":
        ours, theirs = network.mask_logits(hidden, torch.arange(len(hidden))), flat(out.logits, ids)
    elif kind == "sequence":
        ours, theirs = network.class_logits(kind, hidden, batch), out.logits
    elif kind == "token":
        ours, theirs = network.class_logits(kind, hidden, batch), flat(out.logits, ids)
    elif kind == "span":
        ours = network.class_logits(kind, hidden, batch)
        theirs = flat(torch.stack([out.start_logits, out.end_logits], -1), ids)
    else:
        ours, theirs = hidden, flat(out.last_hidden_state, ids)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < HIDDEN
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed)) / ours.numel() ** 0.5
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    assert gradients(network, contents, model) < GRADIENT


@pytest.mark.parametrize("suffix", HEADS)
def test_what_is_read_and_written_is_the_same_for_transformers(suffix: str, tmp_path: Path) -> None:
    model = peer("xlnet", suffix, 0, **settings(7) | {"num_labels": 2})
    contents = load(model, tmp_path / "theirs")
    folder.write(contents, tmp_path / "ours", to="huggingface")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype
        assert torch.equal(tensor, after[name]), name
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    ids, kinds = inputs(contents.architecture.vocab_size, 0)
    given = padded(ids, kinds)
    if suffix == "ForMultipleChoice":
        given = {name: tensor.unflatten(0, (3, 2)) for name, tensor in given.items()}
    assert (again(**given)[0] - model(**given)[0]).abs().max() < HIDDEN
    folder.write(contents, tmp_path / "both")
    both = folder.read(tmp_path / "both")
    assert both.architecture == contents.architecture
    assert (tmp_path / "both" / "model.safetensors").read_bytes() == (
        tmp_path / "ours" / "model.safetensors"
    ).read_bytes()
    state = contents.network.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in both.network.state_dict().items())
