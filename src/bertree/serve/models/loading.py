"""Load what is to be served, warm it up, and load it again when its folder has changed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.config.default_model import resolve_model_path
from bertree.errors import UserError
from bertree.inference.load import choose_device, load
from bertree.search.database import DATABASE
from bertree.search.index import Index
from bertree.serve.models.registry import Registry
from bertree.serve.models.served import ServedIndex, ServedModel, unit_tokens
from bertree.serve.schedule.work import Job
from bertree.tasks.text import TextTask

WARM_UP = (1, 8, 32)  # words of the texts that a model reads before it is ready; and as many as it can read
Fingerprint = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True)
class Source:
    """What to serve: a model or an index, and where it is."""

    name: str  # by which it is served; empty: its own
    given: str  # a folder, or the name of a model
    device: str = "auto"
    precision: str = "float32"

    @property
    def is_index(self) -> bool:
        """Whether it is the folder of an index."""
        return (Path(self.given) / DATABASE).is_file()

    @property
    def folder(self) -> Path:
        """The folder, if it has one."""
        return Path(self.given) if self.is_index else resolve_model_path(self.given)

    def fingerprint(self) -> Fingerprint:
        """Return names, times, sizes and inodes of the files that a change of the folder changes.

        An index is read anew by every search, so only a new database counts."""
        if self.is_index:
            found = (self.folder / DATABASE).stat()
            return ((DATABASE, 0, 0, found.st_ino),)
        files = []
        try:
            for path in sorted(p for pattern in ("*", "*/*") for p in self.folder.glob(pattern)):
                if path.is_file():
                    state = path.stat()
                    files.append((str(path.name), state.st_mtime_ns, state.st_size, state.st_ino))
        except OSError:  # it is being replaced
            return ()
        return tuple(files)


def load_sources(sources: Sequence[Source]) -> Registry:
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
                raise UserError(f"{source.given}: another index is named '{found.name}'; give --name for each")
            registry.put_model(found.model)
            registry.put_index(found)
    return registry


def load_model(source: Source) -> ServedModel:
    """Load a model and warm it up."""
    model = load(source.given, device=choose_device(source.device), dtype=source.precision)
    folder = source.folder
    name = source.name or (model.name if folder.exists() else source.given)
    served = ServedModel(name, model, str(folder) if folder.exists() else "")
    if not served.does:
        raise UserError(f"{source.given}: has no tokenizer, so it cannot read texts")
    warm_up(served)
    return served


def load_index(source: Source, registry: Registry) -> ServedIndex:
    """Open an index with its model: a served one whose vectors are the same, or else its own, which is loaded."""
    folder = source.folder
    with Index.open(folder) as index:
        digest = index.state.digest
        model = next((m for m in registry.models.values() if m.model.digest == digest), None)
        path = "" if model else index.model_path
    if model is None:
        model = load_model(Source("", path, source.device, source.precision))
        if model.name in registry.models:  # another model of that name
            raise UserError(
                f"{source.given}: its model '{model.name}' has the name of another that is served; give that one "
                "another name (--name)"
            )
    return ServedIndex(
        source.name or folder.resolve().name, Index.open(folder, model.model), model, str(folder.resolve())
    )


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
