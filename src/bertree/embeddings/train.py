"""The work behind `bertree sentence train`: read pairs or triplets, train an encoder to tell them apart by vectors.

What OUT receives is what `bertree finetune` writes; its model/ makes vectors; where Hugging Face knows the encoder,
sentence-transformers reads it too.
With the loss `cross` it is a model of pairs instead, as `bertree finetune` makes them: slower, better, and good for
looking again at the best a search has found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertree.config.overrides import Override, overrides_of
from bertree.console import note, showing
from bertree.embeddings import config as siamese_config
from bertree.embeddings.config import Siamese
from bertree.embeddings.tuner import EmbeddingFineTuning
from bertree.errors import UserError, suggest
from bertree.finetuning import config as configs
from bertree.finetuning.prepare import FineTuningJob, TaskExamples, prepare_run
from bertree.finetuning.seeds import check_run_folder, run_seeds
from bertree.finetuning.tuner import hold_out
from bertree.inference.load import load_or_take
from bertree.inference.model import Model
from bertree.inference.run import Run
from bertree.interop.folder import Contents
from bertree.model.comparison import parts_of
from bertree.model.network import Network
from bertree.objectives.embedding import siamese
from bertree.tasks.options import configure_task
from bertree.tasks.similarity import examples as siamese_make
from bertree.tasks.similarity import read as siamese_read
from bertree.tasks.similarity.examples import LOSSES, USUAL, shaped, span_of
from bertree.tasks.similarity.read import KINDS, Named, Sentences
from bertree.tasks.similarity.task import SentenceTask
from bertree.tasks.task import Splits
from bertree.tasks.text import TextTask
from bertree.train.device import Placement, set_deterministic

WANTS = {"softmax": "label", "cosine": "score"}  # how a column that could be either is read


@dataclass(frozen=True)
class Source:
    """Where sentences come from: files or folders, a file to measure on, and how the columns are called."""

    data: Sequence[Path]
    dev: Path | None = None
    named: Named = field(default_factory=Named)


@dataclass(frozen=True)
class Read:
    """What was found: the loss, and the rows of each split as files hold them."""

    loss: str
    splits: Splits
    train: Sequence[Sequence[Sentences]]  # for each source
    dev: Sequence[Sentences] | None


def train_embeddings(
    model: str | Path | Model,
    *,
    data: str | Path | Sequence[str | Path],
    loss: str | None = None,
    dev: str | Path | None = None,
    out: str | Path = "sentences",
    text: str | None = None,
    pair: str | None = None,
    negative: Sequence[str] = (),
    label: str | None = None,
    seeds: int = 1,
    resume: bool = False,
    tokenizer: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    **settings: Any,
) -> Run:
    """Train an encoder to make sentence vectors, or with `loss="cross"` a cross-encoder that reads both texts.

    `data` are folders or files of pairs with labels or scores, or of triplets; `loss` is chosen by the data unless
    given; `dev` is a file to evaluate on; `text`, `pair`, `negative` and `label` name your columns. Settings are
    keywords (`epochs=1, batch=64, pooling="mean"`); `overrides` are the same as strings. Nothing is printed unless
    `progress=True`.

    >>> run = bertree.train_embeddings("my-bert", data="snli", loss="ranking", dev="sts-dev.csv", out="my-sbert")
    >>> run.model.embed(["A text."])
    """
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    source = Source(paths, None if dev is None else Path(dev), Named(text, pair, label, tuple(negative)))
    with showing(progress):
        return _train(model, source, loss, Path(out), [*overrides, *overrides_of(settings)], seeds, resume, tokenizer)


def _train(
    model: str | Path | Model,
    source: Source,
    loss: str | None,
    out: Path,
    overrides: Sequence[str | Override],
    seeds: int,
    resume: bool,
    tokenizer: str | Path | None,
) -> Run:
    if loss is not None and loss not in LOSSES:
        raise UserError(f"--loss {loss}: unknown, {suggest(loss, LOSSES)}")
    check_run_folder(out, resume)
    start, name = load_or_take(model, tokenizer=tokenizer)
    if loss != "cross":  # a mistake in a setting is said before anything is read
        siamese_config.load(overrides, SentenceTask("sentence"), loss or "softmax", start.vector)
    if not start.trained:
        note(f"{name}: is a preset with random weights, so everything is learned from these sentences alone")
    given = read(source, loss)
    identity = (
        model.digest if isinstance(model, Model) else str(Path(model).resolve()) if Path(model).exists() else str(model)
    )
    known = [identity, given.loss, repr(source.named)]
    if given.loss == "cross":
        return run_seeds(_cross(name, start, given, out, overrides, known), seeds, resume)
    return run_seeds(vectors(name, start, given, out, overrides, known), seeds, resume)


def read(source: Source, loss: str | None) -> Read:
    """The rows, and the loss they are for where none is named."""
    named = replace(source.named, wants=WANTS.get(loss or ""))
    found = [siamese_read.find(path) for path in source.data]
    for path, some in zip(source.data, found, strict=True):
        if "train" not in some:
            raise UserError(f"{path}: has no training file; give the file itself with --data FILE")
    rows = [siamese_read.read(some["train"], named) for some in found]
    if loss is None:
        loss = USUAL[rows[0][0].kind]
        note(f"{source.data[0]}: holds {KINDS[rows[0][0].kind]}, so the loss is {loss}; choose another with --loss")
    splits: Splits = {"train": tuple(path for some in found for path in some["train"])}
    dev = (source.dev,) if source.dev else tuple(path for some in found for path in some.get("dev", ()))
    if dev:
        splits["dev"] = dev
        its = named if source.dev is None or _has(source.dev, named) else Named()
        wants = "score" if loss == "cosine" else its.wants if source.dev is None else None
        return Read(loss, splits, rows, siamese_read.read(dev, replace(its, wants=wants)))
    return Read(loss, splits, rows, None)


def _has(path: Path, named: Named) -> bool:
    """Whether a file has the columns that were named; one to measure on may be of another kind."""
    wanted = [name for name in (named.text, named.pair, named.label, *named.negatives) if name]
    return set(wanted) <= set(siamese_read.columns_of(path))


def vectors(
    model: str, start: Model, given: Read, out: Path, overrides: Sequence[str | Override], identity: Sequence[str]
) -> FineTuningJob:
    """A run that trains vectors, prepared."""
    loss = given.loss
    before = start.vector.before(None)
    task = SentenceTask(f"sentence-{loss}", loss=loss, regression=loss == "cosine", before=before)
    config = siamese_config.load(overrides, task, loss, start.vector)
    set_deterministic(config.run.deterministic)
    machine = Placement.from_settings(config.run)
    train = [example for rows in given.train for example in shaped(rows, loss)]
    task = task.with_labels(task.labels_in(train))
    task.check_training(train)
    task, told = _scaled(task, config, train)
    dev = given.dev
    if dev is not None and dev[0].kind == "label" and loss != "softmax":
        dev = shaped(dev, loss)
    examples = {"train": train, "dev": dev} if dev is not None else hold_out(train, config.train.held_out, task.group)
    task, examples["dev"] = task.judged_by(examples["dev"])
    held = len(examples["dev"]) if dev is None else 0
    gathered = TaskExamples(configure_task(task, config.task), given.splits, examples, held)
    options = config.loss
    objective = siamese(
        loss,
        margin=options.margin,
        distance=options.distance,
        scale=options.scale,
        symmetric=options.symmetric,
    )
    made = siamese_config.made(config, start.vector)
    if made.dense != start.vector.dense:
        note(f"{model}: its dense layers were trained on other vectors and are left out")
    concat = parts_of(options.concat) if loss == "softmax" else ()
    fine_tuning_type = partial(EmbeddingFineTuning, vector=made, concat=concat)
    job = prepare_run(
        start, model, gathered, out, config, machine, objective, identity=identity, fine_tuning_type=fine_tuning_type
    )
    length = ", of length 1" if made.normalise else ""
    how = f"loss {loss}; vectors: {made.pooling}{length}, {made.width(start.network.width):,} wide{told}"
    return replace(job, intro=[*job.intro, how], kept=_kept)


def _scaled(task: SentenceTask, config: Siamese, train: Sequence[Sentences]) -> tuple[SentenceTask, str]:
    """The ends of the scale of the scores, as given or as found, and what is said about it."""
    if task.loss != "cosine":
        return task, ""
    low, high = config.loss.low, config.loss.high
    if not low < high:
        low, high = span_of(train)
    if wrong := next((e for e in train if isinstance(e.gold, float) and not low <= e.gold <= high), None):
        raise UserError(f"{wrong.where}: the score {wrong.gold:g} does not lie between {low:g} and {high:g}")
    return replace(task, low=low, high=high), f"; scores from {low:g} to {high:g} are cosines from 0 to 1"


def _kept(job: FineTuningJob, network: Network) -> Contents:
    """The encoder and what makes vectors of its states; what it was trained under is left behind."""
    bare = Network(network.encoder, {}, network.top, network.features, None, network.vector, network.width)
    return Contents(job.tuner.architecture, bare, job.start.tokenizer, max_length=job.tuner.config.train.max_length)


def _cross(
    model: str, start: Model, given: Read, out: Path, overrides: Sequence[str | Override], identity: Sequence[str]
) -> FineTuningJob:
    """A run that trains a model of pairs, prepared: what `finetune` does with them."""
    rows = [example for some in given.train for example in some]
    task, train = siamese_make.crossed(rows)
    config = configs.load(overrides, task)
    with_options = configure_task(task, config.task)
    assert isinstance(with_options, TextTask)
    task = with_options
    set_deterministic(config.run.deterministic)
    machine = Placement.from_settings(config.run)
    task = task.with_labels(task.labels_in(train))
    task.check_training(train)
    if given.dev is not None:
        kinds = [{"triplet": "pair"}.get(some[0].kind, some[0].kind) for some in (rows, given.dev)]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"{given.dev[0].file}: holds {KINDS[given.dev[0].kind]}, but {rows[0].file} {KINDS[rows[0].kind]}"
            )
        examples = {"train": train, "dev": siamese_make.crossed(given.dev, task)[1]}
    else:
        examples = hold_out(train, config.train.held_out, lambda example: example.text)
    held = len(examples["dev"]) if given.dev is None else 0
    gathered = TaskExamples(task, given.splits, examples, held)
    return prepare_run(start, model, gathered, out, config, machine, identity=identity)
