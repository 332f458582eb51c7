"""The work behind `bertree distill` on a token store: a student is pretrained with its teacher at hand.

OUT receives what `bertree pretrain` writes, and comparison.json: what the two cost and how well they predict.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bertree.batch import Batch
from bertree.comparison.run import beside
from bertree.config.default_model import located
from bertree.console import bar
from bertree.data.store import Store
from bertree.distillation import text_student as students
from bertree.distillation.teacher_cache import Targets
from bertree.errors import UserError
from bertree.files import Json, exclusive_lock
from bertree.inference.load import Model, load
from bertree.interop.weights import digest
from bertree.model import cost
from bertree.model.cost import describe_architecture
from bertree.objectives.pretraining import pretraining
from bertree.pretraining import build
from bertree.pretraining.recipe import DistillRecipe
from bertree.pretraining.run import Training, check_place, rate, run_files
from bertree.report.run import write_run_report
from bertree.run_folder import CHECKPOINTS, make_folder, remove_leftovers
from bertree.tasks.logits import inference_autocast
from bertree.train.device import Machine, be_deterministic
from bertree.train.held_out import evaluate
from bertree.train.schedule import Plan

TEXTS = 64  # held-out examples that teacher and student are timed on


def distill(
    teacher: str,
    student: str,
    overrides: Sequence[str],
    out: Path,
    *,
    corpus: str | None = None,
    layers: str = "",
    cache: str = "",
    epochs: float = 0.0,
    resume: bool = False,
    seconds: float = 0.0,
) -> int:
    """Pretrain a student, or go on with it. The exit code.

    `seconds` are for timing the two at the end; 0: they are not compared."""
    if not math.isfinite(epochs):
        raise UserError(f"--epochs {epochs}: must be a number")
    place = str(Path(teacher).resolve()) if Path(teacher).exists() else teacher
    kept = str(Path(cache).resolve()) if cache else ""
    given = {"distil.teacher": place, "data.store": corpus, "distil.layers": layers, "distil.cache": kept}
    recipe = students.find(student, given, overrides)
    be_deterministic(recipe.run.deterministic)
    machine = Machine.of(recipe.run)
    shown = students.teacher_of(teacher, machine)
    train, held = build.stores(recipe.data)
    students.check(recipe, shown, train, teacher)
    recipe = students.sized(recipe, student, epochs, train, shown.max_length)
    check_place(recipe, out, resume)
    training, intro = _built(recipe, machine, shown, train, held, teacher)
    targets = _targets(training, shown) if recipe.distil.cache else None
    make_folder(out, out / CHECKPOINTS)
    with exclusive_lock(out):
        remove_leftovers(run_files(out))
        if targets is not None:
            intro.append(_filled(targets, training, shown))
            training = replace(training, feed=targets)
        code = training.run(out, resume, intro)
        if code == 0 and seconds:
            _compare(training, teacher, out, seconds)
        return code


def _compare(training: Training, teacher: str, out: Path, seconds: float) -> None:
    """What both cost and how well they predict the same held-out text, for the report."""
    recipe, machine = training.recipe, training.machine
    stream = build.held_out(recipe, training.held, recipe.phases[-1])
    guide = load(teacher, device=str(machine.device))
    found = [
        evaluate(network, training.asked, stream, recipe.run.eval_tokens, lambda: inference_autocast(machine.device))
        for network in (guide.network, training.contents.network)
    ]
    scores = {name: [one[name] for one in found] for name in ("perplexity", "accuracy")}
    backend, count = guide.needed_tokenizer.backend, min(stream.examples, TEXTS)
    examples = [stream.example(k * stream.examples // count) for k in range(count)]
    texts = [backend.decode(_unmasked(example).tolist()) for example in examples]
    beside(teacher, out, [text for text in texts if text.strip()], scores, seconds, device=machine.device)
    write_run_report(out)


def _unmasked(example: Batch) -> torch.Tensor:
    """The ids that stood there before anything was masked."""
    assert example.masked is not None
    assert example.targets is not None
    return example.ids.index_put((example.masked,), example.targets)


def _built(
    recipe: DistillRecipe, machine: Machine, teacher: Model, train: Store, held: Store, name: str
) -> tuple[Training, list[str]]:
    """Everything a run is made of, and what is about to happen in a few lines."""
    contents, start = students.first(recipe, teacher, train)
    a, its, wanted = contents.architecture, teacher.architecture, recipe.distil
    learner, objective = students.asked_of(wanted, students.term_weights(recipe), contents, teacher, recipe.run.seed)
    learner.to(machine.device)
    plan = Plan(recipe.phases, recipe.schedule, recipe.optim.lr)
    rates = [rate(recipe, phase) for phase in recipe.phases]
    scored = 2.0 if wanted.everywhere else 2 * max(rates)  # the teacher's scores take as much room as the student's
    feed = build.feed(recipe, plan, train, machine, a, scored)
    identity: Json = {
        "text in data.store": train.fingerprint,
        "held-out text": held.fingerprint,
        "teacher": digest(located(name)),
    }
    flops: list[float] = []
    for phase, share in zip(recipe.phases, rates, strict=True):
        shown = cost.forward_flops(its, phase.max_length) + share * cost.mask_head_flops(its)
        flops.append(cost.training_flops(a, phase.max_length, share) + (shown if objective.teacher else 0))
    intro = [
        f"teacher: {name}, {describe_architecture(its)}; {start}",
        f"terms: {', '.join(f'{term} {weight:g}' for term, weight in objective.weights.items())}; "
        f"temperature {wanted.temperature:g}",
    ]
    asked = pretraining(mlm=1.0)
    return Training(recipe, machine, held, contents, feed, learner, objective, asked, flops, identity), intro


def _targets(training: Training, teacher: Model) -> Targets:
    """Where the teacher's likeliest tokens are kept, checked to be of this run."""
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
    return Targets(Path(recipe.distil.cache), feed, recipe.distil.top_k, teacher.architecture.vocab_size, about)


def _filled(targets: Targets, training: Training, teacher: Model) -> str:
    """Ask the teacher what is not known yet, and let it go. A line about what is kept."""
    recipe, machine = training.recipe, training.machine
    assert isinstance(recipe, DistillRecipe)
    if targets.missing:
        with bar("asking the teacher", targets.steps_missing) as progress:
            targets.make(
                teacher.network, recipe.distil.temperature, lambda: inference_autocast(machine.device), progress.advance
            )
    teacher.network.to("meta")  # it is not needed any more
    tokens = sum(phase.steps * phase.batch_tokens * rate(recipe, phase) for phase in recipe.phases)
    return (
        f"the teacher's {recipe.distil.top_k} likeliest tokens: {targets.bytes / 1e6:,.1f} MB in "
        f"{recipe.distil.cache}, {targets.bytes / tokens:.0f} bytes a masked token"
    )
