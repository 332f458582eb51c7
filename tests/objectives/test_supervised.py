"""What fine-tuning minimises, against transformers' own losses on the same weights, and what is not asked for."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import transformers
from torch import Tensor

from bertree.batch import Batch
from bertree.interop.contents import Contents
from bertree.model.architecture import Transformer
from bertree.model.network import Network, build
from bertree.model.readout import Readout
from bertree.objectives.supervised import supervised_objective
from bertree.tasks.batches import collate
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Encoded
from tests.support import parity

SMALL = {
    "vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 32,
}  # fmt: skip
LENGTHS = [7, 4, 11, 5, 9, 6]
IDS, KINDS = parity.ragged(LENGTHS, 60, 2, seed=5)
DRAW = torch.Generator().manual_seed(6)


def units(answers: list[object], chosen: list[list[int]] | None = None, options: int = 1) -> list[Unit]:
    """The sequences above, so many a unit."""
    encoded = [Encoded(ids, kinds, 0) for ids, kinds in zip(IDS, KINDS, strict=True)]
    return [
        Unit(n, tuple(encoded[n * options : (n + 1) * options]), chosen[n] if chosen else None, answer)
        for n, answer in enumerate(answers)
    ]


CHOSEN = [sorted(torch.randperm(n, generator=DRAW)[: max(2, n // 2)].tolist()) for n in LENGTHS]
TAGS = [torch.randint(0, 5, (len(row),), generator=DRAW).tolist() for row in CHOSEN]
SPANS = [(0, len(row) - 1) if n % 2 else (1, 1) for n, row in enumerate(CHOSEN)]
CLASSES = [2, 0, 1, 1, 2, 0]
SCORES = [0.5, -1.25, 3.0, 0.0, 2.5, -0.75]


def padded(rows: list[list[int]], values: list[list[int]]) -> Tensor:
    """Values at the chosen places of padded rows, -100 elsewhere."""
    table = torch.full((len(IDS), max(LENGTHS)), -100)
    for n, (places, some) in enumerate(zip(rows, values, strict=True)):
        table[n, places] = torch.tensor(some)
    return table


def span_loss(model: transformers.PreTrainedModel, arguments: dict[str, Tensor]) -> Tensor:
    outputs = model(**arguments)
    allowed = padded(CHOSEN, [[0] * len(row) for row in CHOSEN]) == 0
    starts = torch.tensor([row[a] for row, (a, _) in zip(CHOSEN, SPANS, strict=True)])
    ends = torch.tensor([row[b] for row, (_, b) in zip(CHOSEN, SPANS, strict=True)])
    masked = [logits.masked_fill(~allowed, -1e9) for logits in (outputs.start_logits, outputs.end_logits)]
    return sum(map(torch.nn.functional.cross_entropy, masked, (starts, ends))) / 2


def choice_loss(model: transformers.PreTrainedModel, arguments: dict[str, Tensor]) -> Tensor:
    return model(
        **{name: value.unflatten(0, (2, 3)) for name, value in arguments.items()}, labels=torch.tensor([2, 0])
    ).loss


Case = tuple[str, str, dict[str, object], bool, list[Unit], Callable[..., Tensor]]
CASES: dict[str, Case] = {
    "classification": (
        "sequence", "ForSequenceClassification", {"num_labels": 3}, False, units(CLASSES),
        lambda model, arguments: model(**arguments, labels=torch.tensor(CLASSES)).loss,
    ),
    "regression": (
        "sequence", "ForSequenceClassification", {"num_labels": 1}, True, units(SCORES),
        lambda model, arguments: model(**arguments, labels=torch.tensor(SCORES)).loss,
    ),
    "tagging": (
        "token", "ForTokenClassification", {"num_labels": 5}, False, units(TAGS, CHOSEN),
        lambda model, arguments: model(**arguments, labels=padded(CHOSEN, TAGS)).loss,
    ),
    "span": ("span", "ForQuestionAnswering", {}, False, units(SPANS, CHOSEN), span_loss),
    "choice": ("choice", "ForMultipleChoice", {}, False, units([2, 0], options=3), choice_loss),
}  # fmt: skip


def loss_of(network: Network, head: str, batch: Batch, regression: bool = False, crf: bool = False) -> Tensor:
    objective = supervised_objective(head, regression, crf)
    return objective(network, batch).losses[head].sum / objective.counts(batch)[head]


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[transformers.PreTrainedModel, Contents]]:
    models = {}
    for name, (_, suffix, settings, *_) in CASES.items():
        model = parity.peer("bert", suffix, 3, **SMALL, **settings)
        models[name] = model, parity.load(model, tmp_path_factory.mktemp(name) / "model")
    return models


@pytest.mark.parametrize("case", CASES)
def test_as_transformers(case: str, peers: dict[str, tuple[transformers.PreTrainedModel, Contents]]) -> None:
    head, _, _, regression, some, theirs = CASES[case]
    model, contents = peers[case]
    expected = theirs(model, parity.padded(model, IDS, KINDS))
    ours = loss_of(contents.network, head, collate(some, head, regression), regression)
    assert float(ours.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    assert float(expected.detach()) > 0.1
    model.zero_grad()
    contents.network.zero_grad()
    expected.backward()
    ours.backward()
    assert contents.network.encoder.embeddings.tokens.weight.grad.abs().max() > 1e-4
    assert parity.gradients(contents.network, contents, model) < 1e-6


@pytest.mark.parametrize("case", CASES)
def test_what_is_not_known_is_not_asked(
    case: str, peers: dict[str, tuple[transformers.PreTrainedModel, Contents]]
) -> None:
    head, _, _, regression, some, _ = CASES[case]
    network, objective = peers[case][1].network, supervised_objective(head, regression)
    labeled, unknown = some[:1], [unit._replace(answer=None) for unit in some[1:]]
    if case == "tagging":  # also a single word of a sentence
        labeled = [labeled[0]._replace(answer=[TAGS[0][0], *[-100] * (len(TAGS[0]) - 1)])]
        alone = [labeled[0]._replace(chosen=CHOSEN[0][:1], answer=TAGS[0][:1])]
    else:
        alone = labeled
    losses = []
    for batch in (collate([*labeled, *unknown], head, regression), collate(alone, head, regression)):
        network.zero_grad()
        loss = objective(network, batch).losses[head].sum
        loss.backward()
        assert objective.counts(batch) == {head: 1}
        losses.append((loss.detach(), [p.grad.clone() for p in network.parameters() if p.grad is not None]))
    (loss, gradients), (alone_loss, alone_gradients) = losses
    assert torch.allclose(loss, alone_loss, rtol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(gradients, alone_gradients, strict=True))
    network.zero_grad()
    batch = collate(unknown, head, regression)
    nothing = objective(network, batch).losses[head].sum
    nothing.backward()
    assert float(nothing.detach()) == 0.0
    assert objective.counts(batch) == {head: 0}
    assert all(p.grad is None or not p.grad.any() for p in network.parameters())


def test_a_crf_is_asked_for_whole_sequences() -> None:
    torch.manual_seed(0)
    a = Transformer().with_values({"vocab_size": 60, "width": 16, "heads": 2, "layers": 1, "max_positions": 32})
    network = build(a, {"token": 5}, Readout(crf=True)).eval()
    assert network.crf is not None
    with torch.no_grad():
        for parameter in network.crf.parameters():
            parameter.normal_()
    batch = collate(units(TAGS, CHOSEN), "token")
    scores = network.class_logits("token", network(batch), batch, batch.labels.chosen)
    total, at = torch.zeros(()), 0
    for tags in TAGS:
        part = scores[at : at + len(tags)]
        at += len(tags)
        score = network.crf.start[tags[0]] + network.crf.end[tags[-1]] + part[range(len(tags)), tags].sum()
        score = score + network.crf.transitions[tags[:-1], tags[1:]].sum()
        sums = network.crf.start + part[0]
        for row in part[1:]:
            sums = (sums[:, None] + network.crf.transitions + row).logsumexp(0)
        total = total + (sums + network.crf.end).logsumexp(0) - score
    count = sum(map(len, TAGS))
    assert supervised_objective("token", crf=True).counts(batch) == {"token": count}
    assert loss_of(network, "token", batch, crf=True).item() == pytest.approx(total.item() / count, rel=1e-6)


def test_half_precision_scores_compete_in_full(peers: dict[str, tuple[transformers.PreTrainedModel, Contents]]) -> None:
    """An empty cell has no probability in bf16 either, and the sums are fp32."""
    for case in ("span", "choice"):
        head, _, _, _, some, _ = CASES[case]
        network, batch = peers[case][1].network, collate(some, head)
        exact = loss_of(network, head, batch)
        with torch.autocast("cpu", torch.bfloat16):
            half = loss_of(network, head, batch)
        assert half.dtype == torch.float32
        assert half.item() == pytest.approx(exact.item(), rel=0.05)
        labels = batch.labels
        cells = labels.cells // labels.width * 40 + labels.cells % labels.width
        wider = replace(batch, labels=replace(labels, cells=cells, width=40))
        assert loss_of(network, head, wider).item() == pytest.approx(exact.item(), rel=1e-6)
