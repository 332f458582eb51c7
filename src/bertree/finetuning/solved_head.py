"""Runs whose head is solved (linear_head.py), not trained: on a frozen encoder, or after few-shot training of one.

Few-shot training is that of SetFit (Tunstall et al. 2022): the encoder first learns to bring texts of one class
together and texts of different classes apart, and every pair of texts is an example of that. So eight texts of a class
are enough. The steps are those of any fine-tuning run (tuner.py), with `ClassContrast` as their objective.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertree.console import bar, say
from bertree.errors import UserError
from bertree.files.atomic import write_atomically
from bertree.files.formats import Json
from bertree.finetuning.linear_head import LinearHead, fit_class_means, fit_classifier, fit_regression
from bertree.finetuning.tuner import FineTuning, TrainedSeed
from bertree.inference.cpu_encoder import CpuRuntime
from bertree.model.heads import ClassHead
from bertree.model.network import Network
from bertree.run_folder import ENVIRONMENT, RECIPE
from bertree.tasks.batches import text_states
from bertree.tasks.task import Unit
from bertree.train.loop import StopTraining
from bertree.train.metrics_log import environment
from bertree.train.signals import Signals, catch_signals


@dataclass(kw_only=True)
class HeadSolving(FineTuning):
    """A run that solves the head on a frozen encoder."""

    refits: bool = False  # the head that is saved is fitted to the dev examples too: they were held out to score it
    _train_vectors: Tensor | None = field(default=None, init=False)

    def run(self, out: Path, seed: int, resume: bool, intro: Sequence[str]) -> TrainedSeed:
        """Encode the examples and solve the head. There are no steps: a run that is resumed starts again."""
        if self.world.is_first:
            write_atomically(out / RECIPE, self.recipe(seed))
            write_atomically(out / ENVIRONMENT, json.dumps(environment(self.device_setup.device), indent=2) + "\n")
        for line in intro:
            say(line)
        return self._solve(TrainedSeed(self.network(seed), self.device_setup.autocast))

    def describe_steps(self) -> str:
        """Describe what is computed."""
        strength = "chosen by cross-validation" if self.config.readout.c is None else f"{self.config.readout.c:g}"
        return f"the head is solved on {self._describe_vectors()}, not trained; its C is {strength}"

    def _describe_vectors(self) -> str:
        pooled = f"the model's own vectors ({self._pooling.pooling})" if self.config.readout.pooled else "hidden states"
        return f"{pooled}, up to {self.config.train.max_length} tokens"

    def _solve(self, trained: TrainedSeed) -> TrainedSeed:
        """Encode the training examples, unless they are, and solve the head on them."""
        began = time.perf_counter()
        if self._train_vectors is None:
            with catch_signals() as signals:
                vectors = self._encode(trained, self.train.units, signals)
            if vectors is None:
                return trained._replace(signal=signals.caught)
            self._train_vectors = vectors
        encoded = time.perf_counter()
        head = self._fit(trained.network, self._train_vectors, self.train.units, self.config.readout.c)
        regression = "ridge regression" if self.task.regression else "logistic regression"
        facts: Json = {
            "kind": regression if head.strength else "class means",
            "examples": len(self._train_vectors),
            "width": self._train_vectors.shape[1],
            "C": head.strength or None,
            "folds": head.folds,
            "trials": [list(trial) for trial in head.trials],
            "encoding_s": round(encoded - began, 2),
            "solving_s": round(time.perf_counter() - encoded, 2),
        }
        say(head_line(facts))
        return trained._replace(head=facts)

    def _encode(self, trained: TrainedSeed, units: Sequence[Unit], signals: Signals | None = None) -> Tensor | None:
        """Return the vectors that the head reads; None if a signal came."""
        encode = CpuRuntime().states_of(trained.network)
        with bar("encoding", len(units), speed="texts") as progress:

            def advance(count: int) -> None:
                progress.advance(count)
                if signals is not None and signals.caught is not None:
                    raise StopTraining

            try:
                rows = text_states(trained.network, self.task.head, units, encode, trained.autocast, advance)
            except StopTraining:
                return None
        if not np.isfinite(rows).all():
            raise UserError("the encoder gives vectors that are not finite, so no head can be solved on them")
        return torch.from_numpy(rows)

    def _fit(self, network: Network, vectors: Tensor, units: Sequence[Unit], strength: float | None) -> LinearHead:
        """Fit the head and put its weights into the network."""
        head = self._solution(vectors, torch.tensor([unit.answer for unit in units]), strength)
        module = network.heads[self.task.head]
        assert isinstance(module, ClassHead)
        with torch.no_grad():
            module.out.weight.copy_(head.weight)
            module.out.bias.copy_(head.bias)
        return head

    def _solution(self, vectors: Tensor, answers: Tensor, strength: float | None) -> LinearHead:
        if self.task.regression:
            return fit_regression(vectors, answers, strength)
        return fit_classifier(vectors, answers, self.task.classes, strength)

    def finish(self, trained: TrainedSeed) -> None:
        """Fit the head that is saved to the held-out examples too, with the strength that was chosen."""
        if not self.refits:
            return
        assert trained.head is not None
        labeled = [unit for unit in self.dev.units if unit.answer is not None]
        held_out = self._encode(trained, labeled)
        assert self._train_vectors is not None
        assert held_out is not None
        vectors = torch.cat([self._train_vectors, held_out])
        self._fit(trained.network, vectors, [*self.train.units, *labeled], trained.head["C"])


@dataclass(kw_only=True)
class FewShot(HeadSolving):
    """A run that trains the encoder to tell the classes apart, then solves the head on it."""

    tunes: bool = True  # False: there are so many classes that a step sees few pairs of one, and the encoder stays

    def run(self, out: Path, seed: int, resume: bool, intro: Sequence[str]) -> TrainedSeed:
        """Take the steps with a seed, then solve the head."""
        if not self.tunes:
            return super().run(out, seed, resume, intro)
        trained = FineTuning.run(self, out, seed, resume, intro)
        self._train_vectors = None
        steps = len(self._schedule())
        return trained if trained.signal is not None else self._solve(trained)._replace(best_step=steps)

    def describe_steps(self) -> str:
        """Describe what is computed."""
        config = self.config
        if not self.tunes:
            return (
                f"few-shot: {self.task.classes} classes are too many for steps of {config.train.batch} texts, so the "
                f"encoder stays as it is and the head is solved on {self._describe_vectors()}"
            )
        return (
            f"few-shot: {len(self._schedule()):,} steps on the pairs of {config.train.batch} texts each, rate "
            f"{config.optim.lr:g}; then the head is solved on {self._describe_vectors()}"
        )

    def network(self, seed: int) -> Network:
        """Build the network. The head gets no gradient: it is solved after the steps."""
        network = super().network(seed)
        network.heads.requires_grad_(False)
        return network

    def _solution(self, vectors: Tensor, answers: Tensor, strength: float | None) -> LinearHead:
        if strength is None:
            return fit_class_means(vectors, answers, self.task.classes)
        return super()._solution(vectors, answers, strength)

    def _evaluations(self, steps: int) -> list[int]:
        """None: there is no head to score before the last step, and all steps are taken."""
        return []


def head_line(facts: Json) -> str:
    """Describe a solved head in one line."""
    chosen = f"chosen of {len(facts['trials'])} on held-out training examples" if facts["trials"] else "set"
    strength = "" if facts["C"] is None else f", C = {facts['C']:.3g} ({chosen})"
    return (
        f"head: {facts['kind']} on {facts['examples']:,} vectors of {facts['width']:,} numbers{strength}; "
        f"{facts['encoding_s']:.1f} s to encode, {facts['solving_s']:.1f} s to solve"
    )
