"""One fine-tuning run: a task, a trained encoder and a configuration put together for one seed."""

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch

from bertree.config import settings
from bertree.config.sections import Phase, ScheduleSettings
from bertree.data import counter_random
from bertree.errors import UserError
from bertree.files import Json, file_hash
from bertree.finetuning.config import FineTuneConfig
from bertree.finetuning.feed import ShapeBuckets, UnitFeed, steps_an_epoch
from bertree.model.architecture import Architecture
from bertree.model.network import Network, build
from bertree.objectives.objective import Objective
from bertree.objectives.supervised import supervised_objective
from bertree.tasks.logits import logits
from bertree.tasks.task import Example, Task, Unit
from bertree.train.device import CPU_TOKENS, GPU_TOKENS, Placement
from bertree.train.fine_tuning_session import BestEvaluation, FineTuningSession
from bertree.train.loop import Loop
from bertree.train.optim import build_optimizer
from bertree.train.schedule import TrainingPlan
from bertree.train.steps.cuda_graph import CudaGraphLoop
from bertree.train.steps.grad_cache import GradCacheLoop, WholeStepObjective

# Heads that read a pooler, in which families: RoBERTa's classifier does not, but its choice head does.
POOLED = {"sequence": ("pooler",), "choice": ("pooler", "tanh")}
Autocast = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class EncodedSplit(Generic[Example]):
    """Examples and what the encoder reads of them."""

    examples: Sequence[Example]
    units: Sequence[Unit]


@dataclass(frozen=True)
class InitialModel:
    """A trained model that a task begins with."""

    architecture: Architecture
    network: Network
    labels: Sequence[str]
    task: str = ""  # the one it was fine-tuned for
    reinitialize: bool = False  # it is untrained, and every seed draws weights of its own


