"""Figures on held-out text against a computation by hand, and the samples that show masks being filled."""

import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.held_out import MaskSamples, evaluate_held_out
from tests.support.batches import fresh


@pytest.fixture(scope="module")
def held(token_store: Path) -> Stream:
    return Stream(Store.open(token_store), format="segment-pair+sop", batch_tokens=400, max_length=40)


def test_figures_by_hand(held: Stream) -> None:
    network = fresh(vocab_size=held.store.vocab_size, dropout=0.2).train()
    objective = pretraining_objective(mlm=2.0, sop=0.5)
    figures = evaluate_held_out(network, objective, held, 900, nullcontext)
    assert evaluate_held_out(network, objective, held, 900, nullcontext) == figures
    assert network.training, "as it was before"
    network.eval()
    words, pairs, read = [], [], 0
    for batch in held.one_epoch():
        with torch.no_grad():
            hidden = network(batch)
            scores = network.mask_logits(hidden, batch.labels.masked).log_softmax(-1)
            sides = network.class_logits("pair", hidden, batch).log_softmax(-1)
        for row, target in zip(scores, batch.labels.targets.tolist(), strict=True):
            words.append((-float(row[target]), int(row.argmax()) == target))
        for row, target in zip(sides, batch.labels.pairs.tolist(), strict=True):
            if target != -100:
                pairs.append((-float(row[target]), int(row.argmax()) == target))
        read += batch.ids.numel()
        if read >= 900:
            break
    mlm, sop = (sum(loss for loss, _ in rows) / len(rows) for rows in (words, pairs))
    assert figures == pytest.approx(
        {
            "loss": 2 * mlm + 0.5 * sop,
            "mlm": mlm,
            "sop": sop,
            "perplexity": math.exp(mlm),
            "accuracy": sum(right for _, right in words) / len(words),
            "sop_accuracy": sum(right for _, right in pairs) / len(pairs),
        },
        rel=1e-5,
    )
    assert read < held.epoch_tokens, "the rest is not read"


def test_samples_are_the_same_texts_every_time(held: Stream) -> None:
    network = fresh(vocab_size=held.store.vocab_size, max_positions=64)
    left, right = MaskSamples(held)(network), MaskSamples(held)(network)
    assert left == right
    assert len(left) == 4
    for sample in left:
        assert sample["text"].count("[MASK]") == len(sample["masks"]) > 0
        assert all(0 < mask["probability"] <= 1 for mask in sample["masks"])


def test_the_true_words_stand_in_a_sample(held: Stream) -> None:
    samples = MaskSamples(held)
    for example, shown in zip(samples.examples, samples(fresh(vocab_size=held.store.vocab_size)), strict=True):
        hidden = [mask["gold"] for mask in shown["masks"]]
        assert len(hidden) == int((example.ids == held.store.special["mask"]).sum())
