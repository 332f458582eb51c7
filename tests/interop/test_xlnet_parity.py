"""XLNet: same weights, same input, same numbers as transformers, every head, random shapes.

transformers pads on the left, so that the last token of every row is the one that stands for the text.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bertree.objectives.supervised import TaskLabels, supervised_objective
from tests.support.parity import batch_of, gradients, load, peer, round_trip
from tests.support.shared import suite_has
from tests.support.xlnet import draw_orders, masks_of, with_order

HIDDEN, GRADIENT = 1e-5, 1e-4
HEADS = {
    "Model": "",
    "LMHeadModel": "mask",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnsweringSimple": "span",
    "ForMultipleChoice": "choice",
}
LENGTHS = [7, 1, 12, 7, 3, 20]
READABLE = [7, 12, 3, 20]  # every target sees a token: transformers gives one that sees none all of them


def settings(seed: int) -> dict[str, object]:
    """A random point of XLNet's space."""
    draw = random.Random(seed)
    heads = draw.choice([1, 2, 4])
    return {
        "vocab_size": draw.randint(40, 99), "d_model": heads * draw.choice([4, 8, 16]), "n_layer": draw.randint(1, 4),
        "n_head": heads, "d_inner": draw.choice([24, 64]), "num_labels": draw.choice([1, 2, 5]),
        "ff_activation": draw.choice(["gelu", "relu", "silu"]), "layer_norm_eps": draw.choice([1e-12, 1e-6]),
        "clamp_len": draw.choice([-1, 4]), "mem_len": draw.choice([None, 8]), "pad_token_id": 0,
    }  # fmt: skip


