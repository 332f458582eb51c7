"""A head that is solved on vectors: it is that of scikit-learn, and it is saved, predicts and goes on as any other."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bertree
from bertree.finetuning.linear_head import FOLDS, LinearHead, fit_class_means, fit_classifier, fit_regression
from tests.support import learnable
from tests.support.command import Command
from tests.support.learnable import SETTINGS, Trained

linear_model = pytest.importorskip("sklearn.linear_model")
NearestCentroid = pytest.importorskip("sklearn.neighbors").NearestCentroid


def clusters(count: int, width: int, classes: int, unit: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Vectors around a center for each class, their numbers on very different scales; one of them is constant."""
    draw = np.random.default_rng(0)
    answers = draw.integers(0, classes, count)
    vectors = draw.normal(size=(classes, width))[answers] + 1.5 * draw.normal(size=(count, width))
    if unit:
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    else:
        vectors = vectors * 10.0 ** draw.uniform(-2, 2, width) + draw.normal(size=width)
        vectors[:, 3] = 7.0
    return torch.tensor(vectors, dtype=torch.float32), torch.tensor(answers)


def outputs(head: LinearHead, vectors: torch.Tensor) -> np.ndarray[Any, Any]:
    return (vectors.double() @ head.weight.T + head.bias).numpy()


@pytest.mark.parametrize("unit", [True, False])
def test_the_head_is_scikit_learns(unit: bool) -> None:
    vectors, classes = clusters(200, 16, 3, unit)
    x = vectors.double().numpy()
    deviation = x.std(0) if not unit else np.sqrt(((x - x.mean(0)) ** 2).mean())
    scaled = (x - x.mean(0)) / np.where(deviation > 1e-6, deviation, 1.0)
    for c in (0.01, 1.0):
        peer = linear_model.LogisticRegression(C=c, tol=1e-8, max_iter=5000).fit(scaled, classes)
        head = fit_classifier(vectors, classes, 3, c)
        assert np.allclose(outputs(head, vectors), peer.decision_function(scaled), atol=1e-3)
        assert head.trials == ()
    scores = torch.tensor(x @ np.linspace(-1, 1, 16) / np.abs(x).max() + 3.0)
    peer = linear_model.Ridge(alpha=10.0).fit(scaled, scores)
    assert np.allclose(outputs(fit_regression(vectors, scores, 0.1), vectors)[:, 0], peer.predict(scaled), atol=1e-4)


def test_the_strength_is_chosen_on_held_out_examples() -> None:
    vectors, classes = clusters(400, 64, 2, unit=True)
    shuffled = classes[torch.randperm(400, generator=torch.manual_seed(0))]
    meaningful, noise = fit_classifier(vectors, classes, 2), fit_classifier(vectors, shuffled, 2)
    assert meaningful.folds == FOLDS
    lowest = min(meaningful.trials, key=lambda trial: trial[1])
    assert meaningful.strength <= lowest[0]
    assert lowest[1] <= dict(meaningful.trials)[meaningful.strength] < meaningful.trials[0][1]
    assert noise.strength < meaningful.strength, "where there is nothing to learn, weights stay small"
    again = fit_classifier(vectors, classes, 2)
    assert torch.equal(again.weight, meaningful.weight)


def test_few_examples_of_unequal_classes_do_not_all_get_the_larger_class() -> None:
    classes = (torch.arange(1040) % 5 < 2).long()  # two of five
    signal = 0.5 * (classes[:, None] - 0.5) * (torch.arange(32) < 8)
    vectors = torch.randn(1040, 32, generator=torch.manual_seed(1)) + signal
    few, others = slice(0, 40), slice(40, None)
    answers = outputs(fit_classifier(vectors[few], classes[few], 2), vectors[others]).argmax(1)
    assert np.mean(answers == classes[others].numpy()) > 0.64  # 0.6: the larger class for all


def test_the_nearest_class_mean_answers() -> None:
    vectors, classes = clusters(40, 16, 3, unit=True)
    rows, peer = vectors.double().numpy(), NearestCentroid().fit(vectors.double().numpy(), classes)
    head = fit_class_means(vectors, classes, 4)  # the last class has no examples
    assert (outputs(head, vectors).argmax(1) == peer.predict(rows)).all()
    unrelated = fit_class_means(vectors, classes[torch.randperm(40, generator=torch.manual_seed(0))], 4)
    shares, guesses = (torch.tensor(outputs(each, vectors)).softmax(1).amax(1).mean() for each in (head, unrelated))
    assert guesses < 0.7 < shares, "how sure an answer is depends on examples that are left out"
    one_each = fit_class_means(vectors[:2], torch.tensor([0, 1]), 2)
    assert (outputs(one_each, vectors[:2]).argmax(1) == [0, 1]).all()


