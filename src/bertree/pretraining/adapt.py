"""Adapt a model to the text of a domain: `bertree.adapt`. Continued pretraining, measured before and after.

OUT receives what `bertree pretrain` writes, and
OUT/store/, corpus.json          the text as tokens of the model's tokenizer, and which files it came from
OUT/task-before/, task-after/    both models fine-tuned on a task, if one is named
OUT/metrics.json                 figures on held-out text and on the task, before and after
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from bertree.config.names import resolve_model_path
from bertree.config.overrides import Override, overrides_of
from bertree.console import note, renamed, say, showing
from bertree.data.prepare import prepare
from bertree.data.store import Store
from bertree.data.store_files import HEADER
from bertree.data.store_writer import remove_journal
from bertree.errors import UserError
from bertree.files.atomic import make_folders, write_into_folder
from bertree.files.formats import Json, json_text, read_json
from bertree.finetuning.finetune import finetune
from bertree.inference.load import Run, load
from bertree.inference.model import Model
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import adapted_recipe, build
from bertree.pretraining.held_out import held_out_questions
from bertree.pretraining.job import StoreJob, StoreTraining, Trainee, execute_store_job
from bertree.pretraining.recipe import Recipe
from bertree.report.run_page import write_run_report
from bertree.run_folder import CHECKPOINTS, MODEL, SCORES
from bertree.text.corpus import Corpus, CorpusOptions
from bertree.text.identity import tokenizer_hash
from bertree.text.memory import Rows, takes_rows, task_fields
from bertree.train.checkpoint import CheckpointFolder
from bertree.train.device_setup import DeviceSetup
from bertree.train.held_out import evaluate_questions
from bertree.train.metrics_log import Callback, calling

STORE, CORPUS, BEFORE, AFTER = "store", "corpus.json", "task-before", "task-after"
LARGE = 32_000_000  # bytes of text that are worth starting processes for
# 97.5 % quantiles of Student's t distribution for 1, 2, 3 ... degrees of freedom; beyond them nearly the normal one's.
T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@takes_rows(corpus=task_fields, data=task_fields)
def adapt(
    model: str | Path,
    corpus: str | Path | Rows,
    *,
    out: str | Path = "adapted",
    minutes: float = 0.0,
    epochs: float = 0.0,
    task: str | None = None,
    data: str | Path | Rows | None = None,
    text: str | None = None,
    pair: str | None = None,
    label: str | None = None,
    seeds: int = 3,
    task_settings: Sequence[str] = (),
    wrapped: bool = False,
    resume: bool = False,
    overrides: Sequence[str] = (),
    progress: bool | None = None,
    on_step: Callback | None = None,
    on_evaluation: Callback | None = None,
    on_save: Callback | None = None,
    **settings: Any,
) -> Run:
    """Adapt a trained model to the text of a domain: continue its pretraining, and measure before and after.

    `model` is a model folder or `default`; `corpus` a folder or file of text, texts in memory, or a token store of the
    model's tokenizer. Training takes `minutes`, or `epochs` passes over the text; without either at most 3 passes and
    at most 30 minutes. With `task` and `data`, as in `finetune`, both models are fine-tuned with the same seeds and
    `task_settings` (`"epochs=2"`), and their scores are compared. `text` is the column of the text, in tables of the
    corpus and in the task's data. Settings are those of `pretrain` (`lr=1e-4`); `overrides` are the same as strings.
    `on_step`, `on_evaluation` and `on_save` are functions that get a `TrainingEvent` (docs/python.md).

    >>> run = bertree.adapt("my-bert", "corpus", out="adapted", minutes=20)
    >>> run.metrics["before"]["loss"], run.metrics["after"]["loss"]
    """
    out, path = Path(out), resolve_model_path(model)
    if not path.is_dir():
        raise UserError(f"{model}: no such model folder; to train a model from scratch: `bertree pretrain`")
    if (task is None) != (data is None):
        raise UserError("`task`: is scored on files; give `task` and `data` together")
    own_store = not (Path(corpus) / HEADER).is_file()
    store = out / STORE if own_store else Path(corpus)
    all_overrides: list[str | Override] = [*overrides, *overrides_of(settings)]
    unsized = adapted_recipe.unsized_recipe(str(path.resolve()), str(store.resolve()), minutes, epochs, all_overrides)

    def build_job(device_setup: DeviceSetup) -> StoreJob:
        initial = load(path)
        if own_store:
            options = CorpusOptions(field=text or "text", wrapped=wrapped)
            _prepare(initial, Path(corpus), store, options, resume)
        opened = Store.open(store)
        recipe = adapted_recipe.sized_recipe(
            unsized, initial, opened, device_setup.device.type, minutes=minutes, epochs=epochs, overrides=all_overrides
        )
        train, held_out = build.open_stores(recipe.data)
        return StoreJob(
            recipe=recipe,
            train=train,
            held_out=held_out,
            build_trainee=lambda: _build_trainee(recipe, train, initial, str(model)),
            before_steps=_measure_before,
            start=path,
        )

    with showing(progress):
        with calling(on_step, on_evaluation, on_save):
            run = execute_store_job(build_job, unsized, out=out, resume=resume)
        if not run.complete:
            return run
        metrics, best = read_json(out / SCORES), CheckpointFolder(out / CHECKPOINTS).best()
        before, lowest = metrics["before"]["loss"], best["loss"] if best else math.inf
        learned = lowest < before
        rows = [row for row in run.history if best and row.get("kind") == "eval" and row["step"] == best["step"]]
        metrics["after"] = _figures(rows[-1]) if learned else metrics["before"]
        write_into_folder(out / SCORES, json_text(metrics, 2) + "\n")
        if not learned:
            note(
                f"adaptation has learned nothing: the held-out loss was {before:.4f} before, and never lower after (at "
                f"best {lowest:.4f}), so {out / MODEL} is {model} as it was; adapt to more text, or set a lower lr"
            )
        if task is not None and learned:
            for name, start in ((BEFORE, path), (AFTER, out / MODEL)):
                say(f"{task}, {name.removeprefix('task-')} adaptation:")
                tuned = finetune(
                    start,
                    task=task,
                    data=data,
                    out=out / name,
                    text=text,
                    pair=pair,
                    label=label,
                    seeds=seeds,
                    resume=(out / name).is_dir(),
                    overrides=task_settings,
                )
                if not tuned.complete:
                    return replace(run, signal=tuned.signal, learned=tuned.learned)
            metrics["task"] = compare_runs(*(read_json(out / name / SCORES) for name in (BEFORE, AFTER)))
            write_into_folder(out / SCORES, json_text(metrics, 2) + "\n")
        write_run_report(out)
    return replace(run, learned=learned)


def _prepare(model: Model, corpus: Path, store: Path, options: CorpusOptions, resume: bool) -> None:
    """Write the token store, unless it is there; one of other text, from a run that saved nothing, is replaced."""
    finished, about = (store / HEADER).is_file(), store.parent / CORPUS
    tokenizer = store.parent / ".tokenizer"  # a fixed name: what a killed run leaves is removed by the next
    shutil.rmtree(tokenizer, ignore_errors=True)
    if finished:
        remove_journal(store)  # after a power cut it may be there again
    if finished and resume:
        return
    read = Corpus([str(corpus)], options)
    sources = [[renamed(source.path), source.size, source.modified] for source in read.sources]
    identity = {"tokenizer": tokenizer_hash(model.required_tokenizer), "options": asdict(options), "files": sources}
    if finished:
        if about.is_file() and read_json(about) == identity:
            return
        shutil.rmtree(store)
    with make_folders(store.parent, tokenizer):
        write_into_folder(about, json_text(identity) + "\n")  # before the store: with that, a resumed run is content
        model.required_tokenizer.save(tokenizer)
        workers, field = None if read.size > LARGE else 1, options.field
        try:
            prepared = prepare(str(corpus), tokenizer, store, workers=workers, text=field, wrapped=options.wrapped)
        except UserError:
            if not store.exists():  # otherwise it can be resumed, or another run writes it
                about.unlink(missing_ok=True)
            raise
    shutil.rmtree(tokenizer)
    for line in prepared.dropped:
        note(line)
    say(f"{corpus}: {prepared.store.documents:,} documents, {prepared.store.tokens:,} tokens")


def _build_trainee(recipe: Recipe, train: Store, initial: Model, name: str) -> Trainee:
    """Build the model with the head of its objective, and say what becomes of it."""
    contents, objective = build.build_model(recipe, train), pretraining_objective(**recipe.objective)
    intro = []
    if "mask" not in initial.network.heads:
        intro.append(f"{name}: has no head for this objective; the loss before adaptation is that of an untrained one")
    if initial.network.vector is not None:
        intro.append(
            f"{name}: its sentence vectors change with its layers; compare them before use (`bertree embeddings "
            "evaluate`), or train them again (`bertree embeddings train`)"
        )
    for head in set(initial.network.heads) - set(contents.network.heads):
        intro.append(f"{name}: its head '{head}' is left out; fine-tune the adapted model again")
    return Trainee(contents=contents, network=contents.network, objective=objective, evaluated=objective, intro=intro)


def _measure_before(training: StoreTraining) -> StoreTraining:
    """Evaluate the model on held-out text before its first step."""
    recipe, path = training.job.recipe, training.out / SCORES
    if path.is_file():
        return replace(training, loss_before=read_json(path)["before"]["loss"])
    figures = evaluate_questions(
        training.trainee.contents.network,
        held_out_questions(recipe, training.job.held_out, recipe.phases[-1], training.trainee.evaluated),
        training.device_setup.autocast,
    )
    write_into_folder(path, json_text({"before": _figures(figures)}, 2) + "\n")
    return replace(training, intro=[f"held-out loss before: {figures['loss']:.4f}"], loss_before=float(figures["loss"]))


def _figures(row: Json) -> Json:
    """Return the figures of an evaluation that are compared."""
    return {name: row[name] for name in ("loss", "perplexity", "accuracy") if name in row}


def compare_runs(before: Json, after: Json) -> Json:
    """Compare two fine-tuning runs by their metrics.json: the score of each seed, means, and the mean difference with
    the half width of its 95 % interval over seeds (None with one seed). A seed gives both runs the same order of
    examples and the same first weights of the head, so differences are taken seed by seed."""
    metric = str(before["metric"])
    pairs = [
        (float(first[metric]), float(second[metric]))
        for first, second in zip(before["seeds"], after["seeds"], strict=True)
        if not first["diverged"] and not second["diverged"]
    ]
    differences = [second - first for first, second in pairs]
    result: Json = {"name": before["task"], "metric": metric, "examples": before["examples"]["dev"]}
    for name, scores in zip(("before", "after"), zip(*pairs, strict=True), strict=False):
        result[name] = {"mean": mean(scores), "seeds": list(scores)}
    if not pairs:
        return result | {"difference": None, "uncertainty": None}
    return result | {"difference": mean(differences), "uncertainty": _half_width(differences)}


def _half_width(values: list[float]) -> float | None:
    """Return half of the 95 % interval of a mean; None for one value."""
    if len(values) < 2:
        return None
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    return quantile * stdev(values) / math.sqrt(len(values))
