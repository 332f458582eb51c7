"""Distillation on a task: a fine-tuned teacher scores the examples once, then its student learns from the scores.

OUT receives what `bertree finetune` writes and teacher.safetensors, the teacher's scores; metrics.json says which share
of the teacher's score is kept.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertree.comparison.run import compare_to_teacher
from bertree.config.overrides import Override
from bertree.console import bar, note
from bertree.distillation import teacher_scores
from bertree.distillation.student import copy_weights, halve, parse_layers, spread_evenly
from bertree.distillation.teacher import Teacher
from bertree.distillation.teacher_scores import TeacherScores
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.finetuning import config as configs
from bertree.finetuning.config import TaskDistillConfig, TaskDistillSettings
from bertree.finetuning.left_to_right import with_layout, with_task_tokens
from bertree.finetuning.prepare import FineTuningJob, TaskExamples, prepare_run, read_examples, training_splits
from bertree.finetuning.seeds import Measurement, check_run_folder, evaluate_dev, run_seeds
from bertree.finetuning.tuner import EncodedSplit
from bertree.inference.load import Model, load, make_model, random_model
from bertree.inference.run import Run
from bertree.interop.contents import Contents
from bertree.model.architecture import Architecture, Transformer
from bertree.model.heads import ClassHead
from bertree.model.presets import PRESETS, preset
from bertree.objectives.distill_task import task_distillation_objective
from bertree.objectives.supervised import HEAD_KINDS
from bertree.scale.launch import Launch
from bertree.scale.world import World, join
from bertree.tasks.collate import logit_rows
from bertree.tasks.files import TaskFiles
from bertree.tasks.logits import effective_max_length, inference_autocast
from bertree.tasks.options import configure_task
from bertree.tasks.registry import with_model_layout
from bertree.tasks.task import Logits, Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.tokenizer import Tokenizer
from bertree.train.device import Placement, set_deterministic, uses_gpu

HALF = "half"


def distill_on_task(
    teacher: str,
    task: Task[Any],
    files: TaskFiles,
    student: str,
    out: Path,
    overrides: Sequence[str | Override],
    *,
    seeds: int = 1,
    resume: bool = False,
    layers: str = "",
    tokenizer: Path | None = None,
    seconds: float = 0.0,
    launch: Launch | None = None,
) -> Run:
    """Train a student on a task with its teacher's scores. `seconds` is the time for timing both at the end, or 0."""
    config = configs.load_task_distill(overrides, task)
    task = configure_task(task, config.task)
    config, task = configs.with_crf(config, task)
    _check_settings(config, task)
    with join(launch or Launch(), cuda=uses_gpu(config.run)) as world:
        lesson = world.check_together(
            lambda: _prepare(teacher, task, files, student, out, config, resume, layers, tokenizer, world)
        )
        world.check_same("model, data or settings", lesson.job.tuner.run_identity(config.run.seed))
        return run_seeds(
            lesson.job,
            seeds,
            resume,
            before=lambda job: _with_teacher_scores(replace(lesson, job=job)),
            after=lambda job, best: _compare(teacher, job, best, seconds),
        )


@dataclass(frozen=True)
class TaskLesson:
    """A prepared run and its teacher."""

    job: FineTuningJob
    guide: Teacher
    config: TaskDistillConfig
    shared: bool  # both read the same units
    mask: str  # the mask token in altered copies of the texts


