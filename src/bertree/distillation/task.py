"""The work behind `bertree distill --task`: a fine-tuned teacher is asked once, then its student learns the task.

What OUT receives is what `bertree finetune` writes; beside it lies teacher.safetensors, what the teacher said, and
metrics.json says how much of its score is kept.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bertree.comparison.run import beside
from bertree.console import bar, note
from bertree.distillation import teacher_scores
from bertree.distillation.student import chosen, halved, spread, warm
from bertree.distillation.teacher import Teacher
from bertree.distillation.teacher_scores import Said
from bertree.errors import UserError
from bertree.files import Json
from bertree.finetuning import config as configs
from bertree.finetuning.config import TaskDistillConfig, TaskDistillSettings
from bertree.finetuning.prepare import FineTuningJob, TaskExamples, prepare_run, read_examples, training_splits
from bertree.finetuning.run import Measured, check_place, evaluate_dev, run
from bertree.finetuning.tuner import EncodedSplit
from bertree.inference.load import Model, fresh, load
from bertree.interop.folder import Contents
from bertree.model.architecture import Architecture
from bertree.model.heads import ClassHead
from bertree.model.network import TOKEN_HEADS
from bertree.model.presets import PRESETS, preset
from bertree.objectives.distill_task import taught
from bertree.tasks.collate import logit_rows
from bertree.tasks.files import TaskFiles
from bertree.tasks.logits import effective_max_length, inference_autocast
from bertree.tasks.options import configure_task
from bertree.tasks.task import Logits, Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.tokenizer import Tokenizer
from bertree.train.device import Machine, be_deterministic

HALF = "half"


def teach(
    teacher: str,
    task: Task[Any],
    files: TaskFiles,
    student: str,
    out: Path,
    overrides: Sequence[str],
    *,
    seeds: int = 1,
    resume: bool = False,
    layers: str = "",
    tokenizer: Path | None = None,
    seconds: float = 0.0,
) -> int:
    """Teach a student a task with every seed and keep the best. The exit code.

    `seconds` are for timing the two at the end; 0: they are not compared."""
    config = configs.load_task_distill(overrides, task)
    task = configure_task(task, config.task)
    config, task = configs.with_crf(config, task)
    if config.top.crf:
        raise UserError("crf: scores whole sequences of tags, of which a teacher says nothing; leave it out")
    if config.distil.copies and not isinstance(task, TextTask):
        raise UserError(f"copies: rewrites texts and pairs, but {task.name} asks about parts of them; leave it out")
    if config.distil.copies and config.distil.alpha == 1:
        raise UserError("copies: only the teacher labels them, and with alpha=1 it is not asked; leave one of them out")
    be_deterministic(config.run.deterministic)
    machine = Machine.of(config.run)
    splits = training_splits(files, task)
    check_place(out, resume)
    guide = Teacher.of(teacher, task)
    if (other := guide.model.task.get("name", task.name)) != task.name:
        note(f"{teacher}: was fine-tuned for {other}, not for {task.name}")
    start = _student(student, guide, task, layers, tokenizer)
    gathered = read_examples(task, splits, config.train.held_out, guide.labels_for)
    _in_order(start, guide, gathered.task)
    told = f"{student}{f' of layers {layers}' if layers else ''} taught by {teacher}"
    config = replace(config, note=told, train=_fitted(config, gathered.task, start, guide))
    reader = start.needed_tokenizer
    shared = guide.check(gathered.task, student, reader, config.train.max_length)
    gathered, mask = _with_copies(gathered, config.distil, reader)
    distil, head = config.distil, gathered.task.head
    known = [str(Path(student).resolve()) if Path(student).exists() else student, layers, guide.digest]
    objective = taught(head, gathered.task.regression, distil.kind, distil.alpha, distil.temperature)
    unanswered = distil.alpha < 1
    job = prepare_run(start, student, gathered, out, config, machine, objective, unanswered=unanswered, identity=known)
    job = replace(job, tuner=replace(job.tuner, start=replace(job.tuner.start, reinitialize=not start.trained)))
    return run(
        job,
        seeds,
        resume,
        lambda job: _taught(job, guide, config, shared, mask),
        lambda job, best: _beside(teacher, job, best, seconds),
    )


def _beside(teacher: str, job: FineTuningJob, best: Json, seconds: float) -> bool:
    """What the student costs beside its teacher, measured on the dev split; whether it was."""
    task = job.tuner.task
    if seconds:
        teacher_scores = {task.metric: (job.teacher["scores"].get(task.metric), best.get(task.metric))}
        beside(teacher, job.out, job.parts["dev"].examples, teacher_scores, seconds, task, job.tuner.machine.device)
    return bool(seconds)


def _student(name: str, guide: Teacher, task: Task[Any], layers: str, tokenizer: Path | None) -> Model:
    """The model that is to learn: half of its teacher, a folder, or a preset that reads as its teacher does."""
    its = guide.model
    if name == HALF:
        if tokenizer is not None:
            raise UserError("--tokenizer: half of a teacher reads with its tokenizer; name a preset to choose another")
        return _warm(halved(its.architecture, bare=False), guide, task, layers)
    if name not in PRESETS or Path(name).exists():
        if layers:
            raise UserError(f"--layers: {name} has weights of its own; layers are for half and for presets")
        return load(name, tokenizer=tokenizer)
    if tokenizer is not None and layers:
        raise UserError("--layers: a teacher's layers know its own tokenizer only; leave out --tokenizer")
    if tokenizer is not None:
        return load(name, tokenizer=tokenizer)
    a = preset(name).architecture.with_values({"vocab_size": its.architecture.vocab_size})
    if layers:
        return _warm(a, guide, task, layers)
    note(f"{name}: is a preset with fresh weights; where shapes agree, --layers 1,3,... begins with the teacher's")
    made = fresh(a, {})
    made.tokenizer = its.tokenizer
    return made


def _warm(a: Architecture, guide: Teacher, task: Task[Any], layers: str) -> Model:
    """A student that begins with some of its teacher's layers and, where it has the same one, with its head."""
    its = guide.model
    if "bilstm" in (a.body, its.architecture.body):
        raise UserError("--layers, --student half: are for transformers; a bilstm has no layers to give or to take")
    if (a.width, a.heads) != (its.architecture.width, its.architecture.heads):
        raise UserError(
            f"--layers: the student is {a.width} wide with {a.heads} heads and its teacher {its.architecture.width} "
            f"with {its.architecture.heads}, so no layer fits; leave it out"
        )
    depths = its.architecture.layers
    picked = chosen(layers, depths, a.layers, "--layers") if layers else spread(depths, a.layers)
    made = fresh(a, {task.head: its.classes[task.head]}).network
    copied = warm(made, its.network, picked)
    if copied.misfit:
        raise UserError(f"--layers, --student half: {copied.misfit}; leave out --layers to begin with fresh weights")
    mine, theirs = made.heads[task.head].state_dict(), its.network.heads[task.head].state_dict()
    same = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    known = {"name": task.name} if same and its.network.top.trivial else {}
    return Model(Contents(a, made, its.tokenizer, list(guide.labels) if known else [], its.limit, known))


