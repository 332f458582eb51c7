"""The losses on vectors: sentence-transformers' values on the same inputs, right slopes, and no false negatives."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from bertree.batch import IGNORED
from bertree.errors import UserError
from bertree.model.heads import PairClassifier, parse_concat
from bertree.objectives import embedding_losses
from bertree.objectives.embedding import (
    DISTANCE_FUNCTIONS,
    cosine_errors,
    embedding_objective,
    ranking_errors,
    triplet_errors,
)
from bertree.objectives.embedding_losses import (
    CosentLoss,
    CosineLoss,
    EmbeddingLoss,
    MarginLoss,
    RankingLoss,
    SimcseLoss,
    SoftmaxLoss,
    TripletLoss,
)

COUNT, WIDTH = 7, 12


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def names(texts: int, questions: int = COUNT) -> Tensor:
    """All of them different."""
    return torch.arange(questions * texts).reshape(questions, texts)


def theirs() -> SimpleNamespace:
    pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer import losses

    return losses


class Columns(nn.Module):
    """In the place of their model: the features are the vectors."""

    device = torch.device("cpu")

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return features


@pytest.mark.parametrize(
    ("concat", "arguments"),
    [
        ("u,v,|u-v|", (True, True, False)),
        ("(u, v)", (True, False, False)),
        ("|u-v|", (False, True, False)),
        ("u*v", (False, False, True)),
        ("|u-v|,u*v", (False, True, True)),
        ("u,v,u*v", (True, False, True)),
        ("u,v,|u-v|,u*v", (True, True, True)),
    ],
)
def test_softmax_is_theirs(concat: str, arguments: tuple[bool, bool, bool]) -> None:
    peer = theirs().SoftmaxLoss(Columns(), WIDTH, 3, *arguments)
    ours = PairClassifier(WIDTH, 3, parse_concat(concat))
    ours.out.load_state_dict(peer.classifier.state_dict())
    table, labels = drawn(COUNT, 2, WIDTH), torch.tensor([0, 1, 2, 2, 1, 0, 0])
    wanted = peer([{"sentence_embedding": table[:, 0]}, {"sentence_embedding": table[:, 1]}], labels)
    network = SimpleNamespace(heads={"compare": ours})
    asked = torch.cat([labels, torch.tensor([IGNORED])])
    more = torch.cat([table, drawn(1, 2, WIDTH, seed=5)])
    loss = SoftmaxLoss()(network, more, asked)
    assert SoftmaxLoss().count(asked) == COUNT
    assert float(loss.sum.detach()) / COUNT == pytest.approx(wanted.item(), abs=1e-6)


@pytest.mark.parametrize("text", ["u,w", "", "u,u", "u-v"])
def test_parts_nobody_knows(text: str) -> None:
    with pytest.raises(UserError, match="concat: "):
        parse_concat(text)


def test_cosine_is_theirs() -> None:
    table, scores = drawn(COUNT, 2, WIDTH), drawn(COUNT, seed=1).sigmoid()
    wanted = theirs().CosineSimilarityLoss(None).compute_loss_from_embeddings([table[:, 0], table[:, 1]], scores)
    loss = cosine_errors(table[:, 0], table[:, 1], scores)
    assert loss.mean().item() == pytest.approx(wanted.item(), abs=1e-6)
    unknown = torch.cat([scores, torch.tensor([torch.nan])])
    total = CosineLoss()(None, torch.cat([table, table[:1]]), unknown).sum
    assert CosineLoss().count(unknown) == COUNT
    assert total.item() / COUNT == pytest.approx(wanted.item(), abs=1e-6)


@pytest.mark.parametrize(("distance", "margin"), [("euclidean", 5.0), ("manhattan", 2.0), ("cosine", 0.5)])
def test_triplet_is_theirs(distance: str, margin: float) -> None:
    losses = theirs()
    metric = getattr(losses.TripletDistanceMetric, distance.upper())
    table = drawn(COUNT, 3, WIDTH)
    peer = losses.TripletLoss(None, metric, margin)
    wanted = peer.compute_loss_from_embeddings(list(table.unbind(1)), None)
    loss = triplet_errors(table, DISTANCE_FUNCTIONS[distance], margin)
    assert loss.shape == (COUNT, 1)
    assert loss.mean().item() == pytest.approx(wanted.item(), abs=1e-6)


def test_triplets_are_counted_by_negatives() -> None:
    table, numbers = drawn(3, 4, WIDTH), names(4, 3)
    numbers[1, 3] = IGNORED
    numbers[2] = IGNORED
    question = TripletLoss(1.0)
    errors = triplet_errors(table, DISTANCE_FUNCTIONS["euclidean"], 1.0)
    assert question.count(numbers) == 3
    loss = question(None, table, numbers).sum
    assert loss.item() == pytest.approx((errors[0].sum() + errors[1, 0]).item(), rel=1e-6)


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("scale", [20.0, 3.0])
def test_ranking_is_theirs(negatives: int, symmetric: bool, scale: float) -> None:
    losses = theirs()
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"} if symmetric else {}
    table = drawn(COUNT, 2 + negatives, WIDTH)
    columns = list(table.unbind(1))
    wanted = losses.MultipleNegativesRankingLoss(None, scale=scale, **both).compute_loss_from_embeddings(columns, None)
    loss = ranking_errors(table, names(2 + negatives), scale, symmetric)
    assert loss.mean().item() == pytest.approx(wanted.item(), rel=1e-5, abs=1e-6)
    peer = losses.CachedMultipleNegativesRankingLoss(nn.Sequential(Columns()), scale=scale, mini_batch_size=3, **both)
    cached = peer.calculate_loss([list(column.split(3)) for column in columns])
    assert loss.mean().item() == pytest.approx(cached.item(), rel=1e-5, abs=1e-6)


def test_equal_texts_are_no_negatives() -> None:
    """0 and 1 share a positive; 2 and 3 an anchor; the negative of 4 is the anchor of 5; 6 has no negative."""
    numbers = names(3)
    numbers[1, 1] = numbers[0, 1]
    numbers[3, 0] = numbers[2, 0]
    numbers[4, 2] = numbers[5, 0]
    numbers[6, 2] = IGNORED
    table = drawn(COUNT, 3, WIDTH)
    unit = torch.nn.functional.normalize(table, dim=-1)
    out = {(0, 1, 1), (1, 0, 1), (2, 3, 1), (3, 2, 1), (5, 4, 2)} | {(row, 6, 2) for row in range(COUNT)}
    for symmetric in (False, True):
        loss = ranking_errors(table, numbers, 20.0, symmetric)
        for row in range(COUNT):
            right = (20 * unit[row, 0] @ unit[row, 1]).exp()
            rest = [
                (20 * unit[row, 0] @ unit[other, text]).exp()
                for other in range(COUNT)
                for text in (1, 2)
                if (row, other, text) not in out and (other, text) != (row, 1)
            ]
            wanted = -(right / (right + sum(rest))).log()
            if symmetric:
                anchors = [o for o in range(COUNT) if o != row and (o, row, 1) not in out]
                back = sum((20 * unit[o, 0] @ unit[row, 1]).exp() for o in anchors)
                wanted = (wanted - (right / (right + back)).log()) / 2
            assert loss[row].item() == pytest.approx(wanted.item(), abs=1e-5), (row, symmetric)


def test_rows_nobody_asks_about_do_not_compete() -> None:
    table, numbers = drawn(COUNT, 3, WIDTH), names(3)
    wanted = RankingLoss(symmetric=True)(None, table, numbers).sum
    more = torch.cat([table, 9 * drawn(2, 3, WIDTH, seed=3)])
    filled = torch.cat([numbers, torch.full((2, 3), IGNORED)])
    assert RankingLoss().count(filled) == COUNT
    loss = RankingLoss(symmetric=True)(None, more, filled).sum
    assert loss.item() == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize(
    "question",
    [
        SoftmaxLoss(),
        CosineLoss(),
        *(TripletLoss(3.0, name) for name in DISTANCE_FUNCTIONS),
        RankingLoss(),
        RankingLoss(symmetric=True),
    ],
    ids=lambda question: f"{type(question).__name__} {vars(question)}",
)
def test_slopes_are_those_of_finite_differences(question: EmbeddingLoss) -> None:
    texts = 2 if isinstance(question, SoftmaxLoss | CosineLoss) else 3
    table = drawn(COUNT, texts, WIDTH, dtype=torch.float64).requires_grad_()
    answers = names(texts)
    answers[1, 1] = answers[0, 1]
    if isinstance(question, SoftmaxLoss):
        answers = torch.tensor([0, 1, 2, IGNORED, 1, 0, 0])
    elif isinstance(question, CosineLoss):
        answers = drawn(COUNT, seed=1, dtype=torch.float64).sigmoid()
        answers[2] = torch.nan
    head = PairClassifier(WIDTH, 3, parse_concat("u,v,|u-v|,u*v")).double()
    network = SimpleNamespace(heads={"compare": head})

    def total(arguments: Tensor) -> Tensor:
        if isinstance(question, SoftmaxLoss):  # which is summed in fp32 else
            return nn.functional.cross_entropy(
                head(arguments[:, 0], arguments[:, 1]), answers, ignore_index=IGNORED, reduction="sum"
            )
        return question(network, arguments, answers).sum

    assert torch.autograd.gradcheck(total, (table,))


def test_equal_vectors_have_finite_slopes() -> None:
    table = torch.ones(2, 3, WIDTH, requires_grad=True)
    for question in (*(TripletLoss(3.0, name) for name in DISTANCE_FUNCTIONS), RankingLoss()):
        table.grad = None
        question(None, table, names(3, 2)).sum.backward()
        assert table.grad is not None
        assert table.grad.isfinite().all(), question


@pytest.mark.parametrize("dimensions", [(WIDTH, 6, 2), (5,), (3, WIDTH)])
@pytest.mark.parametrize("symmetric", [False, True])
def test_truncated_vectors_are_theirs(dimensions: tuple[int, ...], symmetric: bool) -> None:
    losses = theirs()
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"} if symmetric else {}
    table = drawn(COUNT, 3, WIDTH).requires_grad_()
    model = Columns()
    model.get_embedding_dimension = lambda: WIDTH
    peer = losses.MatryoshkaLoss(model, losses.MultipleNegativesRankingLoss(model, scale=20.0, **both), dimensions)
    wanted = peer([{"sentence_embedding": column} for column in table.unbind(1)], None)
    (slope,) = torch.autograd.grad(wanted, table)
    objective = embedding_objective(RankingLoss(symmetric=symmetric), dimensions)
    loss = objective.loss(None, table, names(3))
    assert objective.loss.count(names(3)) == COUNT
    assert loss.sum.item() / COUNT == pytest.approx(wanted.item(), rel=1e-5)
    (ours,) = torch.autograd.grad(loss.sum / COUNT, table)
    assert torch.allclose(ours, slope, atol=1e-5)


def test_without_dimensions_nothing_changes() -> None:
    loss = RankingLoss()
    assert embedding_objective(loss).loss is loss


def test_cosent_and_margin_are_those_of_sentence_transformers() -> None:
    from sentence_transformers import util

    table = drawn(COUNT, 3, WIDTH).requires_grad_()
    scores = torch.rand(COUNT, generator=torch.Generator().manual_seed(1))
    columns = [{"sentence_embedding": table[:, n]} for n in range(3)]
    wanted = theirs().CoSENTLoss(Columns())(columns[:2], scores)
    loss = CosentLoss()(None, table, scores)
    assert loss.sum.item() == pytest.approx(wanted.item(), rel=1e-5)
    assert CosentLoss().count(scores) == 1
    (ours,), (slope,) = (torch.autograd.grad(error, table) for error in (loss.sum, wanted))
    assert torch.allclose(ours, slope, atol=1e-5)
    wanted = theirs().MarginMSELoss(Columns(), similarity_fct=util.pairwise_cos_sim)(columns, 2 * scores - 1)
    loss = MarginLoss()(None, table, scores)
    assert loss.sum.item() / MarginLoss().count(scores) == pytest.approx(wanted.item(), rel=1e-5)
    with pytest.raises(UserError, match="needs three texts"):
        MarginLoss()(None, table[:, :2], scores)


def test_simcse_is_its_definition_at_a_temperature_of_one_twentieth() -> None:
    table = drawn(COUNT, 2, WIDTH, dtype=torch.float64)
    cosines = torch.cosine_similarity(table[:, None, 0], table[None, :, 1], dim=-1)
    exponents = torch.exp(cosines / 0.05)
    wanted = -torch.log(exponents.diagonal() / exponents.sum(1))
    same_texts = torch.arange(COUNT)[:, None].expand(COUNT, 2)
    loss = SimcseLoss()(None, table, same_texts)
    assert loss.sum.item() == pytest.approx(wanted.sum().item())
    assert SimcseLoss().count(same_texts) == COUNT


def test_losses_describe_themselves() -> None:
    assert tuple(DISTANCE_FUNCTIONS) == embedding_losses.DISTANCES
    assert {embedding_losses.default_loss(kind) for kind in embedding_losses.ROWS} < set(embedding_losses.LOSSES)
    for name, loss in embedding_losses.LOSSES.items():
        assert f"{name}: {loss.label}" in embedding_losses.loss_help()
        assert name in embedding_losses.loss_choices().split("|")
        assert (loss.__doc__ or "").strip()
    assert "margin=5 (" in embedding_losses.loss_settings_help()
    assert embedding_losses.loss_defaults_help("batch") == "16 (ranking: 64, simcse: 64)"


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"name": "", "reads": ("pair",)}, "needs a `name`"),
        ({"name": "cross", "reads": ("pair",)}, "needs a `name`"),
        ({"name": "ranking", "reads": ("pair",)}, "'ranking' already"),
        ({"name": "new", "reads": ("pairs",)}, "did you mean 'pair'"),
        ({"name": "new", "reads": ()}, "kind of rows"),
    ],
)
def test_a_loss_must_say_what_it_is(attributes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        embedding_losses.register_loss(type("Mine", (EmbeddingLoss,), attributes))
    assert "new" not in embedding_losses.LOSSES
