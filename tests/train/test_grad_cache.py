"""A step of in-batch negatives is one question, however many pieces it is computed in; filled up, it is the same."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.finetuning.feed import ShapeBuckets, UnitFeed
from bertree.model.heads import PairClassifier
from bertree.model.network import Network, build
from bertree.model.pooling import PoolingConfig
from bertree.objectives.embedding import EmbeddingObjective, embedding_objective
from bertree.objectives.embedding_losses import LOSSES, RankingLoss
from bertree.tasks.batches import collate
from bertree.tasks.similarity import SimilarityTask
from bertree.tasks.similarity_files import SentenceExample
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Encoded, Tokenizer
from bertree.train.device_setup import set_deterministic
from bertree.train.feed import TrainingSchedule
from bertree.train.loop import GradientMethod, Loop, plain_gradients
from bertree.train.optimizer import build_optimizer
from bertree.train.strategies import CudaGraphRecorder, cached_gradients
from tests.support.batches import VOCAB, run_backward, tiny
from tests.support.learnable import one_thread
from tests.support.shared import suite_has

SIZE = 24


def network(pooling: str = "mean", seed: int = 0, **axes: object) -> Network:
    torch.manual_seed(seed)
    network = build(tiny(init_std=0.2, **axes), {}, None, PoolingConfig(pooling))
    assert network.vector is not None
    network.heads["compare"] = PairClassifier(network.vector.width, 3, ("u", "v", "|u-v|"), 0.2)
    return network


def units(loss: str, count: int = SIZE, seed: int = 0) -> list[Unit]:
    """Of different lengths; some texts come twice, and of negatives there are none, one or two."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    texts = [
        Encoded([2, *torch.randint(5, VOCAB, (number(2, 18),), generator=draw).tolist(), 3], None, 0)
        for _ in range(2 * count)
    ]
    drawn = []
    for row in range(count):
        fewest = 3 if loss == "triplet" else 2
        size = 2 if loss in ("softmax", "cosine") else number(fewest, 5)
        chosen = [number(0, len(texts)) for _ in range(size)]
        answer: object = tuple(chosen + [-100] * (4 - size))
        if loss == "softmax":
            answer = row % 3
        elif loss == "cosine":
            answer = row / count
        drawn.append(Unit(row, tuple(texts[place] for place in chosen), answer=answer))
    return drawn


def feed(some: Sequence[Unit], limit: int = 0, shapes: ShapeBuckets | None = None) -> UnitFeed:
    schedule = TrainingSchedule([Phase(steps=6)], ScheduleSettings(warmup=2), 1e-3)
    return UnitFeed(schedule, some, SIZE, "vector", regression=False, seed=1, shapes=shapes, limit=limit)


def gradients(loop: Loop, step: int, works: UnitFeed) -> tuple[Tensor, list[Tensor], dict[str, int]]:
    sums, counts = run_backward(loop, works[step])
    gradients = [parameter.grad.clone() for _, parameter in loop.trainable if parameter.grad is not None]
    loop.optimizer.zero_grad()
    return sums["ranking"], gradients, counts


def loop_of(method: GradientMethod, **axes: object) -> Loop:
    net = network(**axes)
    return Loop(
        net,
        embedding_objective(RankingLoss(symmetric=True)),
        build_optimizer(net, OptimSettings(lr=1e-3)),
        clip=1.0,
        seed=3,
        gradients=method,
    )


@pytest.mark.parametrize(("limit", "count"), [(900, 2), (500, 3), (1, SIZE)])
def test_pieces_change_nothing(limit: int, count: int) -> None:
    some = units("ranking")
    with one_thread():
        whole = gradients(loop_of(plain_gradients), 0, feed(some))
        parts = gradients(loop_of(cached_gradients), 0, feed(some, limit))
    assert len(feed(some, limit)[0].batches) == count
    assert whole[2] == parts[2] == {"ranking": SIZE}
    assert parts[0].item() == pytest.approx(whole[0].item(), rel=1e-5)
    for left, right in zip(whole[1], parts[1], strict=True):
        assert torch.allclose(left, right, rtol=1e-4, atol=1e-6 * float(left.abs().max() + 1))


def test_pieces_forgotten_one_by_one_would_change_it() -> None:
    some = units("ranking")
    whole, apart = (
        gradients(loop_of(plain_gradients), 0, feed(some)),
        gradients(loop_of(plain_gradients), 0, feed(some, 400)),
    )
    assert apart[0].item() < 0.8 * whole[0].item(), "fewer negatives are easier"


def test_dropout_is_the_same_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text's vector must be the same when its slope is found and when it is used."""
    seen: list[list[Tensor]] = [[], []]

    part = EmbeddingObjective.part

    def watched(self: EmbeddingObjective, net: Network, batch: Batch) -> Tensor:
        output = part(self, net, batch)
        seen[1 if torch.is_grad_enabled() else 0].append(output.detach().clone())
        return output

    monkeypatch.setattr(EmbeddingObjective, "part", watched)
    loop = loop_of(cached_gradients, dropout=0.3, attention_dropout=0.0)
    loop.step(feed(units("ranking"), 400)[0])
    assert len(seen[0]) == len(seen[1]) == 4
    assert all(map(torch.equal, *seen))
    again = loop_of(cached_gradients, dropout=0.3, attention_dropout=0.0)
    seen[0].clear()
    again.step(feed(units("ranking"), 400)[1])
    assert not torch.equal(seen[0][0], seen[1][0]), "another step, another dropout"


