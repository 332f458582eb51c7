"""Load the models and indexes of a server, warm them up, and replace one whose folder has changed (hot swap).

A changed model is loaded and warmed up while the old one serves. Requests that have begun finish with the old model,
which is freed after the last of them. A folder that cannot be read leaves the old model in place.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertree.config.names import holds_model, resolve_model_path
from bertree.errors import UserError
from bertree.inference.load import choose_device, load
from bertree.inference.model import Model
from bertree.report.history import find_runs
from bertree.search.database import DATABASE
from bertree.search.index import AnyIndex, open_index
from bertree.search.postgres.location import SCHEMA, TABLE, TableLocation, is_address
from bertree.serve.served import Registry, ServedIndex, ServedModel, unit_tokens
from bertree.serve.token_queue import JobKind
from bertree.tasks.text import TextTask

WARM_UP = (1, 8, 32)  # words of the texts that a model reads before it is ready; and one text of its full length
Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class ServedSource:
    """A model or an index to serve: where it is, and how it is loaded."""

    path: str = field(repr=False)  # a folder, a preset, or the address of a database, which may contain a password
    name: str = ""  # by which it is served; empty: its own
    device: str = "auto"
    precision: str = "float32"
    schema: str = SCHEMA  # in the database
    table: str = TABLE

    @property
    def is_index(self) -> bool:
        """Whether it is an index: the folder of one, or a database."""
        return is_address(self.path) or (Path(self.path) / DATABASE).is_file()

    @property
    def holds_runs(self) -> bool:
        """Whether it is a folder with runs or studies, or that of one."""
        return not self.is_index and bool(find_runs("", Path(self.path)))

    @property
    def is_model(self) -> bool:
        """Whether it is a model: no index, and not a folder with runs alone."""
        return not self.is_index and (holds_model(resolve_model_path(self.path)) or not self.holds_runs)

    @property
    def shown(self) -> str:
        """Its name in messages, without a password."""
        return str(TableLocation(self.path, self.schema, self.table)) if is_address(self.path) else self.path

    @property
    def index_name(self) -> str:
        """The name by which an index is served: its own, or that of its folder or table."""
        return self.name or (self.table if is_address(self.path) else Path(self.path).resolve().name)

    def open_index(self, model: Model | None = None) -> AnyIndex:
        """Open the index."""
        return open_index(self.path, model, self.schema, self.table)

    def fingerprint(self) -> Fingerprint:
        """Return names, times, sizes and inodes of the files that a change of the folder changes.

        An index is read anew by every search, so only a new one counts. Nothing, if it cannot be read now."""
        if is_address(self.path):
            return self._fingerprint_database()
        try:
            if self.is_index:
                return ((DATABASE, 0, 0, (Path(self.path) / DATABASE).stat().st_ino),)
            if not self.is_model:  # runs are read anew by every request
                return ()
            folder = resolve_model_path(self.path)
            paths = sorted(p for pattern in ("*", "*/*") for p in folder.glob(pattern) if p.is_file())
            states = [(path.name, path.stat()) for path in paths]
            return tuple((name, state.st_mtime_ns, state.st_size, state.st_ino) for name, state in states)
        except OSError:  # it is being replaced
            return ()

    def _fingerprint_database(self) -> Fingerprint:
        """Another model has another fingerprint."""
        try:
            with self.open_index() as index:
                state = index.state
        except UserError:
            return ()
        return ((state.digest, state.dimension, 0, 0), *((prompt, 0, 0, 0) for prompt in state.prompts))


def load_sources(sources: Sequence[ServedSource]) -> Registry:
    """Load everything; an index brings its model if that is not served already."""
    registry = Registry()
    for source in sources:
        if source.holds_runs:
            name = source.name or Path(source.path).resolve().name
            if name in registry.runs:
                raise UserError(f"{source.path}: another folder is named '{name}'; give `name` for each")
            registry.runs[name] = Path(source.path).resolve()
        if source.is_model:
            served = load_model(source)
            if served.name in registry.models:
                raise UserError(f"{source.path}: another model is named '{served.name}'; give `name` for each")
            registry.put_model(served)
    for source in sources:
        if source.is_index:
            index = load_index(source, registry)
            if index.name in registry.indexes:
                raise UserError(f"{source.shown}: another index is named '{index.name}'; give `name` for each")
            registry.put_model(index.model)
            registry.put_index(index)
    return registry


def load_model(source: ServedSource) -> ServedModel:
    """Load a model and warm it up."""
    model = load(source.path, device=choose_device(source.device), precision=source.precision)
    folder, given = resolve_model_path(source.path), Path(source.path)
    in_run = given.exists() and folder != given  # RUN/model is served by the name of the run
    name = source.name or (given.resolve().name if in_run else model.name if folder.exists() else source.path)
    served = ServedModel(name, model, str(folder) if folder.exists() else "")
    if not served.abilities:
        raise UserError(f"{source.path}: has no tokenizer, so it cannot read texts")
    warm_up(served)
    return served


def load_index(source: ServedSource, registry: Registry, before: ServedIndex | None = None) -> ServedIndex:
    """Open an index with its model: a served one whose vectors are the same, or else its own, which is loaded.

    `before`: the index that this one replaces, with its model."""
    with source.open_index() as index:
        origin = index.state
    model = next((m for m in registry.models.values() if m.model.digest == origin.digest), None)
    if model is None:
        if not origin.model or not resolve_model_path(origin.model).exists():
            where = f"was at {origin.model}, which is not here" if origin.model else "is not recorded in it"
            raise UserError(f"{source.shown}: its model {where}; give the model too: bertree serve MODEL INDEX")
        model = load_model(ServedSource(path=origin.model, device=source.device, precision=source.precision))
        namesake = registry.models.get(model.name)
        if namesake is not None and (before is None or namesake is not before.model):
            raise UserError(
                f"{source.shown}: its model '{model.name}' has the name of another that is served; give that one "
                "another name (`name`)"
            )
    return ServedIndex(source.index_name, source.open_index(model.model), model, source.open_index)


def warm_up(served: ServedModel) -> None:
    """Compute texts of several lengths, so that no request pays for what happens only once, and measure the speed."""
    longest = served.model.max_length
    texts = [" ".join(["word"] * count) for count in (longest, *WARM_UP)]
    if "embed" in served.abilities:
        for encoded in served.tokenize(texts):
            _compute(served.job_kind("embed"), encoded, len(encoded.ids))
        served.expect_costs()
    if "fill" in served.abilities:
        masked = served.model.prepare_masks("word [MASK]")
        _compute(served.job_kind("fill"), masked, len(masked.encoded.ids))
    if "generate" in served.abilities:
        next(served.model.stream("word", tokens=1))
    if "entities" in served.abilities or "answer" in served.abilities:
        assert served.task is not None
        example = served.task.parse({"text": "word", "question": "word", "context": "word"})
        units, _ = served.task.units([example], served.model.required_tokenizer, served.task_max_length)
        _compute(served.job_kind("task"), units[0], unit_tokens(units[0]))
    if "predict" in served.abilities and isinstance(served.task, TextTask):
        pair = "word" if served.task.columns.pair or served.task.both_orders else None
        examples = [served.task.example(text, pair) for text in texts]
        units, _ = served.task.units(examples, served.model.required_tokenizer, served.task_max_length)
        for unit in units:
            _compute(served.job_kind("task"), unit, unit_tokens(unit))


def _compute(kind: JobKind, payload: Any, tokens: int) -> None:
    """Compute a batch of one payload, and measure it; the last measurement counts."""
    count, started = max(1, min(32, kind.budget // tokens)), time.perf_counter()
    kind.compute([payload] * count)
    kind.measured = False
    kind.measure(count * tokens, time.perf_counter() - started)


class Swapper:
    """Watches the folders of what is served."""

    def __init__(self, registry: Registry, sources: Sequence[ServedSource], report: Callable[..., Any]) -> None:
        """`report(event, **values)` is told what was swapped."""
        self.registry, self.sources, self._report = registry, list(sources), report
        self._loaded: dict[ServedSource, Fingerprint] = {source: source.fingerprint() for source in sources}
        self._seen = dict(self._loaded)
        self._requested = asyncio.Event()

    def request(self) -> None:
        """Have everything loaded again, changed or not."""
        self._loaded.clear()
        self._requested.set()

    async def watch(self, seconds: float) -> None:
        """Check for changes at an interval, and on request. `seconds`: the interval; 0: only on request."""
        while True:
            try:
                async with asyncio.timeout(seconds or None):
                    await self._requested.wait()
            except TimeoutError:
                pass
            requested = self._requested.is_set()
            self._requested.clear()
            await self.check(settled=requested)

    async def check(self, settled: bool = False) -> None:
        """Load again what has changed. `settled`: do not wait until a folder has stopped changing."""
        for source in self.sources:
            now = await asyncio.to_thread(source.fingerprint)
            if not now or now == self._loaded.get(source):
                continue
            if not settled and now != self._seen.get(source):  # it may not be complete yet
                self._seen[source] = now
                continue
            self._loaded[source] = self._seen[source] = now
            try:
                name = await asyncio.to_thread(self._load, source)
            except (UserError, OSError) as error:
                self._report("swap failed", name=self._name(source), reason=str(error))
            else:
                self._report("swapped", name=name)

    def _name(self, source: ServedSource) -> str:
        """Return the name that something is served by, or would be: its folder's."""
        return source.index_name if source.is_index else source.name or Path(source.path).name

    def _is_needed(self, model: ServedModel) -> bool:
        """Whether a model is a source, belongs to an index, or has been replaced by another of its name."""
        folders = {str(resolve_model_path(source.path)) for source in self.sources if not source.is_index}
        used = any(index.model is model for index in self.registry.indexes.values())
        return used or model.folder in folders or self.registry.models.get(model.name) is not model

    def _load(self, source: ServedSource) -> str:
        if source.is_index:
            old = self.registry.indexes.get(source.index_name)
            new = load_index(source, self.registry, old)
            self.registry.put_model(new.model)
            self.registry.put_index(new)
            if old is not None and not self._is_needed(old.model):
                self.registry.drop_model(old.model.name)
            return new.name
        served = load_model(source)
        before = self.registry.models.get(served.name)
        self.registry.put_model(served)
        for index in list(self.registry.indexes.values()):
            if index.model is before and before.model.digest == served.model.digest:
                again = index.open_again(served.model)
                self.registry.put_index(ServedIndex(index.name, again, served, index.open_again))
        return served.name
