"""The terms against values computed by hand."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bertree.model.heads import NEVER, ROUND, MaskHead
from bertree.objectives import pretraining
from bertree.objectives.objective import cross_entropy
from bertree.objectives.pretraining import pretraining_objective
from tests.support.batches import fresh, joined, sequences

LOGITS = [[0.0, math.log(3.0)], [0.0, 0.0], [math.log(9.0), 0.0], [5.0, -5.0]]
TARGETS = [1, 0, 1, -100]
BY_HAND = math.log(4 / 3) + math.log(2) + math.log(10)


def test_a_sum_by_hand() -> None:
    logits = torch.tensor(LOGITS, requires_grad=True)
    loss = cross_entropy(logits, torch.tensor(TARGETS))
    assert float(loss.sum.detach()) == pytest.approx(BY_HAND, rel=1e-6)
    assert loss.correct is None
    loss.sum.backward()
    assert logits.grad is not None
    assert logits.grad.tolist()[0] == pytest.approx([0.25, -0.25])
    assert logits.grad.tolist()[1] == pytest.approx([-0.5, 0.5])
    assert logits.grad.tolist()[2] == pytest.approx([0.9, -0.9])
    assert logits.grad.tolist()[3] == [0.0, 0.0], "what is ignored is ignored"
    with torch.no_grad():
        right = cross_entropy(logits, torch.tensor(TARGETS)).correct
    assert int(right) == 2, "the second row is a tie that the first class wins"
    empty = cross_entropy(logits[:0], torch.tensor([], dtype=torch.long))
    assert float(empty.sum.detach()) == 0.0


def test_half_precision_logits_are_summed_in_full() -> None:
    logits = torch.tensor(LOGITS, dtype=torch.bfloat16)
    loss = cross_entropy(logits, torch.tensor(TARGETS)).sum
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(F.cross_entropy(logits.float()[:3], torch.tensor(TARGETS[:3])) * 3))


@pytest.mark.parametrize(("question", "at_once"), [("nsp", 8192), ("sop", 4)])
def test_masked_tokens_and_pairs(question: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "EVALUATED", at_once)
    batch = joined(sequences(9))
    assert len(batch.labels.targets) > 4
    network = fresh().eval()
    objective = pretraining_objective(mlm=2.0, **{question: 0.5})
    assert objective.weights == {"mlm": 2.0, question: 0.5}
    targets, pairs = batch.labels.targets.tolist(), batch.labels.pairs.tolist()
    assert -100 in pairs
    assert objective.counts(batch) == {"mlm": len(targets), question: sum(label != -100 for label in pairs)}
    with torch.no_grad():
        losses = objective(network, batch).losses
        hidden = network(batch)
        words = network.mask_logits(hidden, batch.labels.masked).double().log_softmax(-1)
        pooled = (hidden[batch.first] @ network.encoder.pooler.weight.T + network.encoder.pooler.bias).tanh()
        head = network.heads["pair"].out
        sides = (pooled @ head.weight.T + head.bias).double().log_softmax(-1)
    assert float(losses["mlm"].sum) == pytest.approx(-sum(float(words[i, t]) for i, t in enumerate(targets)), rel=1e-5)
    asked = [(i, t) for i, t in enumerate(pairs) if t != -100]
    assert float(losses[question].sum) == pytest.approx(-sum(float(sides[i, t]) for i, t in asked), rel=1e-5)
    assert int(losses["mlm"].correct) == sum(int(words[i].argmax()) == t for i, t in enumerate(targets))
    assert int(losses[question].correct) == sum(int(sides[i].argmax()) == t for i, t in asked)
    some = batch.labels.targets.clone()
    some[::2] = -100
    fewer = replace(batch, labels=replace(batch.labels, targets=some))
    assert objective.counts(fewer)["mlm"] == len(targets) - -(-len(targets) // 2)


def test_a_term_of_no_weight_is_not_computed() -> None:
    assert set(pretraining_objective(mlm=1.0).terms) == {"mlm"}
    network = fresh(heads=("mask",))
    losses = pretraining_objective(mlm=1.0)(network, joined(sequences(3))).losses
    assert set(losses) == {"mlm"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_filling_up_the_vocabulary_changes_no_loss(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    head = MaskHead(8, 8, 50, activation="gelu", norm_eps=1e-12).to(dtype)
    tokens = nn.Embedding(50, 8, dtype=dtype)
    table = tokens.weight
    hidden = torch.randn(6, 8, dtype=dtype)
    targets = torch.randint(0, 50, (6,))
    logits = head(hidden, tokens, pad_vocab=True)
    assert logits.shape[-1] == (50 if not torch.cuda.is_available() else logits.shape[-1])
    spare = -50 % ROUND
    # What the GPU computes: rows of zeros in the table, whose bias rules them out.
    padded = torch.cat([logits, torch.full((6, spare), NEVER, dtype=dtype)], -1)
    plain, filled = cross_entropy(logits, targets).sum, cross_entropy(padded, targets).sum
    assert padded.isfinite().all()
    assert float(plain) == float(filled)
    (gradient,) = torch.autograd.grad(plain, table, retain_graph=True)
    (other,) = torch.autograd.grad(filled, table)
    assert torch.equal(gradient, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only a GPU fills the vocabulary up")
def test_a_gpu_fills_up_the_vocabulary() -> None:
    head = MaskHead(8, 8, 50, activation="gelu", norm_eps=1e-12).cuda()
    tokens, hidden = nn.Embedding(50, 8, device="cuda"), torch.randn(6, 8, device="cuda")
    targets = torch.randint(0, 50, (6,), device="cuda")
    plain, filled = head(hidden, tokens), head(hidden, tokens, pad_vocab=True)
    assert (plain.shape[-1], filled.shape[-1]) == (50, ROUND)
    assert float(cross_entropy(plain, targets).sum) == pytest.approx(float(cross_entropy(filled, targets).sum))
