"""Distillation on a token store: a student is pretrained with its teacher (DistilBERT).

OUT receives what `bertree pretrain` writes, and comparison.json: size, speed and held-out scores of both.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from signal import SIGTERM

from bertree.comparison.run import compare_to_teacher
from bertree.config.default_model import resolve_model_path
from bertree.config.overrides import Override
from bertree.config.sections import ScaleSettings
from bertree.console import bar
from bertree.data.store import Store
from bertree.distillation import text_student
from bertree.distillation.teacher_cache import TeacherCache
from bertree.embeddings.correlation import measures
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.inference.load import Model, load
from bertree.inference.run import Run
from bertree.interop.huggingface.config import family_of_architecture
from bertree.interop.weights import weights_hash
from bertree.model import cost
from bertree.model.cost import describe_architecture
from bertree.objectives.distill_pretraining import without_masks
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build, minutes
from bertree.pretraining.micro_batches import micro_batches_of
from bertree.pretraining.recipe import DistillRecipe
from bertree.pretraining.run import PretrainingRun, check_run_folder, mask_share, open_folder
from bertree.report.run_page import write_run_report
from bertree.run_folder import CHECKPOINTS, MODEL
from bertree.scale.launch import Launch
from bertree.scale.world import World, join
from bertree.tasks.logits import inference_autocast
from bertree.train.device import Placement, set_deterministic, uses_gpu
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
    launch: Launch | None = None,
) -> Run:
    """Pretrain a student with its teacher. `seconds` is the time for timing both at the end; 0: they are not timed."""
    if not math.isfinite(epochs) or epochs < 0:
        raise UserError(f"epochs: {epochs}: must be a positive number")
    teacher_path = str(Path(teacher).resolve()) if Path(teacher).exists() else teacher
    cache_path = str(Path(cache).resolve()) if cache else ""
    given = {
        "distill.teacher": teacher_path,
        "data.store": store,
        "distill.layers": layers,
        "distill.cache": cache_path,
    }
    recipe = text_student.find_recipe(student, given, overrides)
    _check_scale(recipe)
    with (
        join(launch or Launch(), data=recipe.scale.data, cuda=uses_gpu(recipe.run)) as world,
        ExitStack() as stack,
    ):
        lesson = world.check_together(lambda: _prepare(recipe, student, teacher, epochs, out, resume, world))
        training, intro = lesson.training, lesson.intro
        for what, text in training.identity.items():
            world.check_same(what, json.dumps(text))
        world.check_together(lambda: open_folder(training.recipe, out, resume, stack) if world.is_first else None)
        if lesson.targets is not None:
            intro = [*intro, _fill_cache(lesson, lesson.targets)]
            training = replace(training, feed=lesson.targets)
        with catch_signals() as signals:
            run = training.run(out, resume, intro)
        if world.agree({"stop": int(signals.caught is not None)})["stop"]:
            return replace(run, signal=signals.caught or SIGTERM)  # it may have come while the model was written
        compares = run.complete and seconds
        world.check_together(lambda: _compare(training, teacher, out, seconds) if compares and world.is_first else None)
        return run


def _check_scale(recipe: DistillRecipe) -> None:
    alone = replace(ScaleSettings(), data=recipe.scale.data)
    changed = next((name for name, value in vars(alone).items() if getattr(recipe.scale, name) != value), None)
    if changed:
        raise UserError(f"scale.{changed}: a student is whole on every rank (data parallelism alone); leave it out")


@dataclass(frozen=True)
class TextLesson:
    """A prepared run and its teacher."""

    training: PretrainingRun
    teacher: Model
    targets: TeacherCache | None
    intro: list[str]


def _prepare(
    recipe: DistillRecipe, student: str, teacher: str, epochs: float, out: Path, resume: bool, world: World
) -> TextLesson:
    set_deterministic(recipe.run.deterministic)
    machine = Placement.from_settings(recipe.run)
    teacher_model = text_student.load_teacher(teacher, machine, text_student.term_weights(recipe))
    train, held = build.open_stores(recipe.data)
    text_student.check(recipe, teacher_model, train, teacher)
    recipe = text_student.set_steps(recipe, student, epochs, train, teacher_model.max_length)
    recipe = minutes.with_kept_steps(recipe, out) if resume else recipe
    check_run_folder(recipe, out, resume)
    begun = micro_batches_of(out / CHECKPOINTS, recipe.phases) if resume else []
    training, intro = _build(recipe, machine, teacher_model, train, held, teacher, world, begun)
    targets = _teacher_cache(training, teacher_model, train) if recipe.distill.cache else None
    return TextLesson(training, teacher_model, targets, intro)


def _compare(training: PretrainingRun, teacher: str, out: Path, seconds: float) -> None:
    """Compare teacher and student on the same held-out text, for the report."""
    recipe, machine = training.recipe, training.machine
    stream = build.held_out_stream(recipe, training.held, recipe.phases[-1])
    loaded_teacher = load(teacher, device=str(machine.device))
    networks = (loaded_teacher.network, training.contents.network)
    found = [
        evaluate_held_out(
            network, training.asked, stream, recipe.run.eval_tokens, lambda: inference_autocast(machine.device)
        )
        if "mask" in network.heads
        else {}
        for network in networks
    ]
    scores = {name: [one.get(name) for one in found] for name in ("perplexity", "accuracy")}
    backend, count = loaded_teacher.required_tokenizer.backend, min(stream.examples, TEXTS)
    examples = [stream.example(k * stream.examples // count) for k in range(count)]
    texts = [backend.decode(without_masks(example).ids.tolist()) for example in examples]
    texts = [text for text in texts if text.strip()]
    if training.contents.network.vector is not None:
        vectors = [model.embed(texts) for model in (loaded_teacher, load(out / MODEL, device=str(machine.device)))]
        scores["vector_cosine"] = [1.0, float(measures(*vectors)["cosine"].mean())]
    compare_to_teacher(teacher, out, texts, scores, seconds, device=machine.device)
    write_run_report(out)


def _build(
    recipe: DistillRecipe,
    machine: Placement,
    teacher: Model,
    train: Store,
    held: Store,
    name: str,
    world: World,
    begun: Sequence[int],
) -> tuple[PretrainingRun, list[str]]:
    """Build the parts of the run, and describe it in a few lines."""
    contents, initial = text_student.build_student(recipe, teacher, train)
    a, its, wanted = contents.architecture, teacher.architecture, recipe.distill
    learner, objective = text_student.build_objective(
        wanted, text_student.term_weights(recipe), contents, teacher, recipe.run.seed
    )
    learner.to(machine.device)
    plan = TrainingPlan(recipe.phases, recipe.schedule, recipe.optim.lr)
    rates = [mask_share(recipe, phase) for phase in recipe.phases]
    scored = 2.0 if wanted.everywhere else 2 * max(rates)  # the teacher's scores take as much room as the student's
    feed = build.build_feed(recipe, plan, train, machine, a, scored, world, begun)
    identity: Json = {
        "text in data.store": train.fingerprint,
        "held-out text": held.fingerprint,
        "teacher": weights_hash(resolve_model_path(name)),
    }
    flops: list[float] = []
    for phase, share in zip(recipe.phases, rates, strict=True):
        shown = cost.pretraining_forward_flops(its, phase.max_length, share if "mask" in teacher.network.heads else 0.0)
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
    run = PretrainingRun(recipe, machine, held, contents, feed, learner, objective, asked, flops, identity, world)
    return run, intro


def _teacher_cache(training: PretrainingRun, teacher: Model, train: Store) -> TeacherCache:
    """Return the cache of the teacher's likeliest tokens, checked to belong to this run."""
    recipe, feed = training.recipe, training.feed
    assert isinstance(recipe, DistillRecipe)
    reads = repr([(update.phase, update.first, update.batches) for update in feed.plan.updates])
    about = training.identity | {
        "temperature (distill.temperature)": recipe.distill.temperature,
        "distill.top_k": recipe.distill.top_k,
        "seed (run.seed)": recipe.run.seed,
        "data section": asdict(replace(recipe.data, store="", held_out="")),
        "phases section": [asdict(phase) for phase in recipe.phases],
        "growth of batches (schedule)": hashlib.sha256(reads.encode()).hexdigest(),
        "number of micro-batches (run.micro_tokens)": feed.micro_batches,
        "compilation (run.compile)": training.machine.compiled,
    }
    a, counts = training.contents.architecture, feed.micro_batches
    whole = build.build_feed(recipe, feed.plan, train, training.machine, a, counts=counts)
    sizes = (recipe.distill.top_k, teacher.architecture.vocab_size)
    return TeacherCache(Path(recipe.distill.cache), feed, whole, *sizes, about)


def _fill_cache(lesson: TextLesson, targets: TeacherCache) -> str:
    """Compute on one rank what is missing in the cache, free the teacher, and return a line about the cache."""
    recipe, world, network = lesson.training.recipe, lesson.training.world, lesson.teacher.network
    device = lesson.training.machine.device
    assert isinstance(recipe, DistillRecipe)
    temperature = recipe.distill.temperature

    def make() -> None:
        with bar("asking the teacher", targets.steps_missing) as progress:
            targets.make(network, temperature, lambda: inference_autocast(device), progress.advance)

    def check() -> None:
        if targets.missing:
            raise UserError(f"{recipe.distill.cache}: rank 0 has filled it, but its files are not here")

    world.check_together(lambda: make() if world.is_first and targets.missing else None)
    world.check_together(check)
    network.to("meta")  # it is not needed any more
    tokens = sum(phase.steps * phase.batch_tokens * mask_share(recipe, phase) for phase in recipe.phases)
    return (
        f"the teacher's {recipe.distill.top_k} likeliest tokens: {targets.bytes / 1e6:,.1f} MB in "
        f"{recipe.distill.cache}, {targets.bytes / tokens:.0f} bytes a masked token"
    )