def _in_order(start: Model, guide: Teacher, task: Task[Any]) -> None:
    """Bring the classes of a head that came from the teacher into the task's order."""
    order = guide.order(task)
    if order is None or start.labels != list(guide.labels) or start.tokenizer is not guide.tokenizer:
        return
    head = start.network.heads[task.head]
    assert isinstance(head, ClassHead)
    with torch.no_grad():
        for tensor in (head.out.weight, head.out.bias):
            tensor.copy_(tensor[order].clone())
    start.labels[:] = task.labels


def _fitted(config: TaskDistillConfig, task: Task[Any], start: Model, guide: Teacher) -> configs.TrainSettings:
    """Where both must read the same windows, they are such as both can read."""
    most = start.architecture.max_positions
    if task.head in TOKEN_HEADS and not config.train.max_length:
        most = min(most, guide.model.architecture.max_positions)
    return replace(config.train, max_length=effective_max_length(config.train.max_length, task.max_length, most))


def _with_copies(given: TaskExamples, distil: TaskDistillSettings, reader: Tokenizer) -> tuple[TaskExamples, str]:
    """The training examples with those made up of them, and how a mask is spelled there."""
    if not distil.copies:
        return given, ""
    from bertree.distillation.augment import augmented

    mask = reader.special.get("mask") or reader.special.get("unk")
    if mask is None:
        raise UserError("copies: the student's tokenizer has no mask to put in place of words; leave them out")
    own = given.examples["train"]
    texts = [(e.text,) if e.pair is None else (e.text, e.pair) for e in own]
    rates = {"masking": distil.masking, "replacing": distil.replacing, "ngram": distil.ngram}
    # One set of copies for all seeds: the teacher is asked about them once.
    made = augmented(texts, distil.copies, 0, mask=mask, **rates)
    empty = own[0]._replace(gold=None)
    more = [empty._replace(id=f"copy {number}", text=t[0], pair=(*t, None)[1]) for number, t in enumerate(made)]
    return replace(given, examples={**given.examples, "train": [*own, *more]}), mask


