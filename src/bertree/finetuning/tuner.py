"""A fine-tuning run: a task, a pretrained encoder and a configuration, trained with one seed.

And whether a run has learned its task, and what to try if it has not.
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bertree.config import settings
from bertree.config.sections import Phase, ScheduleSettings
from bertree.files.formats import Json
from bertree.finetuning.config import FineTuneConfig, learning_rate
from bertree.finetuning.evaluate import EncodedSplit, evaluate_split
from bertree.finetuning.feed import ShapeBuckets, UnitFeed, steps_per_epoch
from bertree.model.architecture import Architecture
from bertree.model.layers.basic import without_weights
from bertree.model.layers.embeddings import copy_spelling
from bertree.model.network import Network, build
from bertree.model.pooling import PoolingConfig
from bertree.objectives.objective import Objective, WeightedTerms
from bertree.objectives.supervised import supervised_objective, with_language_model
from bertree.scale.distribute import Distribution
from bertree.scale.world import World
from bertree.tasks.batches import Autocast
from bertree.tasks.metrics import interval, label_statistics
from bertree.tasks.task import Task
from bertree.train.device_setup import CPU_TOKENS, GPU_TOKENS, DeviceSetup
from bertree.train.feed import TrainingSchedule
from bertree.train.keep import KeepBestWeights
from bertree.train.loop import Loop, plain_gradients
from bertree.train.optimizer import build_optimizer
from bertree.train.session import WHOLE_RUN, Session
from bertree.train.strategies import CudaGraphRecorder, WholeStepObjective, cached_gradients

CPU_LOGITS, GPU_LOGITS = 2**27, 2**30  # of a language model in a micro-batch, at most: half a GB and four in float32
FEWEST_PREDICTIONS = 10  # fewer may all be the same by chance, without the run being degenerate
FEWEST_FOR_CHANCE = 30  # predictions; with fewer, a run that has learned something may look like chance
LEAST_SPREAD = 0.01  # of predicted numbers, as a share of the gold ones'; below it they count as the same
FEW_STEPS = 50
RATE_FACTOR = 10  # a learning rate that differs this much from the usual one is the first suspect
NEARLY_ALL = 0.9  # share of one class that leaves little else to learn


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


def degenerate_reason(lines: Sequence[Json]) -> str | bool:
    """Return why a finished run has learned nothing, or False: the value of "diverged" in a seed's result."""
    predicted, gold = [line["predicted"] for line in lines], [line["gold"] for line in lines if "gold" in line]
    tags = bool(predicted) and isinstance(predicted[0], list)
    if tags:  # those of all words
        predicted, gold = [tag for each in predicted for tag in each], [tag for each in gold for tag in each]
    if len(predicted) < FEWEST_PREDICTIONS or len(set(map(json.dumps, gold))) < 2:
        return False
    close = isinstance(predicted[0], float) and not np.ptp(predicted) > LEAST_SPREAD * np.ptp(gold)  # or NaN
    if close:
        return "every prediction is the same"
    if len(set(map(json.dumps, predicted))) > 1:
        return not tags and _chance(gold, predicted)
    most, count = Counter(map(str, gold)).most_common(1)[0]
    label = str(predicted[0])
    why = f", the most frequent label ({100 * count / len(gold):.0f} %)" if label == most else ""
    return f"every prediction is the same: {label:.40}{why}"


def _chance(gold: Sequence[object], predicted: Sequence[object]) -> str | bool:
    """Return a reason if predicted classes are as good as the most frequent one and unrelated to the gold labels."""
    pairs = [(g, p) for g, p in zip(gold, predicted, strict=False) if isinstance(g, str) and isinstance(p, str)]
    if len(gold) != len(predicted) or not len(pairs) == len(gold) >= FEWEST_FOR_CHANCE:
        return False
    label, count = Counter(g for g, _ in pairs).most_common(1)[0]
    right = sum(g == p for g, p in pairs)
    matthews = label_statistics(("matthews",), *map(list, zip(*pairs, strict=True)))["matthews"]
    if right > count or interval(matthews)[0] > 0:
        return False
    share, always = 100 * right / len(pairs), 100 * count / len(pairs)
    return f"accuracy {share:.2f} is not above that of always answering '{label:.40}' ({always:.2f})"


def advice(tuner: FineTuning, results: Sequence[Json]) -> str:
    """Return what to try after a run of which no seed has learned anything, by its likeliest cause."""
    config, rate = tuner.config, tuner.config.optim.lr
    usual = learning_rate(replace(config, optim=replace(config.optim, lr=0.0)), tuner.architecture)
    steps = max(1, math.ceil(tuner.steps_per_epoch * config.train.epochs))
    answers = Counter(unit.answer for unit in tuner.train.units if type(unit.answer) is int)
    most = max(answers.values(), default=0) / max(1, answers.total())
    if all(result.get(tuner.task.metric) is None for result in results):
        return f"the gradient was not finite: try a lower lr than {rate:g} (usual here: {usual:g}) or a longer warmup"
    if rate * RATE_FACTOR <= usual:
        return f"lr={rate:g} is far too low: leave it out, or try {usual:g}"
    if rate >= usual * RATE_FACTOR:
        return f"lr={rate:g} is far too high: leave it out, or try {usual:g}"
    if steps < FEW_STEPS:
        many = math.ceil(FEW_STEPS * 2 * config.train.epochs / steps)
        return f"{steps} step{'s are' if steps != 1 else ' is'} too few: try epochs={many}, or a smaller batch"
    if most > NEARLY_ALL and tuner.task.labels:
        label = tuner.task.labels[answers.most_common(1)[0][0]]
        return f"{100 * most:.0f} % of the training examples are '{label:.40}': leave some of them out, or add others"
    return f"try a lower lr than {rate:g}, a longer warmup than {config.train.warmup:g} or more epochs"
