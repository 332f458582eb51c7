"""A model or an index as it is served: its name, what it can be asked for, and the lanes of its work."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertree.inference.embedding import finish_vectors
from bertree.inference.inputs import check_finite
from bertree.inference.model import Model
from bertree.search.postgres.choice import AnyIndex
from bertree.serve.models.abilities import abilities, find_task
from bertree.serve.models.gathering import TextGatherer
from bertree.serve.schedule.work import Lane
from bertree.tasks.logits import effective_max_length, inference_autocast, logits
from bertree.tasks.task import Task, Unit
from bertree.text.tokenizer import Encoded

# Tokens of a batch. On a CPU, larger batches are no faster and let others wait longer (docs/serving.md).
BUDGETS = {"cpu": 512, "cuda": 65536}


class ServedModel:
    """A loaded model under a name."""

    def __init__(self, name: str, model: Model, folder: str = "") -> None:
        """`folder`: of the model; empty if it has none."""
        self.name, self.model, self.folder = name, model, folder
        self.created = int(time.time())
        self.task: Task[Any] | None = find_task(model)
        # Looked up by every request.
        self.dimension, self.vector, self.max_length = model.dimension, model.vector, model.max_length
        self._embedder = model.batch_embedder()
        self._default_prompt = model.vector.prompt_text(None, name)
        self._gatherer = TextGatherer(self.tokenize)
        self.does = abilities(model, self.task)
        budget = BUDGETS["cuda" if model.device.type == "cuda" else "cpu"]
        self._lanes = {
            "embed": Lane(f"{name}: embed", partial(self._embed, scaled=self.vector.normalize), budget),
            "unscaled": Lane(f"{name}: unscaled", partial(self._embed, scaled=False), budget),
            "task": Lane(f"{name}: task", self._task_logits, budget),
            "fill": Lane(f"{name}: fill", model.fill_prepared, budget),
            "call": Lane(f"{name}: call", _call_all, 1),
        }

    def lane(self, kind: str) -> Lane:
        """Return the lane of a kind of work.

        embed: tokenized texts (`Encoded`) -> vectors as `model.embed` gives them; unscaled: the same before they are
        scaled to length 1; task: units -> logits; fill: texts with masks -> filled masks; call: functions without
        arguments -> what they return, for work that cannot share a batch."""
        return self._lanes[kind]

    def tokenize(
        self, texts: Sequence[str | tuple[str, str]], prompt: str | None = None, cut: str = "right"
    ) -> list[Encoded]:
        """Tokenize texts for `embed`; those that are too long are cut, as their `dropped` says."""
        before = self._default_prompt if prompt is None else self.vector.prompt_text(prompt, self.name)
        given = [before + text for text in texts if isinstance(text, str)] if before else texts
        return self.model.required_tokenizer.encode(given, self.max_length, cut)

    async def tokenize_together(
        self, texts: Sequence[str], prompt: str | None = None, cut: str = "right"
    ) -> list[Encoded]:
        """Tokenize a few texts, together with those of other requests that this turn of the event loop has brought."""
        return await self._gatherer.encode(texts, prompt, cut)

    @property
    def task_max_length(self) -> int:
        """Tokens of a sequence that the task's head reads."""
        usual = self.model.task.get("max_length") or self.model.max_length
        return effective_max_length(0, usual, self.model.architecture.longest_input)

    @cached_property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def architecture(self) -> str:
        """Kind of the network, in a word."""
        return self.model.architecture.body

    def _embed(self, encoded: Sequence[Encoded], scaled: bool) -> list[NDArray[np.float32]]:
        rows = finish_vectors(self._embedder(encoded), None, scaled)
        check_finite(rows, self.name)
        return list(rows)

    def _task_logits(self, units: Sequence[Unit]) -> Sequence[NDArray[np.float32]]:
        assert self.task is not None
        return logits(self.model.network, self.task.scored_head, units, lambda: inference_autocast(self.model.device))


def unit_tokens(unit: Unit) -> int:
    """Return the tokens of a unit."""
    return sum(len(sequence.ids) for sequence in unit.sequences)


class ServedIndex:
    """An open index under a name, with the model of its vectors."""

    def __init__(self, name: str, index: AnyIndex, model: ServedModel, open_again: Callable[[Model], AnyIndex]) -> None:
        """`open_again` opens the same index with another copy of its model."""
        self.name, self.index, self.model, self.open_again = name, index, model, open_again
        self.created = int(time.time())
        self.lane = Lane(f"{name}: search", _call_all, 1, at_once=1)  # its database answers one search at a time
        self.query_prompt = index.state.prompts[1]  # name of the model's prompt for queries; empty: none
        self.map: tuple[object, Any] | None = None  # the last map, and what it is of


def _call_all(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    return [call() for call in calls]