def _taught(job: FineTuningJob, guide: Teacher, config: TaskDistillConfig, shared: bool, mask: str) -> FineTuningJob:
    """The job with what the teacher says about each unit: as it was kept, or asked now."""
    tuner, part = job.tuner, job.parts["train"]
    units = part.units if config.distil.alpha < 1 else []
    task, classes = tuner.task, tuner.task.classes
    distil = config.distil
    made = (distil.copies, distil.masking, distil.replacing, distil.ngram)
    known = (tuner.identity, task.labels, config.task, tuner.config.train.max_length, config.train.held_out, made)
    of = teacher_scores.identity([*known, shared, guide.longest(task), bool(units)])
    said = teacher_scores.read(job.out, of, [logit_rows(unit, task.head) for unit in units], classes, note)
    if said is None:
        said = _asked(job, guide, units, shared, mask)
        teacher_scores.write(job.out, said, of, classes)
    parts = dict(job.parts)
    if units:
        soft = [unit._replace(soft=rows) for unit, rows in zip(units, said.rows, strict=True)]
        parts["train"] = EncodedSplit(part.examples, soft)
    figure = said.figures.get(task.metric)
    worth = "" if figure is None else f", {task.metric.replace('_', ' ')} {100 * figure:.2f} on dev"
    lines = [f"taught by {guide.name}{worth}: {_told(config, job)}"]
    if not any(unit.answer is not None for unit in part.units):
        lines.append("no training example has a true answer, so all is learned from the teacher")
    if units:
        lines.append(f"its scores of {len(units):,} units are kept in {teacher_scores.FILE} ({said.bytes:,} bytes)")
    teacher = {"model": guide.name, "scores": said.figures, "bytes": said.bytes}
    tuner = replace(tuner, train=parts["train"])
    return replace(job, tuner=tuner, parts=parts, intro=[*job.intro, *lines], teacher=teacher)


def _told(config: TaskDistillConfig, job: FineTuningJob) -> str:
    """How the two answers are weighed, for people."""
    distil, regression = config.distil, job.tuner.task.regression
    ways = {"soft": f"softened at T = {distil.temperature:g}", "hard": "the likeliest", "mse": "plain scores"}
    way = "plain scores" if regression else ways[distil.kind]
    copies = f"; {distil.copies} copies of each example" if distil.copies else ""
    return f"{distil.alpha:g} of the true answers, {1 - distil.alpha:g} of its own ({way}){copies}"


def _asked(job: FineTuningJob, guide: Teacher, units: Sequence[Unit], shared: bool, mask: str) -> Said:
    """Ask it about the training units and the dev splits, in half precision on a GPU; then it leaves the GPU."""
    task, device = job.tuner.task, job.tuner.machine.device
    parts = {name: part for name, part in job.parts.items() if name != "train" or units}
    read = {name: part.units if shared else guide.units(task, part, mask) for name, part in parts.items()}
    found: dict[str, list[Logits]] = {}
    try:
        guide.model.to(device)
        with bar("asking the teacher", sum(map(len, read.values()))) as progress:
            for name, some in read.items():
                found[name] = guide.says(task, some, lambda: inference_autocast(device), progress.advance)
    except torch.OutOfMemoryError:
        raise UserError("the GPU's memory is full; ask the teacher on the CPU (device=cpu)") from None
    finally:
        guide.model.to("cpu")
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def measure(name: str) -> Measured:
        lines = task.predict(parts[name].examples, read[name], found[name])
        known = any(unit.answer is not None for unit in read[name])
        return lines, task.score(parts[name].examples, lines) if known else {}

    return Said(found.get("train", []), evaluate_dev(task, parts, measure)[1])
