"""A fine-tuning run: a task, a pretrained encoder and a configuration, trained with one seed."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertree.config import settings
from bertree.config.sections import Phase, ScheduleSettings
from bertree.files.formats import Json
from bertree.finetuning.config import FineTuneConfig
from bertree.finetuning.evaluate import Autocast, EncodedSplit, evaluate_split
from bertree.finetuning.feed import ShapeBuckets, UnitFeed, steps_per_epoch
from bertree.model.architecture import Architecture
from bertree.model.layers.basic import without_weights
from bertree.model.layers.characters import copy_spelling
from bertree.model.network import Network, build
from bertree.model.pooling import PoolingConfig
from bertree.objectives.objective import Objective, WeightedTerms
from bertree.objectives.supervised import supervised_objective, with_language_model
from bertree.scale.distribute import Distribution
from bertree.scale.world import World
from bertree.tasks.task import Task
from bertree.train.device_setup import CPU_TOKENS, GPU_TOKENS, DeviceSetup
from bertree.train.feed import TrainingSchedule
from bertree.train.keep import KeepBestWeights
from bertree.train.loop import Loop, plain_gradients
from bertree.train.optimizer import build_optimizer
from bertree.train.session import WHOLE_RUN, Session
from bertree.train.strategies import CudaGraphRecorder, WholeStepObjective, cached_gradients

CPU_LOGITS, GPU_LOGITS = 2**27, 2**30  # of a language model in a micro-batch, at most: half a GB and four in float32


@dataclass(frozen=True, kw_only=True)
class InitialModel:
    """The model that a run starts from."""

    architecture: Architecture
    network: Network
    labels: Sequence[str]
    task: str = ""  # it was fine-tuned for
    redraw: bool = False  # its weights are random: draw new ones for every seed


class TrainedSeed(NamedTuple):
    """What training with one seed gave."""

    network: Network  # with the weights of the best evaluation
    autocast: Autocast  # the context it is computed in
    best_step: int = 0
    best_score: float = -math.inf  # of the task's metric; -inf: nothing was scored
    signal: int | None = None  # that ended the run early
    head: Json | None = None  # how the head was solved, if it was


@dataclass(kw_only=True)
class FineTuning:
    """Everything a run needs but the seed; `run` trains with one."""

    task: Task[Any]
    initial: InitialModel
    train: EncodedSplit[Any]
    dev: EncodedSplit[Any]
    config: FineTuneConfig
    device_setup: DeviceSetup
    identity: str  # of model and data
    objective: Objective | None = None  # None: the supervised objective of the head
    special: frozenset[int] = frozenset()  # ids of tokens that a language model does not predict
    world: World = field(default_factory=World.alone)  # data ranks, each with a copy of the network

    @property
    def architecture(self) -> Architecture:
        """The architecture that is trained: the initial model's, as the task needs it."""
        a = self.initial.architecture.with_values({"attention_dropout": 0.0} | self.config.model)
        pairs = any(sequence.is_pair for unit in self.train.units for sequence in unit.sequences)
        return a.for_task(self.task.head, pairs, self.config.readout.of_network.reads_states)

    def network(self, seed: int) -> Network:
        """Build the network with a seed, and load the pretrained weights that fit it."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = self.new_network()
        if not self.initial.redraw:
            weights = network.state_dict()
            pretrained = {
                name: tensor
                for name, tensor in self.initial.network.state_dict().items()
                if name.startswith(self.pretrained) and name in weights and weights[name].shape == tensor.shape
            }
            network.load_state_dict(pretrained, strict=False)
        copy_spelling(network, self.initial.network)
        return network.to(self.device_setup.device)

    def new_network(self) -> Network:
        """Build the network with random weights."""
        heads = {self.task.head: self.task.classes} | ({"mask": 0} if self.config.train.lm else {})
        readout = self.config.readout.of_network
        return build(self.architecture, heads, readout, self._pooling if readout.pooled else None)

    @property
    def _pooling(self) -> PoolingConfig:
        """How a text becomes the vector that a head reads: as in the initial model, whose dense layers are used only on
        its last hidden states."""
        vector = self.initial.network.vector
        pooling = PoolingConfig() if vector is None else vector.config
        return replace(pooling, dense=()) if self.config.readout.of_network.transforms else pooling

    @property
    def pretrained(self) -> tuple[str, ...]:
        """Prefixes of the weights that are copied from the initial model, where they fit."""
        return ("encoder.", "heads.mask.", "vector.") + (("heads.", "features.", "crf.") if self.reuses_head else ())

    def check(self) -> None:
        """Raise an error if the network cannot be built, before anything is written."""
        with without_weights():
            self.new_network()

    @property
    def reuses_head(self) -> bool:
        """True if the initial model has the head of this task (or, if it names no task, of these labels), and the head
        reads the same hidden states."""
        new, old = self.config.readout.of_network, self.initial.network.readout
        if (new.layers, new.lstm, new.lstm_layers, new.pooled) != (old.layers, old.lstm, old.lstm_layers, old.pooled):
            return False
        same = self.initial.task == self.task.name if self.initial.task else bool(self.task.labels)
        return same and self.task.head in self.initial.network.heads and tuple(self.initial.labels) == self.task.labels

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which every unit is read once."""
        return steps_per_epoch(len(self.train.units), self.config.train.batch)

    def _schedule(self) -> TrainingSchedule:
        steps = max(1, math.ceil(self.steps_per_epoch * self.config.train.epochs))
        schedule = ScheduleSettings(shape=self.config.train.shape, warmup=math.ceil(self.config.train.warmup * steps))
        return TrainingSchedule([Phase(steps=steps)], schedule, self.config.optim.lr)

    def _build(self, seed: int) -> tuple[Loop, UnitFeed]:
        task, config, size = self.task, self.config, self.config.train.batch
        network, gpu = self.network(seed), self.device_setup.device.type == "cuda"
        longest = max(len(sequence.ids) for unit in self.train.units for sequence in unit.sequences)
        options = max(len(unit.sequences) for unit in self.train.units)
        limit = config.run.micro_tokens or (GPU_TOKENS if gpu else CPU_TOKENS)
        if config.train.lm and not config.run.micro_tokens:
            limit = max(1, min(limit, (GPU_LOGITS if gpu else CPU_LOGITS) // self.architecture.vocab_size))
        fits = size * options * longest <= limit  # every step, in one batch
        crf = network.crf is not None
        lstm = config.readout.lstm > 0 or not self.architecture.replayable
        on_host = crf or lstm or config.optim.name != "adamw"  # they read values on the host during a step
        replayed = gpu and self.device_setup.compiled and fits and not on_host and not self.world.joined
        # It cannot be split into micro-batches, or among ranks.
        all_at_once = isinstance(self.objective, WholeStepObjective) and (not fits or self.world.data > 1)
        loop = Loop(
            network,
            self._objective(crf),
            build_optimizer(network, config.optim, capturable=replayed),
            clip=config.optim.clip,
            seed=seed,
            bf16=self.device_setup.bf16,
            bad_steps=config.run.bad_steps,
            gradients=cached_gradients if all_at_once else plain_gradients,
            recorder=CudaGraphRecorder if replayed else None,
            distribution=Distribution(self.world),
        )
        shapes = ShapeBuckets(task.head, size, options) if replayed else None
        feed = UnitFeed(
            self._schedule(),
            self.train.units,
            size,
            task.head,
            regression=task.regression,
            seed=seed,
            shapes=shapes,
            limit=0 if fits else limit,
            special=self.special if config.train.lm else None,
            rank=self.world.data_rank,
            ranks=self.world.data,
        )
        return loop, feed

    def _objective(self, crf: bool) -> Objective:
        objective = self.objective or supervised_objective(self.task.head, self.task.regression, crf)
        if not self.config.train.lm:
            return objective
        assert isinstance(objective, WeightedTerms), "a language model shares the pass of other terms"
        return with_language_model(objective, self.config.train.lm)

    def describe_steps(self) -> str:
        """Describe the steps of a run in one line."""
        train, rate = self.config.train, self.config.optim.lr
        lm = f"; {train.lm:g} times the language-model loss is added" if train.lm else ""
        return (
            f"{len(self._schedule()):,} steps of {train.batch}, rate {rate:g}, up to {train.max_length} tokens; "
            f"best by {self.task.metric}{'; the head of the model is reused' if self.reuses_head else ''}{lm}"
        )

    def recipe(self, seed: int) -> str:
        """Return every setting of a run with this seed as TOML."""
        return settings.as_toml(replace(self.config, run=replace(self.config.run, seed=seed)))

    def run_identity(self, seed: int) -> str:
        """Return a hash of settings, model and data: what must be the same when a run with this seed is resumed."""
        return hashlib.sha256((self.recipe(seed) + self.identity).encode(errors="surrogateescape")).hexdigest()

    def run(self, out: Path, seed: int, resume: bool, intro: Sequence[str]) -> TrainedSeed:
        """Train with a seed."""
        loop, feed = self._build(seed)
        keep = KeepBestWeights(
            loop=loop,
            evaluate=lambda: self._evaluate(loop),
            metric=self.task.metric,
            evaluations=self._evaluations(len(feed.schedule)),
            patience=self.config.train.patience,
        )
        identity: Json = {WHOLE_RUN: self.run_identity(seed)}
        session = Session(
            out=out,
            recipe=self.recipe(seed),
            loop=loop,
            feed=feed,
            settings=self.config.run,
            identity=identity,
            keep=keep,
        )
        signal = session.run(resume, intro)
        return TrainedSeed(loop.network, loop.autocast, keep.best.step, keep.best.score, signal)

    def _evaluations(self, steps: int) -> list[int]:
        """Return the steps after which the dev split is scored; the best evaluation is kept."""
        if not self.config.train.evaluations:
            return [steps]
        every = max(1.0, self.steps_per_epoch / self.config.train.evaluations)
        return [*(round(every * k) for k in range(1, math.ceil(steps / every))), steps]

    def finish(self, trained: TrainedSeed) -> None:
        """Complete the weights that are saved, after they were scored."""

    def _evaluate(self, loop: Loop) -> dict[str, float]:
        """Return the scores on the dev split; all ranks go by those of rank 0."""
        scores = evaluate_split(self.task, loop.network, self.dev, loop.autocast)[1]
        return dict(zip(scores, self.world.gather(list(scores.values()))[0], strict=True))
