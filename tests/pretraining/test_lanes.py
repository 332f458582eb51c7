"""Left-to-right models in lanes: a memory learns what the segment alone cannot tell, and settings that do not fit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bertree.batch import PretrainingLabels
from bertree.config.sections import Phase
from bertree.data.lane_stream import LaneStream
from bertree.data.prepare import prepare, train_tokenizer
from bertree.data.store import Store
from bertree.errors import BertreeWarning, UserError
from bertree.inference.load import load
from bertree.interop import folder
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build as assembly
from bertree.pretraining import recipe
from bertree.pretraining.held_out import held_out_lanes
from bertree.pretraining.pretrain import pretrain
from bertree.train.device_setup import DeviceSetup
from bertree.train.feed import StreamFeed, TrainingSchedule
from bertree.train.held_out import evaluate_held_out
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support.memory_store import memory_store

pytestmark = pytest.mark.train

SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}
PERIOD, SEGMENT, WORDS = 12, 8, 20


def periodic(count: int, seed: int) -> Store:
    """Documents of twelve words that repeat: what came twelve words ago tells the next, and a segment has eight."""
    draw = np.random.default_rng(seed)
    documents = [[np.tile(draw.integers(5, 5 + WORDS, PERIOD), 20).tolist()] for _ in range(count)]
    return memory_store(documents, vocab_size=5 + WORDS, special=SPECIAL)


def learn(memory: int, steps: int = 120) -> float:
    """Held-out loss of a small Transformer-XL with this memory, on segments shorter than the period."""
    changes = ("run.device=cpu", f"model.memory={memory}", "model.width=32", "model.layers=1", "model.ffn_width=64")
    phase = (f"phases.0.steps={steps}", f"phases.0.max_length={SEGMENT}", "phases.0.batch_tokens=256")
    settings = recipe.load("transformer-xl-tiny", [*changes, *phase, "schedule.warmup=10", "optim.lr=1e-2"])
    train, held = periodic(200, 0), periodic(10, 1)
    a = preset(settings.model["preset"]).architecture.with_values(settings.axes | {"vocab_size": train.vocab_size})
    torch.manual_seed(0)
    network = build(a, {"mask": 0})
    schedule = TrainingSchedule(settings.phases, settings.schedule, settings.optim.lr)
    feed = assembly.build_feed(settings, schedule, train, DeviceSetup.from_settings(settings.run), a)
    objective = pretraining_objective(**settings.objective)
    loop = Loop(network, objective, build_optimizer(network, settings.optim), clip=settings.optim.clip)
    loop.run(feed.steps_from(0))
    assert bool(loop.memories.tensors()) == bool(memory)
    stream = held_out_lanes(settings, held, settings.phases[0])
    assert stream.steps_per_epoch > 10
    return evaluate_held_out(network, objective, stream, 10**6, loop.autocast)["mlm"]


def test_a_memory_learns_what_only_the_segment_before_can_tell() -> None:
    with_memory, without = learn(16), learn(0)
    guess = float(np.log(WORDS))
    assert without > 0.85 * guess, "the segment alone tells next to nothing"
    assert with_memory < 0.5 * guess


def small(name: str, *changes: str) -> list[str]:
    """What makes a run of two steps of a tiny recipe."""
    phase = ("phases.0.steps=2", "phases.0.max_length=16", "phases.0.batch_tokens=64")
    return ["run.device=cpu", "schedule.warmup=1", "run.eval_tokens=256", "data.held_out_share=0.1", *phase, *changes]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("transformer-xl-tiny", ["phases.0.batch_tokens=70"], "70 must be a multiple of max_length 16"),
        ("distilbert-tiny", ["data.format=lanes", "data.masking=next"], "a student does not read in lanes; set stream"),
    ],
)
def test_settings_that_do_not_fit_lanes_are_refused(name: str, changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe.load(name, small(name, *changes))


def test_a_store_too_small_for_its_lanes_is_refused(token_store: Path, tmp_path: Path) -> None:
    changes = small("transformer-xl-tiny", "phases.0.batch_tokens=6400000")
    with pytest.raises(UserError, match="too few for 400000 lanes of more than 16; give fewer lanes"):
        pretrain("transformer-xl-tiny", store=token_store, out=tmp_path / "out", overrides=changes)


def test_too_little_held_out_text_is_refused(token_store: Path, tmp_path: Path) -> None:
    changes = small("transformer-xl-tiny", "data.held_out_share=0.0001", "phases.0.max_length=4000")
    changes += ["phases.0.batch_tokens=4000"]
    with pytest.raises(UserError, match="that are held out are too few for segments of 4000; set a larger"):
        pretrain("transformer-xl-tiny", store=token_store, out=tmp_path / "out", overrides=changes)


def test_a_memory_without_lanes_is_said(token_store: Path, tmp_path: Path) -> None:
    changes = small("transformer-xl-tiny", "data.format=stream")
    with pytest.warns(BertreeWarning, match=r"model.memory: nothing is remembered with data.format=stream"):
        run = pretrain("transformer-xl-tiny", store=token_store, out=tmp_path / "out", overrides=changes)
    assert run.complete


@pytest.mark.parametrize("format", ["lanes", "lanes+documents"])
@pytest.mark.parametrize("memory", [0, 24])
def test_runs_in_lanes(token_store: Path, tmp_path: Path, format: str, memory: int) -> None:
    """Also without a memory, where every segment is read alone."""
    changes = small("transformer-xl-tiny", f"data.format={format}", f"model.memory={memory}", "run.micro_tokens=32")
    run = pretrain("transformer-xl-tiny", store=token_store, out=tmp_path / "out", overrides=changes)
    assert run.complete
    assert load(tmp_path / "out" / "model").max_length == 16 + memory


@pytest.mark.parametrize("masking", ["next", "permutation", "token"])
def test_batches_of_a_compiled_run_have_one_shape(masking: str) -> None:
    settings = recipe.load("transformer-xl-tiny", small("transformer-xl-tiny"))
    draw = np.random.default_rng(0)
    documents = [[draw.choice([SPECIAL["unk"], 5, 6, 7], 100).tolist()] for _ in range(600)]
    store = memory_store(documents, vocab_size=8, special=SPECIAL)
    assert assembly.can_be_compiled(settings.data, store)
    phases = [Phase(400, 16, 96 * 16)]
    stream = LaneStream(store, lanes=96, length=16, fixed=True, masking=masking, backward=masking != "next")
    feed = StreamFeed(TrainingSchedule(phases, settings.schedule, 1e-3), [[stream]], fixed=True)
    assert stream.steps_per_epoch < 350
    shapes, predicted = set(), set()
    for number in range(0, 400, 7):
        (batch,) = feed[number].batches
        labels = PretrainingLabels.of(batch).predicted
        shapes.add(tuple(getattr(leaf, "shape", leaf) for leaf in batch.leaves()))
        predicted.add(int((labels[1] >= 0).sum()))
    assert len(shapes) == 1
    assert (len(predicted) > 1) == (masking != "permutation"), "ignored labels fill up what varies"


def test_a_model_knows_the_control_codes_of_its_store(tmp_path: Path) -> None:
    for name, word in (("Books", "captain"), ("Reviews", "film")):
        (tmp_path / "sources" / name).mkdir(parents=True)
        (tmp_path / "sources" / name / "a.txt").write_text("\n\n".join([f"{name} of the {word}. " * 9] * 30))
    train_tokenizer(tmp_path / "sources", tmp_path / "tokenizer", vocab_size=60, cased=True)
    prepare(tmp_path / "sources", tmp_path / "tokenizer", tmp_path / "store", workers=1, control="folder")
    for name in ("ctrl-tiny", "transformer-xl-tiny"):
        out = tmp_path / name
        run = pretrain(name, store=tmp_path / "store", out=out, overrides=small(name))
        assert run.complete
        assert folder.read(out / "model").controls == ("Books", "Reviews")
