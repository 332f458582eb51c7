"""`bertree embeddings train`: train an encoder on pairs or triplets so that its vectors can be compared.

OUT receives what `bertree finetune` writes; its model/ makes vectors. Where Hugging Face knows the encoder,
sentence-transformers can read it too. With the loss `cross` a model of pairs is fine-tuned instead, which is slower
and better: good for reranking the best results of a search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertree.config.overrides import Override, overrides_of, parse
from bertree.config.sections import RunSettings
from bertree.console import note, notes_shown, showing
from bertree.embeddings import config as embedding_config
from bertree.embeddings.config import EmbeddingConfig
from bertree.embeddings.tuner import EmbeddingFineTuning
from bertree.errors import UserError
from bertree.finetuning import config as configs
from bertree.finetuning.left_to_right import with_layout, with_task_tokens
from bertree.finetuning.prepare import FineTuningJob, TaskExamples, prepare_run
from bertree.finetuning.seeds import check_run_folder, run_seeds
from bertree.finetuning.tuner import hold_out
from bertree.inference.load import load_or_take
from bertree.inference.model import Model
from bertree.inference.run import Run
from bertree.interop.contents import Contents
from bertree.model.network import Network
from bertree.objectives.embedding import embedding_objective
from bertree.objectives.embedding_losses import CROSS, ROWS, default_loss, loss_named
from bertree.scale.launch import launched
from bertree.scale.world import World, join
from bertree.tasks.options import configure_task
from bertree.tasks.similarity import read as read_sentences
from bertree.tasks.similarity.examples import cross_encoder_examples, examples_for_loss, score_range
from bertree.tasks.similarity.read import ColumnNames, SentenceExample
from bertree.tasks.similarity.task import SimilarityTask
from bertree.tasks.task import Splits
from bertree.tasks.text import TextTask
from bertree.train.device import Placement, set_deterministic, uses_gpu


@dataclass(frozen=True)
class TrainingSource:
    """The training files or folders, a file to evaluate on, and the names of their columns."""

    data: Sequence[Path]
    dev: Path | None = None
    columns: ColumnNames = field(default_factory=ColumnNames)


@dataclass(frozen=True)
class TrainingRows:
    """The loss, and the rows of each split as the files hold them."""

    loss: str
    splits: Splits
    train: Sequence[Sequence[SentenceExample]]  # for each source
    dev: Sequence[SentenceExample] | None


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
    source = TrainingSource(paths, None if dev is None else Path(dev), ColumnNames(text, pair, label, tuple(negative)))
    launch = launched()
    resume = resume or launch.restarts > 0
    given: list[str | Override] = [*overrides, *overrides_of(settings)]
    with (
        showing(progress if launch.rank == 0 else False),
        notes_shown(launch.rank == 0),
        join(launch, cuda=_on_gpu(given)) as world,
    ):
        job = world.check_together(lambda: _prepare(model, source, loss, Path(out), given, resume, tokenizer, world))
        world.check_same("model, data or settings", job.tuner.run_identity(job.tuner.config.run.seed))
        return run_seeds(job, seeds, resume)


def _on_gpu(overrides: Sequence[str | Override]) -> bool:
    """Whether the run is computed on a GPU; other settings are read when the data have said which there are."""
    parsed = [parse(given) if isinstance(given, str) else given for given in overrides]
    devices = [str(override.value) for override in parsed if override.key in ("device", "run.device")]
    return uses_gpu(RunSettings(device=devices[-1])) if devices else uses_gpu(RunSettings())


def _prepare(
    model: str | Path | Model,
    source: TrainingSource,
    loss: str | None,
    out: Path,
    overrides: Sequence[str | Override],
    resume: bool,
    tokenizer: str | Path | None,
    world: World,
) -> FineTuningJob:
    known_loss = None if loss == CROSS else loss_named(loss or default_loss("pair"))
    check_run_folder(out, resume)
    start, name = load_or_take(model, tokenizer=tokenizer)
    if known_loss is not None:  # report a mistake in a setting before any file is read
        embedding_config.load(overrides, SimilarityTask("sentence"), known_loss, start.vector)
    if not start.trained:
        note(f"{name}: is a preset with random weights, so everything is learned from these sentences alone")
    rows = read_rows(source, loss)
    source_model = (
        model.digest if isinstance(model, Model) else str(Path(model).resolve()) if Path(model).exists() else str(model)
    )
    identity = [source_model, rows.loss, source.columns.identity]
    prepare = prepare_cross_encoder if rows.loss == CROSS else prepare_vectors
    return prepare(name, start, rows, out, overrides, identity, world)


def read_rows(source: TrainingSource, loss: str | None) -> TrainingRows:
    """Read the training rows and the dev rows, and choose the loss they are for if none is named."""
    named = replace(source.columns, wants=_wanted_column(loss))
    found = [read_sentences.find(path) for path in source.data]
    for path, some in zip(source.data, found, strict=True):
        if "train" not in some:
            raise UserError(f"{path}: has no training file; give the file itself with `data=FILE`")
    rows = [read_sentences.read(some["train"], named) for some in found]
    if loss is None:
        loss = default_loss(rows[0][0].kind)
        note(f"{source.data[0]}: holds {ROWS[rows[0][0].kind]}, so the loss is {loss}; choose another with `loss`")
    splits: Splits = {"train": tuple(path for some in found for path in some["train"])}
    dev = (source.dev,) if source.dev else tuple(path for some in found for path in some.get("dev", ()))
    if not dev:
        return TrainingRows(loss, splits, rows, None)
    splits["dev"] = dev
    columns = named if source.dev is None or _has_columns(source.dev, named) else ColumnNames()
    wants = "score" if _wanted_column(loss) == "score" else columns.wants if source.dev is None else None
    return TrainingRows(loss, splits, rows, read_sentences.read(dev, replace(columns, wants=wants)))


def _wanted_column(loss: str | None) -> str | None:
    """How a column is read that could hold labels or scores."""
    reads = loss_named(loss).reads if loss not in (None, CROSS) else ()
    return next((kind for kind in ("label", "score") if kind in reads), None)


def _has_columns(path: Path, named: ColumnNames) -> bool:
    """True if a file has all named columns; a dev file may be of another kind."""
    wanted = [name for name in (named.text, named.pair, named.label, *named.negatives) if name]
    return set(wanted) <= set(read_sentences.columns_of(path))


def prepare_vectors(
    model: str,
    start: Model,
    rows: TrainingRows,
    out: Path,
    overrides: Sequence[str | Override],
    identity: Sequence[str],
    world: World | None = None,
) -> FineTuningJob:
    """Prepare a run that trains vectors."""
    kind = loss_named(rows.loss)
    regression = "score" in kind.reads
    prompt = start.vector.prompt_text(None)
    task = SimilarityTask(f"sentence-{kind.name}", loss=kind.name, regression=regression, prompt=prompt)
    config = embedding_config.load(overrides, task, kind, start.vector)
    set_deterministic(config.run.deterministic)
    machine = Placement.from_settings(config.run)
    train = [example for some in rows.train for example in examples_for_loss(some, kind)]
    task = task.with_labels(task.labels_in(train))
    task.check_training(train)
    task, told = _with_score_range(task, config, train)
    dev = rows.dev
    if dev is not None and dev[0].kind == "label" and "label" not in kind.reads:
        dev = examples_for_loss(dev, kind)
    if dev is not None:
        examples = {"train": train, "dev": list(dev)}
    else:
        examples = hold_out(train, config.train.held_out, task.group, rows.splits["train"][0])
    task, examples["dev"] = task.with_dev_kind(examples["dev"])
    held = len(examples["dev"]) if dev is None else 0
    read = TaskExamples(configure_task(task, config.task), rows.splits, examples, held)
    vector = embedding_config.pooling_of(config, start.vector)
    if start.vector.dense and vector.dense != start.vector.dense:
        note(f"{model}: its dense layers were trained on other vectors and are left out")
    width = vector.width(start.network.width)
    loss, dimensions = config.make_loss(kind), config.loss.dimensions or ()
    _check_widths(dimensions, width)
    job = prepare_run(
        start,
        model,
        read,
        out,
        config,
        machine,
        embedding_objective(loss, dimensions),
        identity=identity,
        fine_tuning_type=partial(EmbeddingFineTuning, vector=vector, concat=loss.classifier_parts()),
        world=world,
    )
    length = ", of length 1" if vector.normalize else ""
    truncated = f"; also truncated to {', '.join(map(str, dimensions))}" if dimensions else ""
    line = f"loss {kind.name}; vectors: {vector.pooling}{length}, {width:,} wide{truncated}{told}"
    return replace(job, intro=[*job.intro, line], select_saved=_without_classifier)


def _check_widths(dimensions: Sequence[int], width: int) -> None:
    if dimensions and max(dimensions) > width:
        raise UserError(f"settings: loss.dimensions: {max(dimensions)} is more than the {width} places of a vector")
    if dimensions and width not in dimensions:
        note(f"dimensions: the full width, {width}, is not among them, so the last places of a vector are not trained")


def _with_score_range(
    task: SimilarityTask, config: EmbeddingConfig, train: Sequence[SentenceExample]
) -> tuple[SimilarityTask, str]:
    """Return the task with the lowest and highest score, given or found, and a line about it."""
    if not task.regression:
        return task, ""
    low, high = config.loss.low, config.loss.high
    if not low < high:
        low, high = score_range(train)
    if wrong := next((e for e in train if isinstance(e.gold, float) and not low <= e.gold <= high), None):
        raise UserError(f"{wrong.where}: the score {wrong.gold:g} does not lie between {low:g} and {high:g}")
    return replace(task, low=low, high=high), f"; scores from {low:g} to {high:g} are cosines from 0 to 1"


def _without_classifier(job: FineTuningJob, network: Network) -> Contents:
    """Return what is saved: the encoder and the pooling; a classifier it was trained under is not. The MLM head of a
    frozen encoder is, because it still fits."""
    kept = {name: head for name, head in job.start.network.heads.items() if name == "mask" and network.readout.frozen}
    readout = replace(network.readout, frozen=False)  # which was a choice of the run, not of the model
    bare = Network(network.encoder, kept, readout, network.features, None, network.vector, network.width)
    return Contents(job.tuner.architecture, bare, job.start.tokenizer, max_length=job.tuner.config.train.max_length)


def prepare_cross_encoder(
    model: str,
    start: Model,
    rows: TrainingRows,
    out: Path,
    overrides: Sequence[str | Override],
    identity: Sequence[str],
    world: World | None = None,
) -> FineTuningJob:
    """Prepare a run that fine-tunes a model of pairs, as `finetune` does."""
    given = [example for some in rows.train for example in some]
    task, train = cross_encoder_examples(given)
    config = configs.load(overrides, task)
    start = with_task_tokens(start)
    with_options = with_layout(configure_task(task, config.task), start, config.task)
    assert isinstance(with_options, TextTask)
    task = with_options
    set_deterministic(config.run.deterministic)
    machine = Placement.from_settings(config.run)
    task = task.with_labels(task.labels_in(train))
    task.check_training(train)
    if rows.dev is not None:
        kinds = [{"triplet": "pair"}.get(some[0].kind, some[0].kind) for some in (given, rows.dev)]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"{rows.dev[0].file}: holds {ROWS[rows.dev[0].kind]}, but {given[0].file} {ROWS[given[0].kind]}"
            )
        examples = {"train": train, "dev": cross_encoder_examples(rows.dev, task)[1]}
    else:
        examples = hold_out(train, config.train.held_out, lambda example: example.text, rows.splits["train"][0])
    held = len(examples["dev"]) if rows.dev is None else 0
    read = TaskExamples(task, rows.splits, examples, held)
    return prepare_run(start, model, read, out, config, machine, identity=identity, world=world)
