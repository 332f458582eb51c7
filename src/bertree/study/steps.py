"""The steps of a study: each calls its verb and returns the figures of its result.

A step's folder holds the run of its verb. Where a verb resumes, a step that was killed continues with its run.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from bertree.comparison.info import find_point, info
from bertree.config.overrides import parse
from bertree.distillation.distill import distill
from bertree.embeddings.evaluate import evaluate_embeddings
from bertree.embeddings.train import train_embeddings
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.finetuning.evaluate import evaluate
from bertree.finetuning.finetune import finetune
from bertree.finetuning.store_evaluation import evaluate_on_store
from bertree.inference.load import Run, load
from bertree.inference.model import Model
from bertree.model import cost
from bertree.pretraining import recipe as recipes
from bertree.pretraining.plan import plan
from bertree.pretraining.pretrain import pretrain
from bertree.run_folder import MODEL
from bertree.study.measures import context_lengths, probe_pairs
from bertree.study.planned import PlannedStep, axes
from bertree.study.timing import read_documents, time_pairs, time_step
from bertree.text.records import read_records

RUN = "run"  # folder of the verb below that of the step
CARD = 12  # GB of memory, for the largest batch of training
ADDRESSES = 4  # candidates for the address of a text
SEED_STEP = 100  # between the fine-tuning seeds of two seeds of a study
NO_MODEL = "has made no model"  # message of a step that needs the model of a failed one
Figures = dict[str, float]


class Stopped(Exception):
    """A signal ended a step; its verb has saved what is needed to continue."""


def model_path(step: PlannedStep | None, folder: Path, otherwise: str) -> str:
    """Return the folder of a step's model; without a step, a preset or a folder."""
    if step is None:
        return otherwise
    path = folder / step.folder / RUN / MODEL
    if not path.is_dir():
        raise UserError(f"the step {step.step.key} {NO_MODEL}")
    return str(path)


def load_model(planned: PlannedStep, folder: Path) -> tuple[Model, str]:
    """Load the model of a step; a preset gets the store's tokenizer."""
    name = model_path(planned.model_step, folder, planned.model)
    return load(name, device=planned.device or "auto", tokenizer=planned.tokenizer, seed=planned.seed), name


