"""Models and indexes as they are served: their names, their abilities, and the kinds of jobs they compute. The registry
has them and the folders of runs by name; a swap replaces an entry, and requests with the old one finish with it."""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertree.errors import UserError, listed, suggest
from bertree.inference.inputs import check_finite
from bertree.inference.model import Model
from bertree.model.architecture import Transformer
from bertree.objectives.supervised import HEAD_KINDS
from bertree.search.index import AnyIndex
from bertree.serve.token_queue import JobKind
from bertree.tasks.batches import inference_autocast, logits
from bertree.tasks.squad.task import SquadTask
from bertree.tasks.tagging.task import TaggingTask
from bertree.tasks.task import Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.tokenizer import Encoded

# Ability -> what it means, for messages.
ABILITIES = {
    "embed": "compute vectors of texts",
    "rerank": "score pairs of a query and a text",
    "predict": "classify texts",
    "fill": "fill masks",
    "entities": "find entities",
    "answer": "answer questions from a passage",
    "generate": "continue texts",
    "layers": "show attention",
}
# Tokens of a batch, and of one of vectors while many texts wait: larger batches let others wait longer.
BUDGETS = {"cpu": (512, 768), "cuda": (65536, 65536)}
SLOW = 10  # what a token costs when every layer is shown, beside one that is embedded
Waiting = tuple[Sequence[str], "asyncio.Future[list[Encoded]]"]  # the texts of a request
Tokenize = Callable[[Sequence[str], str | None, str], list[Encoded]]


def find_abilities(model: Model, task: Task[Any] | None) -> frozenset[str]:
    """Return the abilities of a model with this task, by its heads and its architecture."""
    if model.tokenizer is None:
        return frozenset()
    abilities = {"embed"}
    if "mask" in model.network.heads and model.network.features is None:
        if model.architecture.causal:
            if model.architecture.direction == "forward" and model.architecture.has_attention:
                abilities.add("generate")
        elif model.tokenizer.id_of("mask") is not None:
            abilities.add("fill")
    if isinstance(model.architecture, Transformer) and model.architecture.has_attention:
        abilities.add("layers")
    if isinstance(task, TextTask) and task.head == "sequence":
        abilities.add("predict")
        # The folder of a foreign classifier does not say what it reads; with one or two classes it may be a
        # cross-encoder.
        if task.columns.pair or ("name" not in model.task and task.classes <= 2):
            abilities.add("rerank")
    elif isinstance(task, TaggingTask) and task.has_entity_tags:
        abilities.add("entities")
    elif isinstance(task, SquadTask):
        abilities.add("answer")
    return frozenset(abilities)


def find_task(model: Model) -> Task[Any] | None:
    """Return the task that a model was fine-tuned on; None: there is none."""
    if not set(model.classes) & set(HEAD_KINDS):
        return None
    try:
        return model.find_task()
    except UserError:
        return None


