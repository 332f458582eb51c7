"""Distillation on a token store: a student is pretrained with its teacher (DistilBERT).

OUT receives what `bertree pretrain` writes, and comparison.json: size, speed and held-out scores of both.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.comparison.run import compare_to_teacher
from bertree.config.default_model import resolve_model_path
from bertree.config.overrides import Override
from bertree.console import bar
from bertree.data.store import Store
from bertree.distillation import text_student
from bertree.distillation.teacher_cache import TeacherCache
from bertree.errors import UserError
from bertree.files.atomic import exclusive_lock, remove_leftovers
from bertree.files.formats import Json
from bertree.inference.load import Model, load
from bertree.inference.run import Run
from bertree.interop.huggingface.config import family_of_architecture
from bertree.interop.weights import weights_hash
from bertree.model import cost
from bertree.model.cost import describe_architecture
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build
from bertree.pretraining.recipe import DistillRecipe
from bertree.pretraining.run import PretrainingRun, check_run_folder, mask_share, run_files
from bertree.report.run import write_run_report
from bertree.run_folder import CHECKPOINTS, make_folders
from bertree.tasks.logits import inference_autocast
from bertree.train.device import Placement, set_deterministic
from bertree.train.held_out import evaluate_held_out
from bertree.train.schedule import TrainingPlan
from bertree.train.signals import catch_signals

TEXTS = 64  # held-out examples that teacher and student are timed on


def distill_on_text(
    teacher: str,
    student: str,
    overrides: Sequence[str | Override],
    out: Path,
    *,
    store: str | None = None,
    layers: str = "",
    cache: str = "",
    epochs: float = 0.0,
    resume: bool = False,
    seconds: float = 0.0,
) -> Run:
    """Pretrain a student with its teacher. `seconds` is the time for timing both at the end; 0: they are not timed."""
    if not math.isfinite(epochs) or epochs < 0:
        raise UserError(f"epochs: {epochs}: must be a positive number")
    teacher_path = str(Path(teacher).resolve()) if Path(teacher).exists() else teacher
    cache_path = str(Path(cache).resolve()) if cache else ""
    given = {"distil.teacher": teacher_path, "data.store": store, "distil.layers": layers, "distil.cache": cache_path}
    recipe = text_student.find_recipe(student, given, overrides)
    set_deterministic(recipe.run.deterministic)
    machine = Placement.from_settings(recipe.run)
    teacher_model = text_student.load_teacher(teacher, machine)
    train, held = build.open_stores(recipe.data)
    text_student.check(recipe, teacher_model, train, teacher)
    recipe = text_student.set_steps(recipe, student, epochs, train, teacher_model.max_length)
    check_run_folder(recipe, out, resume)
    training, intro = _build(recipe, machine, teacher_model, train, held, teacher)
    targets = _teacher_cache(training, teacher_model) if recipe.distil.cache else None
    with make_folders(out, out / CHECKPOINTS), exclusive_lock(out):
        remove_leftovers(run_files(out))
        if targets is not None:
            intro.append(_fill_cache(targets, training, teacher_model))
            training = replace(training, feed=targets)
        with catch_signals() as signals:
            run = training.run(out, resume, intro)
        if signals.caught is not None:  # it may have come while the model was written
            return replace(run, signal=signals.caught)
        if run.complete and seconds:
            _compare(training, teacher, out, seconds)
        return run


def _compare(training: PretrainingRun, teacher: str, out: Path, seconds: float) -> None:
    """Compare teacher and student on the same held-out text, for the report."""
    recipe, machine = training.recipe, training.machine
    stream = build.held_out_stream(recipe, training.held, recipe.phases[-1])
    loaded_teacher = load(teacher, device=str(machine.device))
    found = [
        evaluate_held_out(
            network, training.asked, stream, recipe.run.eval_tokens, lambda: inference_autocast(machine.device)
        )
        for network in (loaded_teacher.network, training.contents.network)
    ]
    scores = {name: [one[name] for one in found] for name in ("perplexity", "accuracy")}
    backend, count = loaded_teacher.required_tokenizer.backend, min(stream.examples, TEXTS)
    examples = [stream.example(k * stream.examples // count) for k in range(count)]
    texts = [backend.decode(_unmasked(example).tolist()) for example in examples]
    compare_to_teacher(teacher, out, [text for text in texts if text.strip()], scores, seconds, device=machine.device)
    write_run_report(out)


def _unmasked(example: Batch) -> torch.Tensor:
    """Return the ids of an example before masking."""
    masked, targets = PretrainingLabels.of(example).predicted
    return example.ids.index_put((masked,), targets)


def _build(
    recipe: DistillRecipe, machine: Placement, teacher: Model, train: Store, held: Store, name: str
) -> tuple[PretrainingRun, list[str]]:
    """Build the parts of the run, and describe it in a few lines."""
    contents, initial = text_student.build_student(recipe, teacher, train)
    a, its, wanted = contents.architecture, teacher.architecture, recipe.distil
    learner, objective = text_student.build_objective(
        wanted, text_student.term_weights(recipe), contents, teacher, recipe.run.seed
    )
    learner.to(machine.device)
    plan = TrainingPlan(recipe.phases, recipe.schedule, recipe.optim.lr)
    rates = [mask_share(recipe, phase) for phase in recipe.phases]
    scored = 2.0 if wanted.everywhere else 2 * max(rates)  # the teacher's scores take as much room as the student's
    feed = build.build_feed(recipe, plan, train, machine, a, scored)
    identity: Json = {
        "text in data.store": train.fingerprint,
        "held-out text": held.fingerprint,
        "teacher": weights_hash(resolve_model_path(name)),
    }
    flops: list[float] = []
    for phase, share in zip(recipe.phases, rates, strict=True):
        shown = cost.pretraining_forward_flops(its, phase.max_length, share)
        flops.append(cost.training_flops(a, phase.max_length, share) + (shown if objective.teacher else 0))
    intro = [
        f"teacher: {name}, {describe_architecture(its)}; {initial}",
        f"terms: {', '.join(f'{term} {weight:g}' for term, weight in objective.weights.items())}; "
        f"temperature {wanted.temperature:g}",
    ]
    try:
        family_of_architecture(a)
    except UserError as error:
        intro.append(f"the student will be in bertree's own format: {error}")
    asked = pretraining_objective(mlm=1.0)
    return PretrainingRun(recipe, machine, held, contents, feed, learner, objective, asked, flops, identity), intro


def _teacher_cache(training: PretrainingRun, teacher: Model) -> TeacherCache:
    """Return the cache of the teacher's likeliest tokens, checked to belong to this run."""
    recipe, feed = training.recipe, training.feed
    assert isinstance(recipe, DistillRecipe)
    reads = repr([(update.phase, update.first, update.batches) for update in feed.plan.updates])
    about = training.identity | {
        "temperature (distil.temperature)": recipe.distil.temperature,
        "distil.top_k": recipe.distil.top_k,
        "seed (run.seed)": recipe.run.seed,
        "data section": asdict(replace(recipe.data, store="", held_out="")),
        "phases section": [asdict(phase) for phase in recipe.phases],
        "growth of batches (schedule)": hashlib.sha256(reads.encode()).hexdigest(),
        "number of micro-batches (run.micro_tokens)": [len(streams) for streams in feed.streams],
        "compilation (run.compile)": training.machine.compiled,
    }
    return TeacherCache(Path(recipe.distil.cache), feed, recipe.distil.top_k, teacher.architecture.vocab_size, about)


def _fill_cache(targets: TeacherCache, training: PretrainingRun, teacher: Model) -> str:
    """Compute what is missing in the cache, free the teacher, and return a line about the cache."""
    recipe, machine = training.recipe, training.machine
    assert isinstance(recipe, DistillRecipe)
    if targets.missing:
        with bar("asking the teacher", targets.steps_missing) as progress:
            targets.make(
                teacher.network, recipe.distil.temperature, lambda: inference_autocast(machine.device), progress.advance
            )
    teacher.network.to("meta")  # it is not needed any more
    tokens = sum(phase.steps * phase.batch_tokens * mask_share(recipe, phase) for phase in recipe.phases)
    return (
        f"the teacher's {recipe.distil.top_k} likeliest tokens: {targets.bytes / 1e6:,.1f} MB in "
        f"{recipe.distil.cache}, {targets.bytes / tokens:.0f} bytes a masked token"
    )