@dataclass
class FineTuning:
    """A task to be learned from a start; `run` learns it with one seed."""

    task: Task[Any]
    start: InitialModel
    train: EncodedSplit[Any]
    dev: EncodedSplit[Any]
    config: FineTuneConfig
    machine: Placement
    identity: str  # of model and data
    objective: Objective | None = None  # where it is not the head's own

    @property
    def architecture(self) -> Architecture:
        """The point of the design space that is trained: that of the start, with a pooler where the head reads one;
        a bilstm compares the texts of pairs."""
        a = self.start.architecture.with_values({"attention_dropout": 0.0} | self.config.model)
        if a.body == "bilstm":
            return a.with_values({"sequence_head": "compare" if self._compares else "relu"})
        reads_pooler = a.sequence_head in POOLED.get(self.task.head, ()) and not self.config.top.reads_states
        return a.with_values({"pooler": True}) if reads_pooler else a

    @property
    def _compares(self) -> bool:
        """Whether the head reads pairs as wholes. One that reads tokens needs each text to see the other."""
        return self.task.head in ("sequence", "choice") and any(
            sequence.is_pair for unit in self.train.units for sequence in unit.sequences
        )

    def network(self, seed: int) -> Network:
        """The trained encoder under the model's own head, where it is the same one, or under a fresh one."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = build(self.architecture, {self.task.head: self.task.classes}, self.config.top)
        if self.start.reinitialize:
            return made.to(self.machine.device)
        known = made.state_dict()
        kept = ("encoder.", "heads.", "features.", "crf.") if self.reuses_head else ("encoder.",)
        there = {
            name: tensor
            for name, tensor in self.start.network.state_dict().items()
            if name.startswith(kept) and name in known and known[name].shape == tensor.shape
        }
        made.load_state_dict(there, strict=False)
        return made.to(self.machine.device)

    def check(self) -> None:
        """Refuse what cannot be built, before anything is written."""
        with torch.device("meta"):
            build(self.architecture, {self.task.head: self.task.classes}, self.config.top)

    @property
    def reuses_head(self) -> bool:
        """Whether the start has the very head that is trained: of this task or, where it names none, of these labels,
        and standing on the same states."""
        mine, its = self.config.top, self.start.network.readout
        if (mine.layers, mine.lstm, mine.lstm_layers) != (its.layers, its.lstm, its.lstm_layers):
            return False
        same = self.start.task == self.task.name if self.start.task else bool(self.task.labels)
        return same and self.task.head in self.start.network.heads and tuple(self.start.labels) == self.task.labels

    @property
    def steps_an_epoch(self) -> int:
        """Steps in which every unit is read once."""
        return steps_an_epoch(len(self.train.units), self.config.train.batch)

    def _plan(self) -> TrainingPlan:
        steps = max(1, math.ceil(self.steps_an_epoch * self.config.train.epochs))
        schedule = ScheduleSettings(shape=self.config.train.shape, warmup=math.ceil(self.config.train.warmup * steps))
        return TrainingPlan([Phase(steps=steps)], schedule, self.config.optim.lr)

    def _parts(self, seed: int) -> tuple[Loop, UnitFeed]:
        task, config, size = self.task, self.config, self.config.train.batch
        network, gpu = self.network(seed), self.machine.device.type == "cuda"
        longest = max(len(sequence.ids) for unit in self.train.units for sequence in unit.sequences)
        options = max(len(unit.sequences) for unit in self.train.units)
        limit = config.run.micro_tokens or (GPU_TOKENS if gpu else CPU_TOKENS)
        micro = min(size, math.ceil(size * options * longest / limit))
        crf = network.crf is not None
        lstm = config.top.lstm > 0 or self.architecture.body == "bilstm"
        on_host = crf or lstm or config.optim.name != "adamw"  # they ask for numbers on the way
        replayed = gpu and self.machine.compiled and micro == 1 and not on_host
        whole = micro > 1 and isinstance(self.objective, WholeStepObjective)  # its pieces must come together
        kind = CudaGraphLoop if replayed else GradCacheLoop if whole else Loop
        loop = kind(
            network,
            self.objective or supervised_objective(task.head, task.regression, crf),
            build_optimizer(network, config.optim, capturable=replayed),
            clip=config.optim.clip,
            seed=seed,
            bf16=self.machine.bf16,
            bad_steps=config.run.bad_steps,
        )
        shapes = ShapeBuckets(task.head, size, options) if replayed else None
        feed = UnitFeed(
            self._plan(),
            self.train.units,
            size,
            task.head,
            regression=task.regression,
            seed=seed,
            shapes=shapes,
            micro=micro,
        )
        return loop, feed

    def recipe(self, seed: int) -> str:
        """Every setting of a run with this seed, as TOML."""
        return settings.as_toml(replace(self.config, run=replace(self.config.run, seed=seed)))

    def identity_with(self, seed: int) -> str:
        """What must be the same when a run with this seed is resumed: settings, model and data, as one hash."""
        return hashlib.sha256((self.recipe(seed) + self.identity).encode(errors="surrogateescape")).hexdigest()

    def run(self, out: Path, seed: int, resume: bool, intro: Sequence[str]) -> tuple[int | None, BestEvaluation, Loop]:
        """Learn it. The signal that ended the run early, if any, the best evaluation, and the loop with the weights of
        that moment in it."""
        loop, feed = self._parts(seed)
        recipe = self.recipe(seed)
        steps, every = len(feed.plan), max(1.0, self.steps_an_epoch / self.config.train.evaluations)
        session = FineTuningSession(
            out,
            recipe,
            loop,
            feed,
            self.config.run,
            {"run": self.identity_with(seed)},
            evaluate=lambda: evaluate_split(self.task, loop.network, self.dev, loop.autocast)[1],
            metric=self.task.metric,
            evaluations=[*(round(every * k) for k in range(1, math.ceil(steps / every))), steps],
            patience=self.config.train.patience,
        )
        return session.run(resume, intro), session.best, loop


def hold_out(
    examples: Sequence[Example],
    share: float,
    group: Callable[[Example], str | None] = lambda example: None,
    source: object = "training data",
) -> dict[str, list[Example]]:
    """Split off a share of the training examples as the dev split, the same for every seed.

    Examples of one group (the questions on one passage) stay together, or the dev split would be about text that was
    trained on. `source` is the file that messages name."""
    keys = [group(example) or number for number, example in enumerate(examples)]
    groups = list(dict.fromkeys(keys))
    order = np.argsort(counter_random.bits(counter_random.key(0, "held out"), np.arange(len(groups))), kind="stable")
    held = {groups[place] for place in order[: max(1, round(share * len(groups)))].tolist()}
    if len(held) >= len(groups):
        few = f"has only {len(examples)} {'example' if len(examples) == 1 else 'examples'}"
        few += f" in {len(groups)} groups" if len(groups) < len(examples) else ""
        raise UserError(f"{source}: {few}, too few to hold some out; give a dev split with --dev FILE")
    found: dict[str, list[Example]] = {"train": [], "dev": []}
    for key, example in zip(keys, examples, strict=True):
        found["dev" if key in held else "train"].append(example)
    return found


def digest(path: Path) -> str:
    """What tells a data file, or a folder of them, from another."""
    if path.is_file():
        return file_hash(path)
    below = sorted(file for file in path.rglob("*") if file.is_file())
    names = "\n".join(f"{file.relative_to(path)} {file.stat().st_size}" for file in below)
    return hashlib.sha256(names.encode()).hexdigest()


def evaluate_split(
    task: Task[Example],
    network: Network,
    split: EncodedSplit[Example],
    autocast: Autocast,
    advance: Callable[[int], None] = lambda count: None,
) -> tuple[list[Json], dict[str, float]]:
    """Predictions on a split, and their scores where it has gold answers."""
    found = logits(network, task.scored_head, split.units, autocast, advance)
    predictions = task.predict(split.examples, split.units, found)
    known = any(unit.answer is not None for unit in split.units)
    return predictions, task.score(split.examples, predictions) if known else {}