def _prepare(
    teacher: str,
    task: Task[Any],
    files: TaskFiles,
    student: str,
    out: Path,
    config: TaskDistillConfig,
    resume: bool,
    layers: str,
    tokenizer: Path | None,
    world: World,
) -> TaskLesson:
    set_deterministic(config.run.deterministic)
    machine = Placement.from_settings(config.run)
    splits = training_splits(files, task)
    check_run_folder(out, resume)
    guide = Teacher.of(teacher, task)
    if (other := guide.model.task.get("name", task.name)) != task.name:
        note(f"{teacher}: was fine-tuned for {other}, not for {task.name}")
    start = with_task_tokens(_student(student, guide, task, layers, tokenizer))
    task = _layout(task, start, guide, config)
    examples = read_examples(task, splits, config.train.held_out, guide.labels_for)
    _reorder_classes(start, guide, examples.task)
    about = f"{student}{f' of layers {layers}' if layers else ''} taught by {teacher}"
    config = replace(config, note=about, train=_max_length_of_both(config, examples.task, start, guide))
    reader = start.required_tokenizer
    shared = guide.check(examples.task, student, reader, config.train.max_length)
    examples, mask = _add_copies(examples, config.distill, reader)
    distill, head = config.distill, examples.task.head
    identity = [str(Path(student).resolve()) if Path(student).exists() else student, layers, guide.digest]
    objective = task_distillation_objective(
        head, examples.task.regression, distill.kind, distill.alpha, distill.temperature
    )
    unanswered = distill.alpha < 1
    job = prepare_run(
        start,
        student,
        examples,
        out,
        config,
        machine,
        objective,
        unanswered=unanswered,
        identity=identity,
        world=world,
    )
    job = replace(job, tuner=replace(job.tuner, initial=replace(job.tuner.initial, reinitialize=not start.trained)))
    return TaskLesson(job, guide, config, shared, mask)


def _check_settings(config: TaskDistillConfig, task: Task[Any]) -> None:
    if task.head == "beam-span":
        raise UserError("head: beam finds the end of an answer given its start, so a teacher has no score for each end")
    if config.top.crf:
        raise UserError("crf: scores whole sequences of tags, for which a teacher has no scores; leave it out")
    if config.distill.copies and not isinstance(task, TextTask):
        raise UserError(f"copies: rewrites texts and pairs, but {task.name} is about parts of them; leave it out")
    if config.distill.copies and config.distill.alpha == 1:
        raise UserError("copies: only the teacher labels them, and alpha=1 leaves it out; leave one of them out")


def _compare(teacher: str, job: FineTuningJob, best: Json, seconds: float) -> bool:
    """Compare the student with its teacher on the dev split; return whether that was done."""
    task = job.tuner.task
    if seconds:
        scores = {task.metric: (job.teacher["scores"].get(task.metric), best.get(task.metric))}
        examples, device = job.splits["dev"].examples, job.tuner.machine.device
        compare_to_teacher(teacher, job.out, examples, scores, seconds, task, device)
    return bool(seconds)


def _student(name: str, guide: Teacher, task: Task[Any], layers: str, tokenizer: Path | None) -> Model:
    """The model that is to learn: half of its teacher, a folder, or a preset that reads as its teacher does."""
    its = guide.model
    if name == HALF:
        if tokenizer is not None:
            raise UserError("`tokenizer`: half of a teacher reads with its tokenizer; name a preset to choose another")
        return _warm(halve(its.architecture, bare=False), guide, task, layers)
    if name not in PRESETS or Path(name).exists():
        if layers:
            raise UserError(f"`layers`: {name} has weights of its own; layers are for half and for presets")
        return load(name, tokenizer=tokenizer)
    if tokenizer is not None and layers:
        raise UserError("`layers`: a teacher's layers know its own tokenizer only; leave out `tokenizer`")
    if tokenizer is not None:
        return load(name, tokenizer=tokenizer)
    a = preset(name).architecture.with_values({"vocab_size": its.architecture.vocab_size})
    if layers:
        return _warm(a, guide, task, layers)
    note(f"{name}: is a preset with fresh weights; where shapes agree, `layers=1,3,...` begins with the teacher's")
    made = random_model(a, {})
    made.tokenizer = its.tokenizer
    return made


def _layout(task: Task[Any], start: Model, guide: Teacher, config: TaskDistillConfig) -> Task[Any]:
    """Return the task in the layout of the student or, if the head scores tokens, in that of its teacher."""
    if not HEAD_KINDS[task.head].reads_tokens:
        return with_layout(task, start, config.task)
    its = with_model_layout(task, guide.model.task)
    for name in task.layout:
        if name in config.task and getattr(its, name) != getattr(task, name):
            raise UserError(
                f"{name}: {task.name} scores single tokens, so it must be the teacher's, {getattr(its, name)}"
            )
    return its