def test_gradients_are_those_of_their_cached_loss(tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    """From texts to the slope of every weight, beside sentence-transformers on the same folder."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    from bertree.inference.load import load
    from tests.inference.test_vectors import tiny as small

    model = small(tokenizers["wordpiece"], vector=PoolingConfig("mean"))
    model.save(tmp_path / "model")
    rows = [
        (f"A man number {n} is walking.", f"Someone {n} walks on the road.", f"{n} cats sleep in the sun.")
        for n in range(7)
    ]
    peer = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    peer.eval()
    columns = [peer.preprocess([row[place] for row in rows]) for place in range(3)]
    loss = CachedMultipleNegativesRankingLoss(peer, mini_batch_size=2)(columns, None)
    loss.backward()
    theirs = dict(peer[0].auto_model.named_parameters())["embeddings.word_embeddings.weight"].grad

    start = load(tmp_path / "model")
    net = start.network
    task = SimilarityTask("sentence-ranking", loss="ranking")
    some, _ = task.units([SentenceExample(row) for row in rows], start.required_tokenizer, 64)
    optimizer = build_optimizer(net, OptimSettings(lr=1e-3))
    loop = Loop(net, embedding_objective(RankingLoss()), optimizer, seed=0, gradients=cached_gradients)
    loop.network.train = lambda: None  # no dropout, as there
    works = UnitFeed(TrainingSchedule([Phase(steps=1)], ScheduleSettings(), 1e-3), some, 7, "vector", limit=100)
    sums, counts = run_backward(loop, works[0])
    assert sums["ranking"].item() / counts["ranking"] == pytest.approx(loss.item(), rel=1e-5)
    ours = net.encoder.embeddings.tokens.weight.grad
    assert ours is not None
    assert theirs is not None
    assert float(theirs.abs().max()) > 1e-4
    assert float((ours - theirs).abs().max()) < 1e-6 + 1e-4 * float(theirs.abs().max())


@pytest.mark.parametrize("pooling", suite_has(["cls", "mean+max"], ["mean", "cls", "max", "mean+max"]))
@pytest.mark.parametrize("loss", ["softmax", "cosine", "triplet", "ranking"])
def test_filling_a_batch_up_changes_nothing(loss: str, pooling: str) -> None:
    """What gives batches a few shapes, so that steps can be replayed on a GPU."""
    some, regression = units(loss, 9, seed=2), loss == "cosine"
    plain = collate(some, "vector", regression)
    filled = ShapeBuckets("vector", SIZE, 2 if loss in ("softmax", "cosine") else 4)(plain)
    assert filled.ids.numel() > plain.ids.numel()
    objective: EmbeddingObjective = embedding_objective(LOSSES[loss]())
    assert objective.counts(plain) == objective.counts(filled)
    losses = []
    for batch in (plain, filled):
        net = network(pooling)
        total = objective(net, batch).losses[loss].sum
        total.backward()
        losses.append((total.item(), [p.grad for p in net.parameters() if p.grad is not None]))
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-5)
    assert len(losses[0][1]) == len(losses[1][1]) > 10
    for left, right in zip(losses[0][1], losses[1][1], strict=True):
        assert torch.allclose(left, right, rtol=1e-3, atol=1e-5 * float(left.abs().max() + 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("loss", ["softmax", "cosine", "triplet", "ranking"])
def test_replayed_on_a_gpu_it_is_the_same_bytes(loss: str, pooling: str, half: bool) -> None:
    set_deterministic(True)
    some, size = units(loss, 60), 8
    schedule = TrainingSchedule([Phase(steps=20)], ScheduleSettings(warmup=5), 1e-3)
    shapes = ShapeBuckets("vector", size, 2 if loss in ("softmax", "cosine") else 4)
    feed = UnitFeed(schedule, some, size, "vector", regression=loss == "cosine", shapes=shapes)
    rates = [torch.tensor(update.lr).item() for update in schedule.updates]  # which fp32 can hold
    steps = [replace(feed[n], update=replace(feed[n].update, lr=rate)) for n, rate in enumerate(rates)]
    losses: list[list[float]] = [[], []]
    ends = []
    for recorder, seen in zip((None, CudaGraphRecorder), losses, strict=True):
        net = network(pooling, dropout=0.1).to("cuda")
        loop = Loop(
            net,
            embedding_objective(LOSSES[loss]()),
            build_optimizer(net, OptimSettings(lr=1e-3), capturable=True),
            clip=1.0,
            seed=3,
            bf16=half,
            recorder=recorder,
        )
        loop.run(steps, [lambda result, seen=seen: seen.append(result.loss)])
        ends.append([parameter.detach().cpu() for parameter in net.parameters()])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) > 10
    assert all(map(torch.equal, *ends))
