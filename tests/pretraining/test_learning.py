"""Learning, checked: golden losses of the tiny recipes, context against counting, and pairs that carry a signal.

The golden losses say that a refactor changes no digit beyond rounding. `python -m tests.pretraining.test_learning`
writes them anew when a change is meant. On real text, `benchmarks/learning.py` runs the recipes whole.
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.common import CORPUS
from benchmarks.learning import baselines
from bertree.data.store import Store
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build as assembly
from bertree.pretraining import recipe
from bertree.pretraining.held_out import held_out_stream
from bertree.pretraining.recipe import Recipe
from bertree.train.device_setup import DeviceSetup
from bertree.train.feed import TrainingSchedule
from bertree.train.held_out import evaluate_held_out
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support.memory_store import memory_store
from tests.support.shared import suite_has

pytestmark = pytest.mark.train

GOLDEN = Path(__file__).parent.parent / "golden" / "tiny.json"
STEPS = 20
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
TINY = ("bert-base-tiny", "roberta-base-tiny", "albert-base-tiny")


def learn(arguments: Recipe, train: Store, steps: int) -> tuple[Loop, list[float]]:
    """The first steps of a recipe, and the loss of each."""
    contents = assembly.build_model(arguments, train)
    schedule = TrainingSchedule(arguments.phases, arguments.schedule, arguments.optim.lr)
    feed = assembly.build_feed(
        arguments, schedule, train, DeviceSetup.from_settings(arguments.run), contents.architecture
    )
    loop = Loop(
        contents.network,
        pretraining_objective(**arguments.objective),
        build_optimizer(contents.network, arguments.optim),
        clip=arguments.optim.clip,
        seed=arguments.run.seed,
    )
    return loop, [loop.step(feed[number]).loss for number in range(steps)]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tenth of the books, with a small vocabulary."""
    folder = tmp_path_factory.mktemp("books")
    text = CORPUS.read_text(encoding="utf-8")
    (folder / "part.txt").write_text(text[: len(text) // 10], encoding="utf-8")
    return folder


def golden_losses(folder: Path) -> dict[str, list[float]]:
    from bertree.data.prepare import prepare, train_tokenizer

    train_tokenizer(folder / "part.txt", folder / "tokenizer", vocab_size=1000)
    prepare(folder / "part.txt", folder / "tokenizer", folder / "store", workers=1)
    losses = {}
    for name in TINY:
        settings = recipe.load(name, [f"data.store={json.dumps(str(folder / 'store'))}", "run.device=cpu"])
        train, _ = assembly.open_stores(settings.data)
        losses[name] = learn(settings, train, STEPS)[1]
    return losses


def test_golden_losses(books: Path) -> None:
    expected = json.loads(GOLDEN.read_text())
    for name, losses in golden_losses(books).items():
        assert losses == pytest.approx(expected[name], abs=2e-4), name


def topical(count: int, seed: int) -> list[list[list[int]]]:
    """Documents about one of two topics, each with six words of its own: the first half uses other words than the
    second."""
    draw = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        topic = 10 + 6 * int(draw.integers(2))
        documents.append([draw.integers(topic + half, topic + half + 3, 6).tolist() for half in (0, 3) for _ in "123"])
    return documents


def repeated(count: int, seed: int) -> list[list[list[int]]]:
    """Documents of three words each, in any order: what stands here is told by the context, not by one neighbour."""
    draw = np.random.default_rng(seed)
    return [[draw.choice(draw.choice(30, 3, replace=False) + 10, 30).tolist()] for _ in range(count)]


def tried(family: str, documents: Callable[[int, int], list[list[list[int]]]], *changes: str) -> dict[str, float]:
    """Held-out figures of a tiny recipe on made-up documents, and what counting would give."""
    train, held = (
        memory_store(documents(count, seed), vocab_size=40, special=SPECIAL) for count, seed in ((1500, 0), (200, 1))
    )
    always = (
        "run.device=cpu",
        "phases.0.steps=80",
        "phases.0.batch_tokens=512",
        "phases.0.mask_rate=0.15",
        "schedule.warmup=8",
    )
    settings = recipe.load(family, [*always, *changes])
    axes = {key: value for key, value in settings.model.items() if key != "preset"}
    a = preset(settings.model["preset"]).architecture.with_values(axes | {"vocab_size": 40})
    torch.manual_seed(0)
    network = build(
        a, {"mask": 0, "pair": 0} if settings.objective["nsp"] or settings.objective["sop"] else {"mask": 0}
    )
    schedule = TrainingSchedule(settings.phases, settings.schedule, settings.optim.lr)
    feed = assembly.build_feed(settings, schedule, train, DeviceSetup.from_settings(settings.run), a)
    objective = pretraining_objective(**settings.objective)
    loop = Loop(network, objective, build_optimizer(network, settings.optim), clip=1.0)
    loop.run(feed.steps_from(0))
    stream = held_out_stream(settings, held, settings.phases[0])
    unigram, bigram = baselines(train, stream)
    return evaluate_held_out(network, objective, stream, 10**6, loop.autocast) | {"unigram": unigram, "bigram": bigram}


def test_context_beats_counting() -> None:
    losses = tried("bert-base-tiny", repeated, "data.format=full-sentences", "objective.nsp=0", "phases.0.steps=65")
    assert losses["mlm"] < losses["bigram"] - 0.4
    assert losses["mlm"] < losses["unigram"] - 0.8


def test_the_next_token_is_learned_from_what_stands_before_it() -> None:
    losses = tried("bert-base-ltr-tiny", repeated, "data.format=doc-sentences", "phases.0.steps=65")
    # Once its three words have been seen a document goes on with one of them; those that begin it are anyone's guess.
    assert losses["mlm"] < 2.3
    assert losses["perplexity"] < 10


PAIRS = [
    ("bert-base-tiny", "segment-pair+nsp", "nsp", ["phases.0.steps=50"]),
    ("albert-base-tiny", "sentence-pair+sop", "sop", ["model.width=64", "model.heads=2", "model.ffn_width=256"]),
]


@pytest.mark.parametrize(("family", "format", "question", "changes"), suite_has(PAIRS[:1], PAIRS))
def test_pairs_are_learned_where_the_text_carries_the_signal(
    family: str, format: str, question: str, changes: list[str]
) -> None:
    assert tried(family, topical, f"data.format={format}", *changes)[f"{question}_accuracy"] > 0.63


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        text = CORPUS.read_text(encoding="utf-8")
        (Path(scratch) / "part.txt").write_text(text[: len(text) // 10], encoding="utf-8")
        GOLDEN.parent.mkdir(exist_ok=True)
        rounded = {name: [round(x, 6) for x in losses] for name, losses in golden_losses(Path(scratch)).items()}
        GOLDEN.write_text(json.dumps(rounded, indent=1) + "\n")