def inputs(vocab: int, seed: int, lengths: Sequence[int] = LENGTHS) -> tuple[list[list[int]], list[list[int]]]:
    """Random ids; segments 0, 1 and, at the end, 2."""
    draw = torch.Generator().manual_seed(seed)
    ids = [torch.randint(3, vocab, (n,), generator=draw).tolist() for n in lengths]
    return ids, [[0] * ((n - 1) // 2) + [1] * (n - 1 - (n - 1) // 2) + [2] for n in lengths]


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


def as_options(arguments: dict[str, Tensor]) -> dict[str, Tensor]:
    """Three questions of two options each."""
    return {name: tensor.unflatten(0, (3, 2)) for name, tensor in arguments.items()}


@pytest.mark.parametrize("seed", suite_has([0], range(4)))
@pytest.mark.parametrize("suffix", HEADS)
def test_states_logits_and_gradients_equal_transformers(suffix: str, seed: int, tmp_path: Path) -> None:
    point = settings(seed * 31 + len(suffix))
    if suffix == "ForQuestionAnsweringSimple":
        point["num_labels"] = 2
    model = peer("xlnet", suffix, seed, **point)
    contents = load(model, tmp_path)
    network, kind = contents.network, HEADS[suffix]
    ids, kinds = inputs(contents.architecture.vocab_size, seed)
    batch, peer_inputs = batch_of(ids, kinds), padded(ids, kinds)
    out = model(**(as_options(peer_inputs) if kind == "choice" else peer_inputs), output_hidden_states=True)
    hidden = network(batch)
    assert (hidden - flat(out.hidden_states[-1], ids)).abs().max() < HIDDEN
    if kind == "mask":
        ours, theirs = network.mask_logits(hidden, torch.arange(len(hidden))), flat(out.logits, ids)
    elif kind == "span":
        ours = network.class_logits(kind, hidden, batch)
        theirs = flat(torch.stack([out.start_logits, out.end_logits], -1), ids)
    elif kind:
        ours = network.class_logits(kind, hidden, batch)
        theirs = {"choice": out.logits.reshape(-1, 1), "sequence": out.logits}.get(kind)
        theirs = flat(out.logits, ids) if theirs is None else theirs
    else:
        ours, theirs = hidden, flat(out.last_hidden_state, ids)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < HIDDEN
    weight = torch.randn(ours.shape, generator=torch.Generator().manual_seed(seed)) / ours.numel() ** 0.5
    (ours * weight).sum().backward()
    (theirs * weight).sum().backward()
    assert gradients(network, contents, model) < GRADIENT


@pytest.mark.parametrize("seed", range(3))
def test_losses_of_tokens_predicted_in_an_order_equal_transformers(seed: int, tmp_path: Path) -> None:
    model = peer("xlnet", "LMHeadModel", seed, **settings(50 + seed))
    contents = load(model, tmp_path)
    ids, kinds = inputs(contents.architecture.vocab_size, seed, READABLE)
    ranks, chosen = draw_orders(READABLE, seed)
    batch = with_order(batch_of(ids, kinds), ranks, chosen)
    assert batch.permutation is not None
    hidden, targets = contents.network(batch), batch.ids[batch.permutation.queries]
    predicted = len(batch.ids) + torch.arange(len(targets))
    ours = contents.network.mask_loss(hidden, predicted, targets)
    theirs = torch.zeros(())
    for row, kind, rank, places in zip(ids, kinds, ranks, chosen, strict=True):
        tokens = torch.tensor(row)
        options = {"input_ids": tokens[None], "token_type_ids": torch.tensor(kind)[None], **masks_of(rank, places)}
        theirs = theirs + model(**options, labels=tokens[places][None]).loss * len(places)
    assert ours.item() == pytest.approx(theirs.item(), rel=HIDDEN)
    ours.backward()
    theirs.backward()
    assert gradients(contents.network, contents, model) < GRADIENT


@pytest.mark.parametrize("seed", range(3))
def test_the_loss_of_answers_with_a_beam_equals_transformers(seed: int, tmp_path: Path) -> None:
    model = peer("xlnet", "ForQuestionAnswering", seed, **settings(80 + seed))
    contents = load(model, tmp_path)
    ids, kinds = inputs(contents.architecture.vocab_size, seed)
    peer_inputs, longest = padded(ids, kinds), max(LENGTHS)
    answers = [(0, 0) if n < 4 else (1 + n // 4, n // 2) for n in LENGTHS]  # 0: the last token, "no answer"
    first = [longest - n for n in LENGTHS]
    places = torch.tensor(
        [[at + (a - 1) % n for a in pair] for at, n, pair in zip(first, LENGTHS, answers, strict=True)]
    )
    theirs = model(
        **peer_inputs,
        p_mask=1.0 - peer_inputs["attention_mask"],
        cls_index=torch.full((len(LENGTHS),), longest - 1),
        start_positions=places[:, 0],
        end_positions=places[:, 1],
        is_impossible=torch.tensor([float(pair == (0, 0)) for pair in answers]),
    ).loss
    starts = [sum(LENGTHS[:i]) for i in range(len(LENGTHS))]
    rows = [[start + n - 1, *range(start, start + n - 1)] for start, n in zip(starts, LENGTHS, strict=True)]
    cells = torch.tensor([i * longest + k for i, row in enumerate(rows) for k in range(len(row))])
    labels = TaskLabels(torch.tensor(answers), torch.tensor(list(chain(*rows))), cells, longest)
    batch = replace(batch_of(ids, kinds), labels=labels)
    term = supervised_objective("beam-span").terms["beam-span"]
    ours = term.loss(contents.network, contents.network(batch), batch).sum / len(LENGTHS)
    assert ours.item() == pytest.approx(theirs.item(), abs=HIDDEN)
    ours.backward()
    theirs.backward()
    assert gradients(contents.network, contents, model) < GRADIENT


@pytest.mark.parametrize("suffix", [*HEADS, "ForQuestionAnswering"])
def test_what_is_read_and_written_is_the_same_for_transformers(suffix: str, tmp_path: Path) -> None:
    model = peer("xlnet", suffix, 0, **settings(7) | {"num_labels": 2})
    contents = round_trip(model, tmp_path)
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    ids, kinds = inputs(contents.architecture.vocab_size, 0)
    peer_inputs = padded(ids, kinds)
    if suffix == "ForMultipleChoice":
        peer_inputs = as_options(peer_inputs)
    assert (again(**peer_inputs)[0] - model(**peer_inputs)[0]).abs().max() < HIDDEN