class TextGatherer:
    """Collects the texts of all requests in one turn of the event loop, and tokenizes them by one call at its end.

    A call for a single short text takes three times as long as a text does in a call for many: its data is no longer in
    the caches, and the interpreter's lock is released and acquired once more."""

    def __init__(self, tokenize: Tokenize) -> None:
        """`tokenize`: texts, the name of a prompt, and the end at which texts are cut -> one result each."""
        self._tokenize = tokenize
        self._waiting: dict[tuple[asyncio.AbstractEventLoop, str | None, str], list[Waiting]] = {}

    async def encode(self, texts: Sequence[str], prompt: str | None, cut: str) -> list[Encoded]:
        """Return texts tokenized, in their order."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Encoded]] = loop.create_future()
        key = (loop, prompt, cut)
        if (waiting := self._waiting.get(key)) is None:
            waiting = self._waiting[key] = []
            loop.call_soon(self._tokenize_all, key)
        waiting.append((texts, future))
        return await future

    def _tokenize_all(self, key: tuple[asyncio.AbstractEventLoop, str | None, str]) -> None:
        _, prompt, cut = key
        waiting = [request for request in self._waiting.pop(key) if not request[1].done()]
        try:
            encoded = self._tokenize([text for texts, _ in waiting for text in texts], prompt, cut)
        except BaseException as error:  # also a tokenizer that panics: the requests would wait for ever
            if len(waiting) == 1:
                waiting[0][1].set_exception(error)
                return
            for request in waiting:  # so that the text at fault fails only its own request
                self._waiting[key] = [request]
                self._tokenize_all(key)
            return
        start = 0
        for texts, future in waiting:
            end = start + len(texts)
            future.set_result(encoded[start:end])
            start = end


class ServedModel:
    """A loaded model under a name."""

    def __init__(self, name: str, model: Model, folder: str = "") -> None:
        """`folder`: of the model; empty if it has none."""
        self.name, self.model, self.folder = name, model, folder
        self.created = int(time.time())
        self.task: Task[Any] | None = find_task(model)
        # Read by every request.
        self.dimension, self.vector, self.max_length = model.dimension, model.vector, model.max_length
        self._embedder = model.batch_embedder()
        self._default_prompt = model.vector.prompt_text(None, name)
        self.gatherer = TextGatherer(self.tokenize)
        self.abilities = find_abilities(model, self.task)
        budget, most = BUDGETS["cuda" if model.device.type == "cuda" else "cpu"]
        self._job_kinds = {
            "embed": JobKind(f"{name}: embed", partial(self._embed, normalize=self.vector.normalize), budget, most),
            "unscaled": JobKind(f"{name}: unscaled", partial(self._embed, normalize=False), budget, most),
            "task": JobKind(f"{name}: task", self._task_logits, budget),
            "fill": JobKind(f"{name}: fill", model.fill_prepared, budget),
            "hidden": JobKind(f"{name}: hidden", self._hidden, budget),
            "generate": JobKind(f"{name}: generate", _call_all, 1),
            "layers": JobKind(f"{name}: layers", _call_all, 1),
            "map": JobKind(f"{name}: map", _call_all, 1, at_once=1),
        }

    def job_kind(self, name: str) -> JobKind:
        """Return a kind of jobs, by its name.

        embed, unscaled and hidden: tokenized texts (`Encoded`) -> vectors as `model.embed` returns them, the same
        without normalization, states of the tokens; task: units -> logits; fill: texts with masks -> filled masks; the
        others: functions without arguments -> their results, for work that cannot share a batch."""
        return self._job_kinds[name]

    def expect_costs(self) -> None:
        """Assume what tokens of other kinds cost, beside those of `embed`, until batches of them are measured."""
        for name, kind in self._job_kinds.items():
            if not kind.measured:
                kind.cost = kind.least_cost = self._job_kinds["embed"].cost * (SLOW if name == "layers" else 1)

    def tokenize(
        self, texts: Sequence[str | tuple[str, str]], prompt: str | None = None, cut: str = "right"
    ) -> list[Encoded]:
        """Tokenize texts for `embed`; those that are too long are cut, and their `dropped` says by how much."""
        prefix = self._default_prompt if prompt is None else self.vector.prompt_text(prompt, self.name)
        prompted = [prefix + text for text in texts if isinstance(text, str)] if prefix else texts
        return self.model.required_tokenizer.encode_batch(prompted, self.max_length, cut)

    def encode_ids(self, rows: Sequence[Sequence[int]], prompt: str | None = None, cut: str = "right") -> list[Encoded]:
        """Return token ids as `tokenize` returns texts: special tokens are added where they are missing."""
        tokenizer = self.model.required_tokenizer
        sample = tokenizer.backend.encode("a")
        texts = [number for number, special in enumerate(sample.special_tokens_mask) if not special]
        first, last = texts[0], len(sample.ids) - texts[-1] - 1
        begin, end = sample.ids[:first], sample.ids[len(sample.ids) - last :]
        text = self._default_prompt if prompt is None else self.vector.prompt_text(prompt, self.name)
        prefix, room, encoded = tokenizer.encode_plain([text])[0].ids if text else [], self.max_length, []
        for row in rows:
            whole = [*row[:first]] == begin and [*row[len(row) - last :]] == end and len(row) >= first + last
            ids = [*prefix, *(row[first : len(row) - last] if whole else row)]
            dropped = max(0, len(ids) - (room - first - last))
            ids = ids[dropped:] if cut == "left" else ids[: len(ids) - dropped]
            kinds = [*sample.type_ids[:first], *[0] * len(ids), *sample.type_ids[len(sample.ids) - last :]]
            encoded.append(Encoded([*begin, *ids, *end], kinds if tokenizer.marks_special else None, dropped))
        return encoded

    @property
    def task_max_length(self) -> int:
        """Tokens of a sequence that the task's head reads."""
        return self.model.sequence_length(usual=self.model.task_length)

    @cached_property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    def _embed(self, encoded: Sequence[Encoded], normalize: bool) -> list[NDArray[np.float32]]:
        rows = self._embedder(encoded, normalize)
        check_finite(rows, self.name)
        return list(rows)

    def _hidden(self, encoded: Sequence[Encoded]) -> list[NDArray[np.float32]]:
        with self.model.evaluating(), torch.no_grad():
            batch = self.model.pack(encoded).to(self.model.device)
            states = self.model.network.encoder(batch).float().cpu()
            check_finite(states, self.name)
            return [rows.numpy() for rows in states.split(batch.lengths.tolist())]

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
        self.search_jobs = JobKind(f"{name}: search", _call_all, 1, at_once=1)  # its database answers one at a time
        self.query_prompt = index.state.prompts[1]  # name of the model's prompt for queries; empty: none
        self.map: tuple[object, Any] | None = None  # the last map, and its key