def _warm(a: Architecture, guide: Teacher, task: Task[Any], layers: str) -> Model:
    """Return a student that starts with some of the teacher's layers and, if it has the same one, its head."""
    its = guide.model
    teacher = its.architecture
    if not isinstance(a, Transformer) or not isinstance(teacher, Transformer):
        raise UserError("`layers`, `student=half`: are for transformers; a bilstm has no layers to copy")
    if (a.width, a.heads) != (teacher.width, teacher.heads):
        raise UserError(
            f"`layers`: the student is {a.width} wide with {a.heads} heads and its teacher {teacher.width} "
            f"with {teacher.heads}, so no layer fits; leave it out"
        )
    depths = teacher.layers
    picked = parse_layers(layers, depths, a.layers, "`layers`") if layers else spread_evenly(depths, a.layers)
    made = random_model(a, {task.head: its.classes[task.head]}).network
    copied = copy_weights(made, its.network, picked)
    if copied.misfit:
        raise UserError(f"`layers`, `student=half`: {copied.misfit}; leave out `layers` to start with random weights")
    mine, theirs = made.heads[task.head].state_dict(), its.network.heads[task.head].state_dict()
    same = mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    known = {"name": task.name} if same and its.network.readout.trivial else {}
    return make_model(Contents(a, made, its.tokenizer, list(guide.labels) if known else [], its.limit, known))


def _reorder_classes(start: Model, guide: Teacher, task: Task[Any]) -> None:
    """Put the classes of a head that came from the teacher into the task's order."""
    order = guide.order(task)
    if order is None or start.labels != list(guide.labels) or start.tokenizer is not guide.tokenizer:
        return
    head = start.network.heads[task.head]
    assert isinstance(head, ClassHead)
    with torch.no_grad():
        for tensor in head.out.parameters():
            tensor.copy_(tensor[order].clone())
    start.labels[:] = task.labels


def _max_length_of_both(
    config: TaskDistillConfig, task: Task[Any], start: Model, guide: Teacher
) -> configs.TrainSettings:
    """Return the settings with a maximum length that both models can read, if both must read the same windows."""
    most = start.architecture.longest_input
    if HEAD_KINDS[task.head].reads_tokens and not config.train.max_length:
        most = min(most, guide.model.architecture.longest_input)
    return replace(config.train, max_length=effective_max_length(config.train.max_length, task.max_length, most))


def _add_copies(given: TaskExamples, distill: TaskDistillSettings, reader: Tokenizer) -> tuple[TaskExamples, str]:
    """Return the examples with altered copies of the training texts, and the mask token used in the copies."""
    if not distill.copies:
        return given, ""
    from bertree.distillation.augment import augment

    mask = reader.special.get("mask") or reader.special.get("unk")
    if mask is None:
        raise UserError("copies: the student's tokenizer has no mask to put in place of words; leave them out")
    own = given.examples["train"]
    texts = [(e.text,) if e.pair is None else (e.text, e.pair) for e in own]
    rates = {"masking": distill.masking, "replacing": distill.replacing, "ngram": distill.ngram}
    # One set of copies for all seeds: the teacher is asked about them once.
    made = augment(texts, distill.copies, 0, mask=mask, **rates)
    empty = own[0]._replace(gold=None)
    more = [empty._replace(id=f"copy {number}", text=t[0], pair=(*t, None)[1]) for number, t in enumerate(made)]
    return replace(given, examples={**given.examples, "train": [*own, *more]}), mask