def _pretrain(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    overrides = [*planned.settings, f"run.seed={planned.seed}", *_device(planned)]
    return _finish(pretrain(planned.recipe, store=planned.store, out=out, resume=out.exists(), overrides=overrides))


def _distill(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    teacher = model_path(planned.model_step, folder, planned.model)
    student = model_path(planned.student_step, folder, planned.student)
    overrides, step = [*planned.settings, *_device(planned)], planned.step
    if not step.task:
        overrides = [*overrides, f"run.seed={planned.seed}"]
        resume = out.exists()
        return _finish(
            distill(
                teacher, student=student, store=planned.store, out=out, resume=resume, seconds=0, overrides=overrides
            )
        )
    run = distill(
        teacher,
        student=student,
        task=step.task,
        data=planned.data[0],
        out=out,
        seeds=step.seeds,
        resume=out.exists(),
        seconds=0,
        overrides=[*overrides, f"run.seed={SEED_STEP * planned.seed}"],
    )
    return _task_figures(planned, run) | _numbers(run.metrics.get("distillation", {}))


def _finetune(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    run = finetune(
        model_path(planned.model_step, folder, planned.model),
        task=planned.step.task,
        data=planned.data[0],
        out=out,
        frozen=planned.step.frozen or None,
        seeds=planned.step.seeds,
        resume=out.exists(),
        tokenizer=planned.tokenizer,
        overrides=[*planned.settings, f"run.seed={SEED_STEP * planned.seed}", *_device(planned)],
    )
    return _task_figures(planned, run)


def _task_figures(planned: PlannedStep, run: Run) -> Figures:
    """Return the scores of a run on a task: over its seeds, but for those that diverged."""
    if run.signal is not None:
        raise Stopped(run.signal)
    results = run.metrics.get("seeds") or [run.metrics]
    learned = [_numbers(result) for result in results if not result.get("diverged")] or [_numbers(results[0])]
    names = sorted({name for result in learned for name in result})
    centre = median if planned.median else mean
    return {name: float(centre([result[name] for result in learned if name in result])) for name in names}


def _embeddings(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    run = train_embeddings(
        model_path(planned.model_step, folder, planned.model),
        data=planned.data,
        loss=planned.step.loss,
        out=out,
        resume=out.exists(),
        tokenizer=planned.tokenizer,
        overrides=[*planned.settings, f"run.seed={planned.seed}", *_device(planned)],
    )
    return _finish(run)


def _finish(run: Run) -> Figures:
    """Return the figures of a complete run."""
    if run.signal is not None:
        raise Stopped(run.signal)
    figures = _numbers(run.metrics)
    trained = [row for row in run.history if row.get("kind") == "train"]
    if speeds := [row["tokens_per_s"] for row in trained if "tokens_per_s" in row]:
        figures["tokens_per_s"] = float(median(speeds))
    if trained:
        last = _numbers(trained[-1])
        figures |= {f"training_{name}": last[name] for name in ("loss", "norm") if name in last}
        figures |= {"steps": last["step"], "tokens": last["tokens"], "skipped": last.get("skipped", 0.0)}
        figures["seconds_of_steps"] = last["seconds"]
    return figures


def _evaluate(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    step = planned.step
    model, name = load_model(planned, folder)
    if step.task:
        return _evaluate_task(planned, model)
    assert planned.store is not None
    figures: Figures = {}
    for objective in step.objectives:
        if step.probe and objective != "mlm" and not _has_learned(planned, model, objective):
            figures |= probe_pairs(model, objective, planned.store)
            continue
        scores = evaluate_on_store(model, name, objective, planned.store)
        figures |= {f"{objective}_{figure}": value for figure, value in _numbers(scores).items()}
    return figures


def _has_learned(planned: PlannedStep, model: Model, objective: str) -> bool:
    """Return whether a model was trained with an objective on sentence pairs."""
    source = planned.model_step
    if source is not None and source.step.do == "pretrain":
        return bool(recipes.load(source.recipe, source.settings).objective[objective])
    return "pair" in model.network.heads


def _evaluate_task(planned: PlannedStep, model: Model) -> Figures:
    step = planned.step
    if not planned.data:
        return _numbers(evaluate(model, task=step.task).metrics)
    file, options = planned.data[0], dict(map(_parse_setting, planned.settings))
    if step.task == "perplexity":
        texts = read_documents(file, bool(options.pop("lines", False)))
        return _numbers(model.perplexity(texts, **options).as_mapping())
    if step.task == "lambada":
        return _numbers(vars(model.last_words(file)))
    if step.task == "attribution":
        return attribution(model, [record for _, record in read_records(file)])
    return _numbers(evaluate(model, task=step.task, data=file, split=step.split or None, **options).metrics)


def attribution(model: Model, rows: Sequence[Json]) -> Figures:
    """Return how often the code of a text is the most likely one; or its address (`url`) among those of the next rows,
    and how often it is more likely than another."""
    if "url" not in rows[0]:
        named = model.attribute([row["text"] for row in rows])
        right = [row["code"] == attribution.codes[0].code for row, attribution in zip(rows, named, strict=True)]
        return {"accuracy": mean(right), "texts": float(len(rows))}
    ranks = []
    for number, row in enumerate(rows):
        others = {rows[(number + after) % len(rows)]["url"] for after in range(1, ADDRESSES)} - {row["url"]}
        (ranked,) = model.attribute(row["text"], given=[row["url"], *sorted(others)])
        best = {score.given: score.log_likelihood for score in reversed(ranked)}  # of all codes
        ranks.append([best[row["url"]] > best[other] for other in others])
    beaten = [win for rank in ranks for win in rank]
    return {"accuracy": mean(map(all, ranks)), "before_another": mean(beaten), "texts": float(len(rows))}


def _parse_setting(text: str) -> tuple[str, Any]:
    override = parse(text)
    return override.key, override.value


def _ensemble(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    models = [model_path(member, folder, "") for member in planned.members]
    task, split, device = planned.step.task, planned.step.split or None, planned.device or "auto"
    scores = evaluate(models, ensemble=True, task=task, data=planned.data[0], split=split, device=device)
    return _numbers(scores.metrics) | {"models": float(len(models))}


def _context(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    assert planned.model_step is not None
    own = [member.identity for member in planned.members].index(planned.model_step.identity)
    models = [model_path(member, folder, "") for member in planned.members]
    options = dict(map(_parse_setting, planned.settings))
    return context_lengths(models, own, planned.data[0], planned.device or "auto", **options)


def _sts(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    pooling, glove = [planned.step.pooling] if planned.step.pooling else [], planned.glove
    models = [] if glove else [load_model(planned, folder)[0]]
    gloves = [glove] if glove else []
    scores = evaluate_embeddings(models, data=planned.data, pooling=pooling, glove=gloves)
    encoder = scores.metrics["encoders"][0]
    figures: dict[str, float | None] = {}  # None: a correlation that is not defined, because all vectors are equal
    for full_name, values in (("average", {"all": encoder["average"]}), *encoder["sets"].items()):
        name = full_name.lower().removesuffix(" test")  # "STS-B test": the split that papers report
        figures[name] = values["all"]["spearman"]["cosine"]
        figures[f"{name}_pearson"] = values["all"]["pearson"]["cosine"]
        for mean_name in ("mean", "weighted_mean"):
            if mean_name in values:
                figures[f"{name}_{mean_name}"] = values[mean_name]["spearman"]["cosine"]
    return {name: math.nan if value is None else float(value) for name, value in figures.items()}


def _info(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    name = model_path(planned.model_step, folder, planned.model)
    if planned.recipe:
        name = str(recipes.load(planned.recipe, planned.settings).model["preset"])
    about, a = info(name, overrides=axes(planned)), find_point(name, axes(planned)).architecture
    counts = about["parameters"]
    return {
        "parameters": float(counts["total"]),
        "million_parameters": counts["total"] / 1e6,
        **{part: float(count) for part, count in counts.items() if part != "total"},
        **{part: float(count) for part, count in about["embedding_parameters"].items()},
        "weight_bytes": float(about["weight_bytes"]["float32"]),
        "flops_per_token": float(next(iter(about["flops_per_token"].values()))["forward"]),
        **{f"batch_{length}": float(cost.largest_batch(a, length, CARD)) for length in cost.LENGTHS},
        **{f"training_bytes_{length}": float(cost.training_bytes(a, 1, length)) for length in cost.LONG},
    }


def _plan(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    planned_run = plan(planned.model, **dict(map(_parse_setting, planned.settings)))
    figures: Figures = {"million_parameters": planned_run.parameters / 1e6}
    for stage, size in planned_run.paper.items():
        figures |= {f"paper{stage}_bytes": size, f"paper{stage}_gb": size / 1e9}
    for row in planned_run.rows:
        if row.mesh.tensor == planned_run.rows[0].mesh.tensor and f"peak{row.mesh.zero}_gb" not in figures:
            figures[f"peak{row.mesh.zero}_gb"] = row.peak.bytes.total / 1e9
    return figures


def _time(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    if planned.step.measure == "training" or planned.glove:
        return time_step(planned, None, out)
    return time_step(planned, load_model(planned, folder)[0], out)


def _pairs(planned: PlannedStep, folder: Path, out: Path) -> Figures:
    return time_pairs(planned, load_model(planned, folder)[0])


def _numbers(values: Json) -> Figures:
    return {name: float(value) for name, value in values.items() if type(value) in (int, float)}


def _device(planned: PlannedStep) -> list[str]:
    return [f"run.device={planned.device}"] if planned.device else []


STEPS: dict[str, Callable[[PlannedStep, Path, Path], Figures]] = {
    "pretrain": _pretrain,
    "distill": _distill,
    "finetune": _finetune,
    "embeddings": _embeddings,
    "evaluate": _evaluate,
    "ensemble": _ensemble,
    "context": _context,
    "sts": _sts,
    "info": _info,
    "plan": _plan,
    "time": _time,
    "pairs": _pairs,
}
