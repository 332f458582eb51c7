"""Small runs of many families: their first losses and last weights on one device, and on meshes of gloo processes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertree.model.network import Network
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.scale.distribute import distribute
from bertree.scale.launch import Launch
from bertree.scale.shards import whole_tensors
from bertree.scale.world import World, join
from bertree.train.device_setup import DeviceSetup
from bertree.train.feed import TrainingSchedule
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from tests.support import runs

STEPS = 3
TOKENS = 256  # of a step
BASES = {"gpt": "gpt2-tiny", "modernbert": "roberta-base", "reformer": "reformer-tiny"}
REFORMER = 'axial_shape = "8,8"\nchunk_length = 16\nlsh_chunk_length = 16\nffn_chunk = 64\n'
AXES: dict[str, str] = runs.MORE_AXES | {"modernbert": "window = 8\n", "gpt": "", "reformer": REFORMER}
PRESETS = {"gpt": "gpt2", "modernbert": "modernbert-base"}
RUN = f"""
[run]
device = "cpu"
[[phases]]
steps = 20
max_length = 32
batch_tokens = {TOKENS}
[data]
held_out_share = 0.1
[schedule]
warmup = 3
"""


@dataclass(frozen=True)
class Case:
    """A run of a family on a mesh."""

    family: str
    scale: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()
    again: bool = False  # a second time
    micro_batches: int = 2  # of a step: two data ranks have one each, or add up more

    @property
    def name(self) -> str:
        """The case in words."""
        words = [self.family, *self.overrides, *(f"{k}={v}" for k, v in self.scale.items())]
        return " ".join([*words, "again"] if self.again else words)

    @property
    def reference(self) -> str:
        """The name of the run on one device that it must equal."""
        return " ".join([self.family, *self.overrides, f"in {self.micro_batches}"])


def recipe_of(case: Case, folder: Path) -> recipes.Recipe:
    """The recipe of a small run."""
    family = case.family
    path = folder / f"{family}.toml"
    base = f'extends = "{BASES.get(family, f"{family}-base")}"\n'
    preset = PRESETS.get(family, f"{family}-base")
    if not path.exists():  # of several ranks none writes what another reads
        path.write_text(base + runs.MODEL.format(preset=preset) + AXES.get(family, "") + RUN)
    rate = "optim.lr=0.01" if family == "albert" else "optim.lr=0.004"
    micro = f"run.micro_tokens={TOKENS // case.micro_batches}"
    return recipes.load(str(path), [rate, micro, "optim.eps=1e-6", *case.overrides])


def train(case: Case, store: Path, folder: Path, world: World, steps: int = STEPS) -> tuple[list[float], Network]:
    """Take the first steps of a run; return the loss of each, and the network."""
    recipe = recipe_of(case, folder)
    text, _ = build.open_stores(recipe.data.__class__(**vars(recipe.data) | {"store": str(store)}))
    contents = build.build_model(recipe, text)
    machine = DeviceSetup(torch.device("cpu"), False, False)
    schedule = TrainingSchedule(recipe.phases, recipe.schedule, recipe.optim.lr)
    feed = build.build_feed(recipe, schedule, text, machine, contents.architecture, world=world)
    options = {name: value for name, value in case.scale.items() if name in ("zero", "sequence_parallel")}
    distribution = distribute(contents.network, world, recompute=recipe.run.recompute, **options)
    loop = Loop(
        contents.network,
        pretraining_objective(**recipe.objective),
        build_optimizer(contents.network, recipe.optim, distribution=distribution),
        clip=recipe.optim.clip,
        seed=recipe.run.seed,
        distribution=distribution,
    )
    losses = [loop.step(feed[number]).loss for number in range(min(steps, len(schedule)))]
    return losses, contents.network


def write_references(cases: Sequence[Case], store: Path, folder: Path) -> None:
    """Run each family on one device."""
    for case in {case.reference: case for case in cases}.values():
        losses, network = train(replace(case, scale={}), store, folder, World.alone())
        weights = dict(whole_tensors(network, World.alone()))
        _, untrained = train(replace(case, scale={}), store, folder, World.alone(), steps=0)
        start = dict(whole_tensors(untrained, World.alone()))
        moved = max(float((weights[name] - start[name]).abs().max()) for name in weights)
        facts = {"losses": json.dumps(losses), "moved": str(moved)}
        save_file(weights, folder / f"{case.reference}.safetensors", facts)


def run_cases(launch: Launch, cases: Sequence[Case], store: Path, folder: Path) -> dict[str, Any]:
    """Run cases as one rank of many; return how far each is from one device."""
    results: dict[str, Any] = {}
    for number, case in enumerate(cases):
        sizes = {name: value for name, value in case.scale.items() if name != "sequence_parallel"}
        with join(launch._replace(job=str(number)), **sizes) as world:
            losses, network = train(case, store, folder, world)
            weights = dict(whole_tensors(network, world))
            results[case.name] = {"digest": digest(weights)} | differences(case, losses, weights, folder)
    return results


def digest(weights: dict[str, Tensor]) -> str:
    """A number that tells weights apart to the bit."""
    return hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()


def differences(case: Case, losses: list[float], weights: dict[str, Tensor], folder: Path) -> dict[str, Any]:
    """How far losses and weights are from those of one device: the largest relative difference of each. `moved`: how
    far a weight of that device is from its start, at most."""
    path = folder / f"{case.reference}.safetensors"
    wanted = load_file(path)
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    expected = json.loads(facts["losses"])
    worst = max((relative_difference(weights[name], tensor, name), name) for name, tensor in wanted.items())
    return {
        "loss": max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)),
        "weights": worst,
        "moved": float(facts["moved"]),
    }


def relative_difference(left: Tensor, right: Tensor, name: str) -> float:
    """The norm of the difference, as a share. The bias of keys is left out: its gradient is 0 but for rounding, which
    Adam turns into steps."""
    if name.endswith(".qkv.bias"):
        left, right = (torch.cat([t.chunk(3)[0], t.chunk(3)[2]]) for t in (left, right))
    return float((left - right).norm() / right.norm().clamp(min=1e-12))