def _with_teacher_scores(lesson: TaskLesson) -> FineTuningJob:
    """Return the job with the teacher's scores of each unit, read from the file or computed now, on one rank."""
    job, guide, config = lesson.job, lesson.guide, lesson.config
    tuner, part = job.tuner, job.splits["train"]
    units = part.units if config.distill.alpha < 1 else []
    task, classes, world = tuner.task, tuner.task.classes, tuner.world
    distill = config.distill
    made = (distill.copies, distill.masking, distill.replacing, distill.ngram)
    known = (tuner.identity, task.labels, config.task, tuner.config.train.max_length, config.train.held_out, made)
    identity = teacher_scores.identity_of([*known, lesson.shared, guide.longest(task), bool(units)])
    sizes = [logit_rows(unit, task.head) for unit in units]

    def read_or_ask() -> TeacherScores:
        said = teacher_scores.read(job.out, identity, sizes, classes)
        if said is None:
            said = _ask_teacher(lesson, units)
            teacher_scores.write(job.out, said, identity, classes)
        return said

    def read() -> TeacherScores:
        said = teacher_scores.read(job.out, identity, sizes, classes)
        if said is None:
            raise UserError(f"{job.out / teacher_scores.FILE}: rank 0 has written it, but it is not here")
        return said

    asked = world.check_together(lambda: read_or_ask() if world.is_first else None)
    said = world.check_together(lambda: asked or read())
    parts = dict(job.splits)
    if units:
        soft = [unit._replace(soft=rows) for unit, rows in zip(units, said.rows, strict=True)]
        parts["train"] = EncodedSplit(part.examples, soft)
    figure = said.figures.get(task.metric)
    worth = "" if figure is None else f", {task.metric.replace('_', ' ')} {100 * figure:.2f} on dev"
    lines = [f"taught by {guide.name}{worth}: {_describe_mix(config, job)}"]
    if not any(unit.answer is not None for unit in part.units):
        lines.append("no training example has a label, so everything is learned from the teacher")
    if units:
        lines.append(f"its scores of {len(units):,} units are in {teacher_scores.FILE} ({said.bytes:,} bytes)")
    teacher = {"model": guide.name, "scores": said.figures, "bytes": said.bytes}
    tuner = replace(tuner, train=parts["train"])
    return replace(job, tuner=tuner, splits=parts, intro=[*job.intro, *lines], teacher=teacher)


def _describe_mix(config: TaskDistillConfig, job: FineTuningJob) -> str:
    """Describe how labels and teacher are weighted."""
    distill, regression = config.distill, job.tuner.task.regression
    ways = {"soft": f"softened at T = {distill.temperature:g}", "hard": "the likeliest", "mse": "plain scores"}
    way = "plain scores" if regression else ways[distill.kind]
    copies = f"; {distill.copies} copies of each example" if distill.copies else ""
    return f"{distill.alpha:g} of the labels, {1 - distill.alpha:g} of its scores ({way}){copies}"


def _ask_teacher(lesson: TaskLesson, units: Sequence[Unit]) -> TeacherScores:
    """Compute the teacher's scores of the training units and dev splits, then move it off the GPU."""
    job, guide = lesson.job, lesson.guide
    task, device = job.tuner.task, job.tuner.machine.device
    parts = {name: part for name, part in job.splits.items() if name != "train" or units}
    read = {name: part.units if lesson.shared else guide.units(task, part, lesson.mask) for name, part in parts.items()}
    found: dict[str, list[Logits]] = {}
    try:
        guide.model.to(device)
        with bar("asking the teacher", sum(map(len, read.values()))) as progress:
            for name, some in read.items():
                found[name] = guide.logits_of(task, some, lambda: inference_autocast(device), progress.advance)
    except torch.OutOfMemoryError:
        raise UserError("the GPU's memory is full; ask the teacher on the CPU (device=cpu)") from None
    finally:
        guide.model.to("cpu")
        if device.type == "cuda":
            torch.cuda.empty_cache()

    def measure(name: str) -> Measurement:
        lines = task.predict(parts[name].examples, read[name], found[name])
        known = any(unit.answer is not None for unit in read[name])
        return lines, task.score(parts[name].examples, lines) if known else {}

    return TeacherScores(found.get("train", []), evaluate_dev(task, parts, measure)[1])
