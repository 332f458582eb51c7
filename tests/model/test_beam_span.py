"""XLNet's head for questions against transformers' own, and the search for answers in what it gives."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.heads import STARTS, BeamSpanHead, Grid
from bertree.model.network import Network, build
from bertree.objectives.supervised import TaskLabels, supervised_objective

LENGTHS = [16, 9, 23, 12]
FIRST = [5, 3, 9, 4]  # where each context begins; the last token of all stands for "no answer", the one before ends it
ANSWERS = [(2, 4), (0, 0), (1, 1), (3, 6)]  # among the tokens that can be chosen
PARTS = {
    "start": "start_logits.dense", "end_dense": "end_logits.dense_0", "end_norm": "end_logits.LayerNorm",
    "end_out": "end_logits.dense_1", "answer_dense": "answer_class.dense_0", "answer_out": "answer_class.dense_1",
}  # fmt: skip

UNFELT = (("start", "bias"), ("end_norm", "bias"), ("end_out", "bias"))  # the same for all tokens: no softmax changes


def chosen(number: int) -> list[int]:
    return [LENGTHS[number] - 1, *range(FIRST[number], LENGTHS[number] - 2)]


class Peer:
    """transformers' model, its states, and our head with the same weights."""

    def __init__(self) -> None:
        torch.manual_seed(4)
        config = transformers.XLNetConfig(
            vocab_size=60, d_model=16, n_layer=1, n_head=2, d_inner=32, dropout=0.0, start_n_top=STARTS + 1, end_n_top=7
        )
        self.model = transformers.XLNetForQuestionAnswering(config).eval()
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.normal_(std=0.5)
        self.head = BeamSpanHead(16, config.layer_norm_eps)
        theirs = dict(self.model.named_modules())
        for ours, name in PARTS.items():
            getattr(self.head, ours).load_state_dict(theirs[name].state_dict())
        longest, draw = max(LENGTHS), torch.Generator().manual_seed(5)
        p_mask = torch.ones(len(LENGTHS), longest)
        for number in range(len(LENGTHS)):
            p_mask[number, chosen(number)] = 0.0
        self.given = {
            "input_ids": torch.randint(7, 60, (len(LENGTHS), longest), generator=draw),
            "attention_mask": torch.tensor([[1] * n + [0] * (longest - n) for n in LENGTHS]),
            "p_mask": p_mask,
            "cls_index": torch.tensor(LENGTHS) - 1,
        }
        body = {name: self.given[name] for name in ("input_ids", "attention_mask")}
        self.hidden = self.model.transformer(**body).last_hidden_state

    @property
    def states(self) -> Tensor:
        return torch.cat([self.hidden[number, chosen(number)] for number in range(len(LENGTHS))])

    def labels(self, answers: list[tuple[int, int]]) -> TaskLabels:
        width = max(len(chosen(number)) for number in range(len(LENGTHS)))
        cells = [number * width + k for number in range(len(LENGTHS)) for k in range(len(chosen(number)))]
        total = len(cells)
        return TaskLabels(torch.tensor(answers), torch.arange(total), torch.tensor(cells), width)

    def network(self) -> Network:
        network = build(small(), {"beam-span": 0})
        network.heads["beam-span"] = self.head
        return network

    def loss(self, labels: TaskLabels) -> Tensor:
        ids = torch.zeros(len(self.states), dtype=torch.int64)
        batch = replace(Batch.pack([ids.tolist()]), labels=labels)
        term = supervised_objective("beam-span").terms["beam-span"]
        return term.loss(self.network(), self.states, batch).sum / max(1, term.count(batch))


def small() -> Transformer:
    a = Transformer().with_values({"vocab_size": 60, "width": 16, "heads": 2, "layers": 1, "max_positions": 32})
    assert isinstance(a, Transformer)
    return a


@pytest.fixture
def peer() -> Peer:
    return Peer()


