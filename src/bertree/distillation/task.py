"""Distillation on a task: fine-tuning whose student learns from a teacher's scores, computed once before the seeds.

OUT receives what `bertree finetune` writes, teacher.safetensors, the teacher's scores, and temperature.json, what a
temperature does to its answers; metrics.json holds the share of the teacher's score that the student keeps.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertree.comparison.compare import compare_to_teacher
from bertree.config.overrides import Override
from bertree.console import bar, note
from bertree.distillation.student import build_task_student, reorder_classes
from bertree.distillation.teacher import (
    SCORES_FILE,
    Teacher,
    TeacherScores,
    read_scores,
    temperature_effect,
    write_scores,
)
from bertree.errors import UserError
from bertree.files.atomic import write_atomically
from bertree.files.formats import Json, json_text
from bertree.finetuning import config as configs
from bertree.finetuning.config import TaskDistillConfig, TaskDistillSettings
from bertree.finetuning.evaluate import EncodedSplit, Measurement, evaluate_dev
from bertree.finetuning.execute import execute_job
from bertree.finetuning.job import (
    EncodedJob,
    TaskExamples,
    TaskJob,
    draw_examples,
    find_splits,
    read_examples,
    with_layout,
    with_task_tokens,
)
from bertree.inference.load import Run
from bertree.inference.model import Model
from bertree.objectives.distill_task import task_distillation_objective
from bertree.objectives.supervised import HEAD_KINDS
from bertree.report.temperature import read_temperature
from bertree.run_folder import TEMPERATURE
from bertree.tasks.batches import inference_autocast, logit_rows
from bertree.tasks.files import TaskFiles
from bertree.tasks.registry import with_model_layout
from bertree.tasks.task import Logits, Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.tokenizer import Tokenizer


def distill_on_task(
    teacher_path: str,
    task: Task[Any],
    files: TaskFiles,
    *,
    student: str,
    out: Path,
    overrides: Sequence[str | Override],
    seeds: int = 1,
    resume: bool = False,
    layers: str = "",
    tokenizer: Path | None = None,
    seconds: float = 0.0,
    progress: bool | None = None,
) -> Run:
    """Train a student on a task with its teacher's scores. `seconds` is the time for timing both at the end, or 0."""
    config, task = configs.configure(configs.load_task_distill(overrides, task), task)
    _check_settings(config, task)

    def build() -> TaskJob:
        splits = find_splits(files, task, config.train.ignore_dev)
        teacher = Teacher.load(teacher_path, task)
        if (learned := teacher.model.task.get("name", task.name)) != task.name:
            note(f"{teacher_path}: was fine-tuned for {learned}, not for {task.name}")
        model = with_task_tokens(build_task_student(student, teacher, task, layers, tokenizer))
        laid_out = _layout(task, model, teacher, config)
        data = read_examples(laid_out, splits, config.train.held_out, teacher.labels_for)
        reorder_classes(model, teacher, data.task)
        length = _max_length(config, data.task, model, teacher)
        shared = teacher.check(data.task, student, model.required_tokenizer, length)
        data = draw_examples(data, config.train, config.run.seed)  # before the copies, which are not drawn from
        data, mask = _add_copies(data, config.distill, model.required_tokenizer)
        about = f"{student}{f' of layers {layers}' if layers else ''} taught by {teacher_path}"
        settings = replace(config, note=about, train=replace(config.train, max_length=length))
        teaching = Teaching(teacher, settings, shared, mask)
        return TaskJob(
            initial=model,
            initial_name=student,
            identity=[str(Path(student).resolve()) if Path(student).exists() else student, layers, teacher.digest],
            data=data,
            config=settings,
            objective=task_distillation_objective(
                data.task.head,
                data.task.regression,
                config.distill.kind,
                config.distill.alpha,
                config.distill.temperature,
            ),
            redraw=not model.trained,
            keep_unlabeled=config.distill.alpha < 1,
            before_seeds=teaching.add_scores,
            after_seeds=lambda job, best: bool(seconds) and _compare(teacher_path, job, best, seconds),
        )

    return execute_job(build, out=out, run=config.run, seeds=seeds, resume=resume, progress=progress)


