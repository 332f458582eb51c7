"""Train sentence vectors on pairs or triplets, or a cross-encoder on pairs: `bertree.train_embeddings`.

OUT receives what `bertree finetune` writes; its model/ makes vectors. Where Hugging Face knows the encoder,
sentence-transformers can read it too. With the loss `cross` a model that reads both texts at once is fine-tuned
instead, which is slower and better: good for reranking the best results of a search.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertree.config.overrides import Override, overrides_of, parse
from bertree.config.sections import RunSettings
from bertree.console import note
from bertree.embeddings import tuner
from bertree.embeddings.tuner import EmbeddingConfig, EmbeddingFineTuning
from bertree.errors import UserError
from bertree.finetuning import config as configs
from bertree.finetuning.execute import execute_job
from bertree.finetuning.job import EncodedJob, TaskJob, split_examples, with_layout, with_task_tokens
from bertree.inference.load import Run, choose_device, identify, load_or_take
from bertree.inference.model import Model
from bertree.interop.contents import Contents
from bertree.model.network import Network
from bertree.objectives.embedding import embedding_objective
from bertree.objectives.embedding_losses import CROSS, ROWS, MarginLoss, default_loss, loss_named
from bertree.search.rerank import check_cross_encoder, pair_score
from bertree.tasks import similarity_files as read_sentences
from bertree.tasks.similarity import SimilarityTask, cross_encoder_examples, examples_for_loss, score_range
from bertree.tasks.similarity_files import ColumnNames, SentenceExample
from bertree.tasks.task import Splits, configure_task
from bertree.tasks.text import TextTask
from bertree.text.memory import Rows, pair_fields, takes_rows
from bertree.train.metrics_log import Callback, calling

MARGIN = MarginLoss.name


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
    files: Splits
    train: Sequence[Sequence[SentenceExample]]  # for each source
    dev: Sequence[SentenceExample] | None


@takes_rows(data=pair_fields, dev=pair_fields, several=["data"])
def train_embeddings(
    model: str | Path | Model,
    *,
    data: str | Path | Sequence[str | Path] | Rows,
    loss: str | None = None,
    dev: str | Path | Rows | None = None,
    out: str | Path = "sentences",
    text: str | None = None,
    pair: str | None = None,
    negative: Sequence[str] = (),
    label: str | None = None,
    teacher: str | Path | Model | None = None,
    seeds: int = 1,
    resume: bool = False,
    tokenizer: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_save: Callback | None = None,
    **settings: Any,
) -> Run:
    """Train an encoder to make sentence vectors, or with `loss="cross"` a cross-encoder that reads both texts.

    `data` are folders or files of pairs with labels or scores, or of triplets, or rows in memory (tuples, dicts, a
    frame ...); `loss` is chosen by the data unless
    given; `dev` is a file to evaluate on; `text`, `pair`, `negative` and `label` name your columns. `teacher`: a
    cross-encoder that scores the triplets, for the loss `margin`. Settings are keywords (`epochs=1, batch=64,
    pooling="mean"`); `overrides` are the same as strings. Nothing is printed unless `progress=True`. `on_step`,
    `on_evaluation` and `on_save` are functions that get a `TrainingEvent` (docs/python.md).

    >>> run = bertree.train_embeddings("my-bert", data="snli", loss="ranking", dev="sts-dev.csv", out="my-sbert")
    >>> run.model.embed(["A text."])
    """
    paths = [Path(path) for path in ([data] if isinstance(data, str | Path) else data)]
    source = TrainingSource(paths, None if dev is None else Path(dev), ColumnNames(text, pair, label, tuple(negative)))
    all_overrides: list[str | Override] = [*overrides, *overrides_of(settings)]
    if teacher is not None and loss not in (None, MARGIN):
        raise UserError(f"teacher: is for the loss '{MARGIN}', not for '{loss}'")
    loss = MARGIN if teacher is not None else loss

    def build() -> TaskJob:
        named_loss = None if loss == CROSS else loss_named(loss or default_loss("pair"))
        initial, name = load_or_take(model, tokenizer=tokenizer)
        if named_loss is not None:  # report a mistake in a setting before any file is read
            tuner.load(all_overrides, SimilarityTask("sentence"), named_loss, initial.vector)
        if not initial.trained:
            note(f"{name}: is a preset with random weights, so everything is learned from these sentences alone")
        rows = read_rows(source, loss)
        if teacher is not None:
            rows = scored_rows(rows, teacher, run.device)
        resolved = str(model)
        if isinstance(model, Model):
            resolved = model.digest
        elif Path(model).exists():
            resolved = str(Path(model).resolve())
        identity = [resolved, rows.loss, source.columns.identity, *([] if teacher is None else [identify(teacher)])]
        job = cross_encoder_job if rows.loss == CROSS else vectors_job
        return job(initial, name, rows, all_overrides, identity)

    run = _run_settings(all_overrides)
    with calling(on_step, on_evaluation, on_save):
        return execute_job(build, out=out, run=run, seeds=seeds, resume=resume, progress=progress)


def _run_settings(overrides: Sequence[str | Override]) -> RunSettings:
    """Return the device that is set; which other settings there are depends on the data."""
    parsed = [parse(override) if isinstance(override, str) else override for override in overrides]
    devices = [str(override.value) for override in parsed if override.key in ("device", "run.device")]
    return RunSettings(device=devices[-1]) if devices else RunSettings()


def read_rows(source: TrainingSource, loss: str | None) -> TrainingRows:
    """Read the training rows and the dev rows, and choose the loss they are for if none is named."""
    named = replace(source.columns, wants=_wanted_column(loss))
    files = [read_sentences.find(path) for path in source.data]
    for path, splits in zip(source.data, files, strict=True):
        if "train" not in splits:
            raise UserError(f"{path}: has no training file; give the file itself with `data=FILE`")
    rows = [read_sentences.read(splits["train"], named) for splits in files]
    if loss is None:
        loss = default_loss(rows[0][0].kind)
        note(f"{source.data[0]}: holds {ROWS[rows[0][0].kind]}, so the loss is {loss}; choose another with `loss`")
    all_files: Splits = {"train": tuple(path for splits in files for path in splits["train"])}
    dev = (source.dev,) if source.dev else tuple(path for splits in files for path in splits.get("dev", ()))
    if not dev:
        return TrainingRows(loss, all_files, rows, None)
    all_files["dev"] = dev
    columns = named if source.dev is None or _has_columns(source.dev, named) else ColumnNames()
    wants = "score" if named.wants == "score" else columns.wants if source.dev is None else None
    wants = None if wants == "text" else wants  # the figures of the dev split need pairs
    return TrainingRows(loss, all_files, rows, read_sentences.read(dev, replace(columns, wants=wants)))


def scored_rows(rows: TrainingRows, teacher: str | Path | Model, device: str) -> TrainingRows:
    """Return a training row for each negative, with how much better the teacher finds the positive."""
    scorer, name = load_or_take(teacher, device=choose_device(device))
    check_cross_encoder(scorer)
    triplets = [example for part in rows.train for example in part if len(example.texts) > 2]
    if not triplets:
        file = rows.files["train"][0]
        raise UserError(f"{file}: no row has a negative for the teacher to compare; `index mine` finds them")
    pairs = list(dict.fromkeys((example.texts[0], text) for example in triplets for text in example.texts[1:]))
    note(f"{name}: scores {len(pairs):,} pairs")
    scores = {pair: pair_score(line, None) for pair, line in zip(pairs, scorer.predict(pairs), strict=True)}
    scored = []
    for example in triplets:
        anchor, positive, *negatives = example.texts
        best = scores[anchor, positive]
        scored += [example._replace(texts=(anchor, positive, n), gold=best - scores[anchor, n]) for n in negatives]
    return replace(rows, train=[scored])


def _wanted_column(loss: str | None) -> str | None:
    """How a column is read that could hold labels or scores."""
    reads = loss_named(loss).reads if loss not in (None, CROSS) else ()
    return next((kind for kind in ("label", "score", "text") if kind in reads), None)


def _has_columns(path: Path, named: ColumnNames) -> bool:
    """True if a file has all named columns; a dev file may be of another kind."""
    required = [name for name in (named.text, named.pair, named.label, *named.negatives) if name]
    return set(required) <= set(read_sentences.columns_of(path))


def vectors_job(
    initial: Model, name: str, rows: TrainingRows, overrides: Sequence[str | Override], identity: Sequence[str]
) -> TaskJob:
    """Return the job that trains vectors."""
    kind = loss_named(rows.loss)
    prompt = initial.vector.prompt_text(None)
    task = SimilarityTask(f"sentence-{kind.name}", loss=kind.name, regression="score" in kind.reads, prompt=prompt)
    config = tuner.load(overrides, task, kind, initial.vector)
    if "text" in kind.reads:
        _check_texts_alone(kind.name, initial, config, rows)
    train = [example for part in rows.train for example in examples_for_loss(part, kind)]
    task = task.with_labels(task.labels_in(train))
    task.check_training(train)
    task, range_line = _with_score_range(task, config, train)
    examples = {"train": train}
    if rows.dev is not None:
        unlabeled = rows.dev[0].kind == "label" and "label" not in kind.reads
        reader = loss_named(default_loss("pair")) if "text" in kind.reads else kind
        examples["dev"] = examples_for_loss(rows.dev, reader) if unlabeled else list(rows.dev)
    data = split_examples(task, rows.files, examples, config.train.held_out)
    task, dev = task.with_dev_kind(data.examples["dev"])
    data = replace(data, task=configure_task(task, config.task), examples={**data.examples, "dev": dev})
    pooling = tuner.pooling_of(config, initial.vector)
    if initial.vector.dense and pooling.dense != initial.vector.dense:
        note(f"{name}: its dense layers were trained on other vectors and are left out")
    width = pooling.width(initial.network.width)
    loss, dimensions = config.make_loss(kind), config.loss.dimensions or ()
    _check_widths(dimensions, width)
    length = ", of length 1" if pooling.normalize else ""
    truncated = f"; also truncated to {', '.join(map(str, dimensions))}" if dimensions else ""
    return TaskJob(
        initial=initial,
        initial_name=name,
        identity=identity,
        data=data,
        config=config,
        objective=embedding_objective(loss, dimensions),
        tuner_type=partial(EmbeddingFineTuning, pooling=pooling, concat=loss.classifier_parts()),
        intro=[f"loss {kind.name}; vectors: {pooling.pooling}{length}, {width:,} wide{truncated}{range_line}"],
        select_saved=_without_classifier,
    )


def _check_texts_alone(loss: str, initial: Model, config: EmbeddingConfig, rows: TrainingRows) -> None:
    """Raise an error if nothing tells two passes of a text apart; say what the figures are worth without dev rows."""
    if not initial.architecture.with_values(config.model).dropout:
        raise UserError(f"the loss '{loss}' learns from dropout, and this model has none; set `dropout=0.1`")
    if rows.dev is None:
        note("the held-out texts only find themselves; give pairs with scores as `dev` to see what is learned")


def _check_widths(dimensions: Sequence[int], width: int) -> None:
    if dimensions and max(dimensions) > width:
        raise UserError(f"settings: loss.dimensions: {max(dimensions)} is more than the {width} dimensions of a vector")
    if dimensions and width not in dimensions:
        note(f"dimensions: the full width, {width}, is not among them, so the last dimensions are not trained")


def _with_score_range(
    task: SimilarityTask, config: EmbeddingConfig, train: Sequence[SentenceExample]
) -> tuple[SimilarityTask, str]:
    """Return the task with the lowest and highest score, as set or in the data, and a line about it."""
    if not task.regression:
        return task, ""
    low, high = config.loss.low, config.loss.high
    if not low < high:
        low, high = score_range(train)
    if wrong := next((e for e in train if isinstance(e.gold, float) and not low <= e.gold <= high), None):
        raise UserError(f"{wrong.where}: the score {wrong.gold:g} does not lie between {low:g} and {high:g}")
    return replace(task, low=low, high=high), f"; scores from {low:g} to {high:g} are cosines from 0 to 1"


def _without_classifier(job: EncodedJob, network: Network) -> Contents:
    """Return the encoder and the pooling, without the classifier they were trained under. The MLM head of a frozen
    encoder is saved too, because it still fits."""
    initial = job.job.initial
    heads = {name: head for name, head in initial.network.heads.items() if name == "mask" and network.readout.frozen}
    readout = replace(network.readout, frozen=False)  # it was a choice of the run, not of the model
    features, vector = network.features, network.vector
    bare = Network(network.encoder, heads, readout=readout, features=features, vector=vector, width=network.width)
    return Contents(job.tuner.architecture, bare, initial.tokenizer, max_length=job.tuner.config.train.max_length)


def cross_encoder_job(
    initial: Model, name: str, rows: TrainingRows, overrides: Sequence[str | Override], identity: Sequence[str]
) -> TaskJob:
    """Return the job that fine-tunes a model of pairs, as `finetune` does."""
    pairs = [example for part in rows.train for example in part]
    named, train = cross_encoder_examples(pairs)
    config, configured = configs.configure(configs.load(overrides, named), named)
    initial = with_task_tokens(initial)
    task = with_layout(configured, initial, config.task)
    assert isinstance(task, TextTask)
    task = task.with_labels(task.labels_in(train))
    task.check_training(train)
    examples = {"train": train}
    if rows.dev is not None:
        kinds = [{"triplet": "pair"}.get(part[0].kind, part[0].kind) for part in (pairs, rows.dev)]
        if kinds[0] != kinds[1]:
            raise UserError(
                f"{rows.dev[0].file}: holds {ROWS[rows.dev[0].kind]}, but {pairs[0].file} {ROWS[pairs[0].kind]}"
            )
        examples["dev"] = cross_encoder_examples(rows.dev, task)[1]
    data = split_examples(task, rows.files, examples, config.train.held_out, lambda example: example.text)
    return TaskJob(initial=initial, initial_name=name, identity=identity, data=data, config=config)