def test_the_loss_and_its_gradients_are_those_of_transformers(peer: Peer) -> None:
    places = [[chosen(n)[k] for k in ANSWERS[n]] for n in range(len(LENGTHS))]
    starts, ends = (torch.tensor([place[k] for place in places]) for k in (0, 1))
    absent = torch.tensor([float(answer == (0, 0)) for answer in ANSWERS])
    theirs = peer.model(**peer.given, start_positions=starts, end_positions=ends, is_impossible=absent).loss
    theirs.backward()
    ours = peer.loss(peer.labels(ANSWERS))
    ours.backward()
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    modules = dict(peer.model.named_modules())
    for mine, name in PARTS.items():
        for kind, parameter in getattr(peer.head, mine).named_parameters():
            expected = getattr(modules[name], kind).grad
            if (mine, kind) not in UNFELT:
                assert expected.abs().max() > 1e-4
            assert torch.allclose(parameter.grad, expected, atol=1e-5), f"{mine}.{kind}"


def test_questions_without_a_label_are_not_asked(peer: Peer) -> None:
    unknown = [(-100, -100)] * 3
    some = peer.loss(peer.labels([ANSWERS[0], *unknown]))
    own = peer.labels(ANSWERS)
    assert len(chosen(0)) == 10
    alone = replace(own, answers=own.answers[:1], chosen=own.chosen[:10], cells=own.cells[:10])
    assert some.item() == pytest.approx(peer.loss(alone).item(), rel=1e-6)
    none = peer.loss(peer.labels([*unknown, (-100, -100)]))
    none.backward()
    assert none.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in peer.head.parameters())


@torch.no_grad()
def test_the_beam_is_that_of_transformers(peer: Peer) -> None:
    """transformers flattens the last tokens by rank, then by first token, and may begin with "no answer"."""
    expected = peer.model(**peer.given)
    labels = peer.labels(ANSWERS)
    rows_of = peer.head(peer.states, labels.grid).split([len(chosen(n)) for n in range(len(LENGTHS))])
    ends = expected.end_top_log_probs.view(len(LENGTHS), 7, STARTS + 1), expected.end_top_index.view(-1, 7, STARTS + 1)
    for number, rows in enumerate(rows_of):
        places, none = chosen(number), LENGTHS[number] - 1
        kept = [k for k, place in enumerate(expected.start_top_index[number].tolist()) if place != none][:STARTS]
        count = min(len(places) - 1, STARTS)
        assert len(kept) >= count
        for rank, k in enumerate(kept[:count], 1):
            row = int((rows[:, 1] == rank).nonzero())
            assert places[row] == expected.start_top_index[number, k]
            assert float(rows[row, 0].exp()) == pytest.approx(float(expected.start_top_log_probs[number, k]), rel=1e-5)
            shares = dict(zip(ends[1][number, :, k].tolist(), ends[0][number, :, k].tolist(), strict=True))
            for place, share in shares.items():
                if place in places:
                    ours = float(rows[places.index(place), 2 + rank].exp())
                    assert ours == pytest.approx(share, rel=1e-4, abs=1e-7)
        assert torch.allclose(rows[:, 2], expected.cls_logits[number], atol=1e-5)


@torch.no_grad()
def test_no_answer_is_never_the_first_token_and_few_tokens_have_few_first_ones() -> None:
    torch.manual_seed(0)
    head = BeamSpanHead(8, 1e-12)
    states = torch.randn(6, 8)
    rows = head(states, Grid(torch.tensor([0, 1, 2, 3, 4, 8]), 3, 4))  # 4, 1 and 1 tokens in rows of 4
    assert rows.shape == (6, 3 + STARTS)
    assert sorted(rows[:4, 1].tolist()) == [0, 1, 2, 3]
    assert rows[0, 1] == rows[4, 1] == rows[5, 1] == 0
    assert np.allclose(rows[4:, 0].exp(), 1)
    alone = head(states[:1], Grid(torch.tensor([0]), 1, 1))
    assert alone.isfinite().all()
    assert alone[0, 1] == 0


def test_a_summary_head_has_a_dense_layer_and_dropout_behind_it_only() -> None:
    a = small().with_values({"sequence_head": "summary", "pooler": False, "classifier_dropout": 0.3})
    for name, classes in (("sequence", 3), ("choice", 1), ("pair", 2)):
        head = build(a, {name: classes}).heads[name]
        assert (head.reads, head.out.out_features, head.dense.out_features) == ("sequence", classes, 16)
        assert (head.input_dropout.p, head.dropout.p) == (0.0, 0.3)
        x = torch.randn(2, 16)
        head.eval()
        assert torch.equal(head(x), head.out(head.dense(x).tanh()))
