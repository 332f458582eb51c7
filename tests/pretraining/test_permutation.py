"""XLNet's objective in a run: what is refused, what is learned, and that a run ends in the same bytes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertree.batch import PretrainingLabels
from bertree.data.store import Store
from bertree.errors import BertreeWarning, UserError
from bertree.inference.load import load
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build as assembly
from bertree.pretraining import recipe
from bertree.pretraining.held_out import held_out_lanes
from bertree.pretraining.pretrain import pretrain
from bertree.train.device_setup import DeviceSetup
from bertree.train.feed import TrainingSchedule
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support.batches import axes_of
from tests.support.corpora import FIRST, SPECIAL
from tests.support.learnable import one_thread
from tests.support.memory_store import memory_store
from tests.support.shared import suite_has

pytestmark = pytest.mark.train

KINDS = 4  # of words on the left, and on the right
MIDDLE = FIRST + 2 * KINDS  # first of the words between


def small(*changes: str) -> list[str]:
    """What makes a run of two steps of a tiny recipe."""
    phase = ("phases.0.steps=2", "phases.0.max_length=16", "phases.0.batch_tokens=64")
    return ["run.device=cpu", "schedule.warmup=1", "run.eval_tokens=256", "data.held_out_share=0.1", *phase, *changes]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("xlnet-tiny", ["data.partial=0"], r"data.partial: .*at least 1"),
        ("xlnet-tiny", ["data.spans=0"], r"data.spans: .*at least 1"),
        (
            "xlnet-tiny",
            ["data.format=full-sentences"],
            "data.backward: only lanes run backwards; set data.format=lanes",
        ),
        ("transformer-xl-tiny", ["data.backward=true"], "data.backward: true: the next token is predicted forwards"),
        ("transformer-xl-tiny", ["data.format=lanes+pairs"], r"data.format: lanes\+pairs: the next token is predicted"),
        ("xlnet-tiny", ["data.format=lanes+pairs", "data.reuse=0"], "data.reuse: 0.0: give a share of more than 0"),
        ("xlnet-tiny", ["objective.nsp=1"], r"objective.nsp: needs a format .* for example lanes\+pairs, not lanes"),
        ("xlnet-tiny", ["data.format=lanes+pair"], r"data.format: lanes\+pair: unknown, did you mean 'lanes\+pairs'"),
    ],
)
def test_settings_that_do_not_fit_are_refused(name: str, changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe.load(name, small(*changes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("transformer-xl-tiny", ["data.masking=permutation"], "permutation: with causal attention a token sees those"),
        ("transformer-xl-tiny", ["data.masking=token"], "token: with causal attention lanes predict the next token"),
        (
            "bert-base-tiny",
            ["data.format=full-sentences", "objective.nsp=0", "data.masking=permutation"],
            "without being seen, by a second stream; set model.query_stream=true",
        ),
        ("xlnet-tiny", ["data.masking=next", "data.backward=false"], "next: with full attention a token sees the one"),
        ("xlnet-tiny", ["data.format=lanes+pairs", "model.segments=2"], "two texts and .CLS.; set model.segments=3"),
        ("xlnet-tiny", ["phases.0.batch_tokens=6400000"], "too few for 400000 lanes of more than 16; give fewer lanes"),
        ("xlnet-tiny", ["data.masking=permutation+static"], r"'\+static' has no effect in lanes"),
    ],
)
def test_models_and_stores_that_do_not_fit_are_refused(
    token_store: Path, tmp_path: Path, name: str, changes: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        pretrain(name, store=token_store, out=tmp_path / "out", overrides=small(*changes))


def between(count: int, seed: int) -> Store:
    """Triples of words. The left and the right one are random, and both together tell the one between: to a model that
    has read only one side, four words are as likely."""
    draw = np.random.default_rng(seed)
    documents = []
    for _ in range(count):
        left, right = draw.integers(0, KINDS, (2, 40))
        triples = np.stack([FIRST + left, MIDDLE + KINDS * left + right, FIRST + KINDS + right], 1)
        documents.append([triples.ravel().tolist()])
    return memory_store(documents, vocab_size=MIDDLE + KINDS**2, special=SPECIAL)


def test_learns_what_only_both_sides_can_tell() -> None:
    axes = ("layers=1", "width=32", "heads=2", "ffn_width=64", "memory=8", "init_std=0.1")
    phase = ("phases.0.steps=120", "phases.0.max_length=24", "phases.0.batch_tokens=768")
    changes = ("run.device=cpu", "data.spans=1", "data.partial=4", "schedule.warmup=10", "optim.lr=1e-2")
    settings = recipe.load("xlnet-tiny", [*(f"model.{axis}" for axis in axes), *phase, *changes])
    train, held = between(300, 0), between(10, 1)
    a = preset(settings.model["preset"]).architecture.with_values(settings.axes | {"vocab_size": train.vocab_size})
    torch.manual_seed(0)
    network = build(a, {"mask": 0})
    schedule = TrainingSchedule(settings.phases, settings.schedule, settings.optim.lr)
    feed = assembly.build_feed(settings, schedule, train, DeviceSetup.from_settings(settings.run), a)
    objective = pretraining_objective(**settings.objective)
    with one_thread():
        Loop(network, objective, build_optimizer(network, settings.optim), clip=settings.optim.clip).run(
            feed.steps_from(0)
        )
        losses, state = [], None
        network.eval()
        for batch in held_out_lanes(settings, held, settings.phases[0]).one_epoch():
            with torch.no_grad():
                output = network.encode(batch, state)
                masked, targets = PretrainingLabels.of(batch).predicted
                logits = network.mask_logits(output.hidden, masked)
            state, middle = output.state, targets >= MIDDLE
            losses.append(torch.nn.functional.cross_entropy(logits[middle], targets[middle], reduction="none"))
    values = torch.cat(losses)
    assert len(values) > 50
    assert float(values.mean()) < 0.5 * np.log(KINDS), "a model that reads one way cannot be below log 4"


FORMATS = {
    "lanes": [],
    "lanes of documents": ["data.format=lanes+documents"],
    "lanes of pairs": ["data.format=lanes+pairs", "objective.nsp=1"],
    "no memory": ["data.format=full-sentences", "data.backward=false", "model.memory=0"],
    "pairs": ["data.format=segment-pair+nsp", "data.backward=false", "model.memory=0", "objective.nsp=1"],
    "masks": ["data.masking=word", "model.query_stream=false"],
    "forwards": ["data.backward=false", "data.spans=1"],
}


@pytest.mark.parametrize("name", suite_has(list(FORMATS)[::3], FORMATS))
def test_runs(token_store: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    changes = small(*FORMATS[name], "run.micro_tokens=32")
    assert pretrain("xlnet-tiny", store=token_store, out=out, overrides=changes).complete
    assert axes_of(load(out / "model")).query_stream == (name != "masks")
    page = (out / "report.html").read_text()
    assert ("held-out MLM loss" if name == "masks" else "held-out PLM loss") in page


def test_a_query_stream_that_is_not_trained_is_said(token_store: Path, tmp_path: Path) -> None:
    with pytest.warns(BertreeWarning, match="model.query_stream: data.masking=word does not train the stream"):
        pretrain("xlnet-tiny", store=token_store, out=tmp_path / "out", overrides=small("data.masking=word"))
