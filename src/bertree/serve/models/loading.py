"""Load what is to be served, warm it up, and load it again when its folder has changed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bertree.config.default_model import resolve_model_path
from bertree.errors import UserError
from bertree.inference.load import choose_device, load
from bertree.inference.model import Model
from bertree.search.database import DATABASE
from bertree.search.postgres.choice import AnyIndex, open_index
from bertree.search.postgres.place import SCHEMA, TABLE, Place, is_address
from bertree.serve.models.registry import Registry
from bertree.serve.models.served import ServedIndex, ServedModel, unit_tokens
from bertree.serve.schedule.work import Job
from bertree.tasks.text import TextTask

WARM_UP = (1, 8, 32)  # words of the texts that a model reads before it is ready; and as many as it can read
Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class ServedSource:
    """What to serve: a model or an index, and where it is."""

    name: str  # by which it is served; empty: its own
    given: str = field(repr=False)  # a folder, the name of a model, or the address of a database, maybe with a password
    device: str = "auto"
    precision: str = "float32"
    schema: str = SCHEMA  # in the database
    table: str = TABLE

    @property
    def is_index(self) -> bool:
        """Whether it is an index: the folder of one, or a database."""
        return is_address(self.given) or (Path(self.given) / DATABASE).is_file()

    @property
    def shown(self) -> str:
        """What messages call it."""
        return str(Place(self.given, self.schema, self.table)) if is_address(self.given) else self.given

    @property
    def index_name(self) -> str:
        """The name by which an index is served: the given one, or that of its folder or table."""
        return self.name or (self.table if is_address(self.given) else Path(self.given).resolve().name)

    def open_index(self, model: Model | None = None) -> AnyIndex:
        """Open the index."""
        return open_index(self.given, model, self.schema, self.table)

    def fingerprint(self) -> Fingerprint:
        """Return names, times, sizes and inodes of the files that a change of the folder changes.

        An index is read anew by every search, so only a new one counts. Nothing, if it cannot be read now."""
        if is_address(self.given):
            return self._fingerprint_database()
        files = []
        try:
            if self.is_index:
                return ((DATABASE, 0, 0, (Path(self.given) / DATABASE).stat().st_ino),)
            folder = resolve_model_path(self.given)
            for path in sorted(p for pattern in ("*", "*/*") for p in folder.glob(pattern)):
                if path.is_file():
                    state = path.stat()
                    files.append((str(path.name), state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError:  # it is being replaced
            return ()
        return tuple(files)

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
        if not source.is_index:
            served = load_model(source)
            if served.name in registry.models:
                raise UserError(f"{source.given}: another model is named '{served.name}'; give --name for each")
            registry.put_model(served)
    for source in sources:
        if source.is_index:
            found = load_index(source, registry)
            if found.name in registry.indexes:
                raise UserError(f"{source.shown}: another index is named '{found.name}'; give --name for each")
            registry.put_model(found.model)
            registry.put_index(found)
    return registry


def load_model(source: ServedSource) -> ServedModel:
    """Load a model and warm it up."""
    model = load(source.given, device=choose_device(source.device), precision=source.precision)
    folder = resolve_model_path(source.given)
    name = source.name or (model.name if folder.exists() else source.given)
    served = ServedModel(name, model, str(folder) if folder.exists() else "")
    if not served.does:
        raise UserError(f"{source.given}: has no tokenizer, so it cannot read texts")
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
        model = load_model(ServedSource("", origin.model, source.device, source.precision))
        known = registry.models.get(model.name)
        if known is not None and (before is None or known is not before.model):
            raise UserError(
                f"{source.shown}: its model '{model.name}' has the name of another that is served; give that one "
                "another name (--name)"
            )
    return ServedIndex(source.index_name, source.open_index(model.model), model, source.open_index)


def sample_jobs(served: ServedModel) -> list[Job]:
    """Return jobs of a batch of short texts, to measure how fast a model is."""
    (encoded,) = served.tokenize([" ".join(["word"] * 24)])
    return [Job(len(encoded.ids), encoded)] * max(1, served.lane("embed").budget // len(encoded.ids))


def warm_up(served: ServedModel) -> None:
    """Compute texts of several lengths, so that no request pays for what happens only once."""
    longest = served.model.max_length
    texts = [" ".join(["word"] * count) for count in (*WARM_UP, longest)]
    if "embed" in served.does:
        lane = served.lane("embed")
        for encoded in served.tokenize(texts):
            lane.compute([encoded] * max(1, lane.budget // len(encoded.ids)))
    if "fill" in served.does:
        served.lane("fill").compute([served.model.prepare_masks("word [MASK]")])
    if "generate" in served.does:
        next(served.model.stream("word", tokens=1))
    if "entities" in served.does or "answer" in served.does:
        warm_up_task(served)
    if "predict" in served.does and isinstance(served.task, TextTask):
        pair = "word" if served.task.columns.pair or served.task.both_orders else None
        examples = [served.task.example(text, pair) for text in texts]
        units, _ = served.task.units(examples, served.model.required_tokenizer, served.task_max_length)
        for unit in units:
            served.lane("task").compute([unit] * max(1, min(32, 512 // unit_tokens(unit))))


def warm_up_task(served: ServedModel) -> None:
    """Compute a text with the head of a task that reads tokens."""
    assert served.task is not None
    example = served.task.parse({"text": "word", "question": "word", "context": "word"})
    units, _ = served.task.units([example], served.model.required_tokenizer, served.task_max_length)
    served.lane("task").compute(units)