def _call_all(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    return [call() for call in calls]


class NotServed(Exception):
    """There is no model or index of that name."""


class Registry:
    """Models and indexes by name, in the order of the command line."""

    def __init__(self) -> None:
        self.models: dict[str, ServedModel] = {}
        self.indexes: dict[str, ServedIndex] = {}
        self.runs: dict[str, Path] = {}  # folders that hold runs and studies

    def put_model(self, served: ServedModel) -> None:
        """Add a model, or replace the one of its name."""
        self.models = {**self.models, served.name: served}

    def drop_model(self, name: str) -> None:
        """Remove a model."""
        self.models = {key: served for key, served in self.models.items() if key != name}

    def put_index(self, served: ServedIndex) -> None:
        """Add an index, or replace the one of its name."""
        self.indexes = {**self.indexes, served.name: served}

    def model(self, name: str | None = None, ability: str | None = None) -> ServedModel:
        """Return a model by name; without one, the first with an ability.

        NotServed if there is none of that name; UserError if it lacks the ability."""
        able = [served for served in self.models.values() if ability is None or ability in served.abilities]
        if name is None:
            if able:
                return able[0]
            what = f" that can {ABILITIES[ability]}" if ability else ""
            raise UserError(f"model: no model{what} is served here; served: {listed(self.models) or 'none'}")
        if name not in self.models:
            raise NotServed(f"model: '{name[:60]}' is not served here; {suggest(name[:60], self.models)}")
        served = self.models[name]
        if ability is None or ability in served.abilities:
            return served
        alternatives = f"these can: {listed(model.name for model in able)}" if able else "no served model can"
        raise UserError(f"model: '{name}' cannot {ABILITIES[ability]}; {alternatives}")

    def index(self, name: str | None = None) -> ServedIndex:
        """Return an index by name; without one, the first."""
        if name is None:
            if not self.indexes:
                raise UserError("index: no index is served here; start the server with the folder of one")
            return next(iter(self.indexes.values()))
        if name not in self.indexes:
            raise NotServed(f"index: '{name[:60]}' is not served here; {suggest(name[:60], self.indexes)}")
        return self.indexes[name]