def _check_settings(config: TaskDistillConfig, task: Task[Any]) -> None:
    if task.head == "beam-span":
        raise UserError("head: beam finds the end of an answer given its start, so a teacher has no score for each end")
    if config.readout.crf:
        raise UserError("crf: scores whole sequences of tags, for which a teacher has no scores; leave it out")
    if config.distill.copies and not isinstance(task, TextTask):
        raise UserError(f"copies: rewrites texts and pairs, but {task.name} is about parts of them; leave it out")
    if config.distill.copies and config.distill.alpha == 1:
        raise UserError("copies: only the teacher labels them, and alpha=1 leaves it out; leave one of them out")


def _layout(task: Task[Any], student: Model, teacher: Teacher, config: TaskDistillConfig) -> Task[Any]:
    """Return the task in the layout of the student or, if the head scores tokens, in that of its teacher."""
    if not HEAD_KINDS[task.head].reads_tokens:
        return with_layout(task, student, config.task)
    as_teacher = with_model_layout(task, teacher.model.task)
    for name in task.layout:
        if name in config.task and getattr(as_teacher, name) != getattr(task, name):
            raise UserError(
                f"{name}: {task.name} scores single tokens, so it must be the teacher's, {getattr(as_teacher, name)}"
            )
    return as_teacher


def _max_length(config: TaskDistillConfig, task: Task[Any], student: Model, teacher: Teacher) -> int:
    """Return the maximum length: one that both models can read, if both must read the same windows."""
    shared = HEAD_KINDS[task.head].reads_tokens
    usual = min(task.max_length, teacher.model.max_length) if shared else task.max_length
    return student.sequence_length(config.train.max_length, usual)


def _add_copies(data: TaskExamples, settings: TaskDistillSettings, tokenizer: Tokenizer) -> tuple[TaskExamples, str]:
    """Return the examples with altered copies of the training texts, and the mask token used in the copies."""
    if not settings.copies:
        return data, ""
    from bertree.distillation.augment import augment

    mask = tokenizer.special.get("mask") or tokenizer.special.get("unk")
    if mask is None:
        raise UserError("copies: the student's tokenizer has no mask to put in place of words; leave them out")
    originals = data.examples["train"]
    texts = [(e.text,) if e.pair is None else (e.text, e.pair) for e in originals]
    rates = {"masking": settings.masking, "replacing": settings.replacing, "ngram": settings.ngram}
    # One set of copies for all seeds: the teacher scores them once.
    altered = augment(texts, settings.copies, 0, mask=mask, **rates)
    unlabeled = originals[0]._replace(gold=None)
    copies = [unlabeled._replace(id=f"copy {n}", text=t[0], pair=(*t, None)[1]) for n, t in enumerate(altered)]
    return replace(data, examples={**data.examples, "train": [*originals, *copies]}), mask