@pytest.fixture(scope="module")
def frozen(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a frozen encoder on a file without a dev split."""
    root = tmp_path_factory.mktemp("frozen")
    data = learnable.write(root / "all.csv", learnable.feelings(120))
    bertree.finetune(
        trained.start, task="classification", data=data, out=root / "out", frozen=True, device="cpu", seed=0
    )
    return root / "out"


def test_a_frozen_encoder_with_its_own_vectors(frozen: Path, trained: Trained) -> None:
    metrics = json.loads((frozen / "metrics.json").read_text())
    before, after = bertree.load(trained.start), bertree.load(frozen / "model")
    texts = [row["text"] for row in learnable.feelings(30)]
    assert np.allclose(before.embed(texts), after.embed(texts), atol=1e-6)
    head: Any = after.network.heads["sequence"]
    logits = before.embed(texts) @ head.out.weight.detach().numpy().T + head.out.bias.detach().numpy()
    predicted = [after.labels[row.argmax()] for row in logits]
    assert [line["predicted"] for line in after.predict(texts)] == predicted
    assert metrics["head"]["width"] == before.dimension
    assert metrics["examples"] == {"train": 108, "dev": 12}
    assert metrics["accuracy"] > 0.6
    page = (frozen / "report.html").read_text()
    assert "The head" in page
    assert "chosen" in page


def test_it_can_be_resumed_and_scored(frozen: Path, command: Command, trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(frozen, out)
    shutil.rmtree(out / "model")
    (out / "seed-0" / "metrics.json").unlink()  # killed before the end
    data = frozen.parent / "all.csv"
    arguments = ("--task", "classification", "--data", data, "--out", out, "--frozen", "device=cpu", "--resume")
    command.well("finetune", trained.start, *arguments)
    assert (out / "model" / "model.safetensors").read_bytes() == (frozen / "model" / "model.safetensors").read_bytes()
    scores = command.well("evaluate", out / "model", "--task", "classification", "--data", data, "--json").json
    assert scores["accuracy"] > 0.6


def test_settings_of_steps_are_noted(trained: Trained, command: Command, tmp_path: Path) -> None:
    pairs = learnable.write(
        tmp_path / "pairs.csv",
        [{"text": row["text"], "pair": "a", "label": len(row["text"])} for row in learnable.feelings(60)],
    )
    arguments = ("--task", "regression", "--data", pairs, "--pair", "pair", "--out", tmp_path / "out", "device=cpu")
    result = command.well("finetune", trained.start, *arguments, "--frozen", "sum-all", "epochs=2", "lr=1e-2")
    assert "epochs, lr: without effect" in result.err
    assert json.loads((tmp_path / "out" / "metrics.json").read_text())["head"]["kind"] == "ridge regression"


def test_few_shot(trained: Trained, command: Command, tmp_path: Path) -> None:
    data = learnable.write(tmp_path / "all.csv", learnable.feelings(200))
    arguments = ("finetune", trained.start, "--task", "classification", "--data", data, *SETTINGS, "--few-shot")
    result = command.well(*arguments, "per_class=8", "epochs=4", "--out", tmp_path / "out")
    assert "16 examples drawn, 20 held out for dev" in result.out
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["examples"] == {"train": 16, "dev": 20}
    assert metrics["head"]["examples"] == 16
    assert metrics["head"]["kind"] == "class means"
    moved = bertree.load(tmp_path / "out" / "model").network.encoder.state_dict()
    start = bertree.load(trained.start).network.encoder.state_dict()
    assert any(not torch.equal(start[name], tensor) for name, tensor in moved.items())
    history = [json.loads(line) for line in (tmp_path / "out" / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["pairs"] for line in history if line["kind"] == "train"]
    assert losses[-1] < losses[0]
    command.well(*arguments, "per_class=8", "epochs=4", "--out", tmp_path / "again")
    first, second = (tmp_path / name / "model" / "model.safetensors" for name in ("out", "again"))
    assert first.read_bytes() == second.read_bytes()


def test_few_shot_with_many_classes_leaves_the_encoder_as_it_is(trained: Trained, tmp_path: Path) -> None:
    rows = [(f"{word} {other}", word) for word in learnable.FILL[:12] for other in learnable.GOOD]
    run = bertree.finetune(trained.start, task="classification", data=rows, out=tmp_path / "out", few_shot=True)
    assert run.metrics["head"]["kind"] == "class means"
    start, same = (bertree.load(each).network.encoder.state_dict() for each in (trained.start, run.folder))
    assert all(torch.equal(start[name], tensor) for name, tensor in same.items())
    assert bertree.evaluate(run.folder, data=rows).metrics["accuracy"] > 0.3  # by chance: 0.08


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--task ner --few-shot", "few-shot: is for classes of texts, and ner has none"),
        ("--task classification --few-shot --frozen", "leave out --frozen and lstm"),
        ("--task classification examples=4 per_class=2", "give one of them"),
        ("--task regression per_class=2", "per_class: regression has no class for each example"),
    ],
)
def test_mistakes(options: str, reason: str, trained: Trained, command: Command, tmp_path: Path) -> None:
    rows = [{"text": f"a {n}", "label": n % 2} for n in range(20)]
    data = learnable.write(tmp_path / "data.csv", rows)
    result = command("finetune", trained.start, "--data", data, "--out", tmp_path / "out", *options.split())
    assert result.code == 2
    assert reason in result.err