@dataclass(frozen=True)
class Teaching:
    """A teacher and how its scores are used."""

    teacher: Teacher
    config: TaskDistillConfig
    shared: bool  # teacher and student read the same units
    mask: str  # the mask token in altered copies of the texts

    def add_scores(self, job: EncodedJob) -> EncodedJob:
        """Return the job with the teacher's scores of each unit, read from the file or computed now, on one rank."""
        tuner, train, settings = job.tuner, job.splits["train"], self.config.distill
        units = train.units if settings.alpha < 1 else []
        scores = self._read_or_compute(job, units)
        splits = dict(job.splits)
        if units:
            scored_units = [unit._replace(teacher_logits=rows) for unit, rows in zip(units, scores.rows, strict=True)]
            splits["train"] = EncodedSplit(train.examples, scored_units)
        metric = tuner.task.metric
        figure = scores.figures.get(metric)
        on_dev = "" if figure is None else f", {metric.replace('_', ' ')} {100 * figure:.2f} on dev"
        lines = [f"taught by {self.teacher.name}{on_dev}: {self._describe_mix(tuner.task.regression)}"]
        if not any(unit.answer is not None for unit in train.units):
            lines.append("no training example has a label, so everything is learned from the teacher")
        if units:
            lines.append(f"its scores of {len(units):,} units are in {SCORES_FILE} ({scores.bytes:,} bytes)")
        kind = "mse" if tuner.task.regression else settings.kind
        used = settings.temperature if kind == "soft" and settings.alpha < 1 else None
        if effect := read_temperature(job.out):
            lines.append(effect.line(used))
        teacher = {"model": self.teacher.name, "scores": scores.figures, "bytes": scores.bytes}
        teacher |= {"kind": kind, "temperature": used}
        tuner = replace(tuner, train=splits["train"])
        return replace(job, tuner=tuner, splits=splits, intro=[*job.intro, *lines], teacher=teacher)

    def _read_or_compute(self, job: EncodedJob, units: Sequence[Unit]) -> TeacherScores:
        """Return the teacher's scores: rank 0 computes them unless they are in the run's folder, the others read."""
        tuner, task, settings, world = job.tuner, job.tuner.task, self.config.distill, job.tuner.world
        copies = (settings.copies, settings.masking, settings.replacing, settings.ngram)
        data = (
            tuner.identity,
            task.labels,
            self.config.task,
            tuner.config.train.max_length,
            self.config.train.held_out,
        )
        depends_on = (*data, copies, self.shared, self.teacher.longest(task), bool(units))
        identity = hashlib.sha256("\n".join(map(str, depends_on)).encode()).hexdigest()
        sizes = [logit_rows(unit, task.head) for unit in units]

        def read_or_compute() -> TeacherScores:
            scores = read_scores(job.out, identity, sizes, task.classes)
            if scores is None:
                scores = self._compute(job, units)
                write_scores(job.out, scores, identity, task.classes)
            return scores

        def read() -> TeacherScores:
            scores = read_scores(job.out, identity, sizes, task.classes)
            if scores is None:
                raise UserError(f"{job.out / SCORES_FILE}: rank 0 has written it, but it is not here")
            return scores

        first = world.check_together(lambda: read_or_compute() if world.is_first else None)
        return world.check_together(lambda: first or read())

    def _compute(self, job: EncodedJob, units: Sequence[Unit]) -> TeacherScores:
        """Compute the teacher's scores of the training units and dev splits, then move it off the GPU."""
        teacher, task, device = self.teacher, job.tuner.task, job.tuner.device_setup.device
        splits = {name: split for name, split in job.splits.items() if name != "train" or units}
        read = {n: split.units if self.shared else teacher.units(task, split, self.mask) for n, split in splits.items()}
        logits: dict[str, list[Logits]] = {}
        try:
            teacher.model.to(device)
            with bar("asking the teacher", sum(map(len, read.values()))) as progress:
                for name, own_units in read.items():
                    logits[name] = teacher.logits_of(
                        task, own_units, lambda: inference_autocast(device), progress.advance
                    )
        except torch.OutOfMemoryError:
            raise UserError("the GPU's memory is full; ask the teacher on the CPU (device=cpu)") from None
        finally:
            teacher.model.to("cpu")
            if device.type == "cuda":
                torch.cuda.empty_cache()

        def measure(name: str) -> Measurement:
            predictions = task.predict(splits[name].examples, read[name], logits[name])
            labeled = any(unit.answer is not None for unit in read[name])
            return predictions, task.score(splits[name].examples, predictions) if labeled else {}

        if not task.regression:
            used = self.config.distill.temperature
            effect = temperature_effect(task.head, task.labels, splits["dev"], read["dev"], logits["dev"], used)
            write_atomically(job.out / TEMPERATURE, json_text(asdict(effect)) + "\n")
        return TeacherScores(logits.get("train", []), evaluate_dev(task, splits, measure)[1])

    def _describe_mix(self, regression: bool) -> str:
        """Describe how labels and teacher are weighted."""
        settings = self.config.distill
        ways = {"soft": f"softened at T = {settings.temperature:g}", "hard": "the likeliest", "mse": "plain scores"}
        way = "plain scores" if regression else ways[settings.kind]
        copies = f"; {settings.copies} copies of each example" if settings.copies else ""
        return f"{settings.alpha:g} of the labels, {1 - settings.alpha:g} of its scores ({way}){copies}"


def _compare(teacher_path: str, job: EncodedJob, best: Json, seconds: float) -> bool:
    """Compare the student with its teacher on the dev split."""
    task = job.tuner.task
    scores = {task.metric: (job.teacher["scores"].get(task.metric), best.get(task.metric))}
    examples, device = job.splits["dev"].examples, job.tuner.device_setup.device
    spans = [results.get("intervals", {}).get(task.metric) for results in (job.teacher["scores"], best)]
    compare_to_teacher(
        teacher_path, job.out, examples, scores, seconds, task, device, intervals={task.metric: tuple(spans)}
    )
    return True
