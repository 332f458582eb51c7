"""The work behind `bertree distill` on a token store: a student is pretrained with its teacher at hand.

OUT receives what `bertree pretrain` writes, and comparison.json: what the two cost and how well they predict.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from bertree import assembly
from bertree import recipe as recipes
from bertree.api import Model, load
from bertree.batch import Batch
from bertree.data.store import Store
from bertree.distil.student import chosen, ends, halved, spread, warm
from bertree.distil.targets import Targets
from bertree.errors import UserError
from bertree.files import Json, alone, file_hash
from bertree.info import describe_architecture
from bertree.interop.folder import Contents
from bertree.interop.weights import INDEX, SINGLE
from bertree.model import cost
from bertree.model.architecture import Architecture
from bertree.model.presets import PRESETS, preset
from bertree.objectives.pretraining import pretraining
from bertree.objectives.teaching import LIVE, TERMS, Distillation, Pupil, distillation, pupil
from bertree.pipelines_compare import beside
from bertree.pipelines_train import Training, check_place, make_place, note, rate, resolved, sweep
from bertree.recipe import Distil, DistilRecipe
from bertree.tasks.answering import half
from bertree.text.identity import tokenizer_hash
from bertree.train.device import Machine, be_deterministic
from bertree.train.evaluate import evaluate
from bertree.train.feed import Feed
from bertree.train.plan import Plan
from bertree.train.session import write_report

USUAL = "distilbert"  # the recipe of a student that is named by its shape alone
EPOCHS, WARMUP = 3.0, 0.05  # of such a student, and the share of its steps in which the rate rises
TEXTS = 64  # held-out examples that teacher and student are timed on
MANY, LEAST = 4000, 4096  # steps worth having before batches grow to the paper's size, and the smallest batch


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
    given = {"distil.teacher": _place(teacher), "data.store": corpus, "distil.layers": layers, "distil.cache": cache}
    named = student == "half" or student in PRESETS
    shape = [f"model.preset={json.dumps(student)}"] if named else []
    lines = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value]
    recipe = resolved(recipes.load(USUAL if named else student, [*shape, *lines, *overrides]))
    assert isinstance(recipe, DistilRecipe)
    if not recipe.data.store:
        raise UserError("--corpus: is not set; give the folder of a token store (see `bertree prepare`)")
    be_deterministic(recipe.run.deterministic)
    machine = Machine.of(recipe.run)
    shown = _teacher(teacher, machine)
    train, held = assembly.stores(recipe.data)
    _check(recipe, shown, train, teacher)
    if epochs or (named and not any(override.startswith("phases.") for override in overrides)):
        recipe = _sized(recipe, epochs or EPOCHS, train, shown.max_length, fixed=not named)
    for number, phase in enumerate(recipe.phases):
        if phase.max_length > shown.max_length:
            raise UserError(
                f"{recipe.name}: phases.{number}.max_length: {phase.max_length} is more than the {shown.max_length} "
                f"tokens the teacher reads; set phases.{number}.max_length={shown.max_length}"
            )
    check_place(recipe, out, resume)
    training, intro = _built(recipe, machine, shown, train, held, teacher)
    make_place(out)
    with alone(out):
        sweep(out)
        if recipe.distil.cache:
            targets, line = _cached(recipe, training.feed, shown, machine, training.identity)
            training, intro = replace(training, feed=targets), [*intro, line]
        code = training.run(out, resume, intro)
        if code == 0 and seconds:
            _compare(training, teacher, out, seconds)
        return code


def _compare(training: Training, teacher: str, out: Path, seconds: float) -> None:
    """What both cost and how well they predict the same held-out text, for the report."""
    recipe, machine = training.recipe, training.machine
    stream = assembly.held_out(recipe, training.held, recipe.phases[-1])
    guide = load(teacher, device=str(machine.device))
    found = [
        evaluate(network, training.asked, stream, recipe.run.eval_tokens, lambda: half(machine.device))
        for network in (guide.network, training.contents.network)
    ]
    scores = {name: [one[name] for one in found] for name in ("perplexity", "accuracy")}
    backend, count = guide.needed_tokenizer.backend, min(stream.examples, TEXTS)
    examples = [stream.example(k * stream.examples // count) for k in range(count)]
    texts = [backend.decode(_unmasked(example).tolist()) for example in examples]
    beside(teacher, out, [text for text in texts if text.strip()], scores, seconds)
    write_report(out, note)


def _unmasked(example: Batch) -> torch.Tensor:
    """The ids that stood there before anything was masked."""
    assert example.masked is not None
    assert example.targets is not None
    return example.ids.index_put((example.masked,), example.targets)


def _place(teacher: str) -> str:
    return str(Path(teacher).resolve()) if Path(teacher).exists() else teacher


def _teacher(name: str, machine: Machine) -> Model:
    """In half precision on a GPU, and never to change."""
    model = load(name, device=str(machine.device), dtype="bfloat16" if machine.half else "float32")
    if not model.trained:
        raise UserError(f"{name}: is a preset with fresh weights, which has nothing to teach; give a trained model")
    if "mask" not in model.network.heads:
        raise UserError(
            f"{name}: has no MLM head, so it cannot teach on text; give the model it was fine-tuned from, or teach a "
            "task: --task TASK --data DIR"
        )
    model.network.requires_grad_(False)
    return model


def _check(recipe: DistilRecipe, teacher: Model, store: Store, name: str) -> None:
    """Refuse what cannot be taught."""
    if teacher.tokenizer is not None and tokenizer_hash(teacher.tokenizer) != store.tokenizer_hash:
        raise UserError(
            f"{store.folder}: was made with another tokenizer than {name}'s, and a distribution over one vocabulary "
            f"says nothing about another; prepare the text with the teacher's (bertree prepare ... --tokenizer "
            f"{name}), "
            "or teach a task, where vocabularies may differ (--task TASK --data DIR)"
        )
    if teacher.architecture.vocab_size < store.vocab_size:
        raise UserError(f"{name}: has {teacher.architecture.vocab_size} tokens, the text {store.vocab_size}")
    if recipe.objective.nsp or recipe.objective.sop:
        raise UserError(f"{recipe.name}: objective: a student learns no sentence objective; set nsp=0 and sop=0")
    if recipe.model.get("start"):
        raise UserError(f"{recipe.name}: model.start: a student starts from its teacher (distil.start, distil.layers)")
    if recipe.distil.top_k >= teacher.architecture.vocab_size:
        raise UserError(f"distil.top_k: must be less than the vocabulary's {teacher.architecture.vocab_size} tokens")
    weights = _weights(recipe)
    live = [f"distil.{term}=0" for term in LIVE if weights[term]]
    live += ["distil.everywhere=false"] if recipe.distil.everywhere else []
    if recipe.distil.cache and live:
        raise UserError(
            f"distil.cache: keeps the teacher's likeliest tokens and nothing else of it; set {' '.join(live)}"
        )


def _weights(recipe: DistilRecipe) -> dict[str, float]:
    return {"mlm": recipe.objective.mlm} | {term: getattr(recipe.distil, term) for term in TERMS if term != "mlm"}


def _sized(recipe: DistilRecipe, epochs: float, store: Store, longest: int, fixed: bool) -> DistilRecipe:
    """One phase of so many epochs. Where the recipe is not the user's own, batches are as large as the paper's only if
    the text is: small steps, many of them, learn more from little."""
    phase = recipe.phases[0]
    size = phase.batch_tokens
    while not fixed and size > LEAST and epochs * store.tokens / size < MANY:
        size //= 2
    steps = max(1, math.ceil(epochs * store.tokens / size))
    phase = replace(phase, steps=steps, batch_tokens=size, max_length=min(phase.max_length, longest))
    schedule = replace(recipe.schedule, warmup=math.ceil(WARMUP * steps))
    return replace(recipe, phases=(phase,), schedule=schedule)


def _architecture(recipe: DistilRecipe, teacher: Architecture) -> Architecture:
    """The student's: half of the teacher's or a preset's, with its vocabulary, and what the recipe changes."""
    name = str(recipe.model.get("preset") or "half")
    base = halved(teacher) if name == "half" else preset(name).architecture
    return base.with_values({"vocab_size": teacher.vocab_size} | assembly.axes_of(recipe))


def _student(recipe: DistilRecipe, teacher: Model, store: Store) -> tuple[Contents, str]:
    """The student with its first weights, and a line about them."""
    a = _architecture(recipe, teacher.architecture)
    contents = assembly.untrained(a, {"mask": 0}, recipe.run.seed)
    contents.tokenizer = teacher.needed_tokenizer
    line = "random"
    if recipe.distil.start == "teacher":
        depth = teacher.architecture.layers
        given = recipe.distil.layers
        layers = chosen(given, depth, a.layers, "distil.layers") if given else spread(depth, a.layers)
        copied, total = warm(contents.network, teacher.network, layers), len(contents.network.state_dict())
        line = f"{copied} of {total} tensors from the teacher"
        line += f", layers {', '.join(map(str, layers))}" if copied > total // 2 else ", where shapes agree"
        if copied == total:
            contents.max_length = teacher.limit  # every position is known
    return assembly.fitted(contents, recipe, store), f"first weights: {line}"


def _built(
    recipe: DistilRecipe, machine: Machine, teacher: Model, train: Store, held: Store, name: str
) -> tuple[Training, list[str]]:
    """Everything a run is made of, and what is about to happen in a few lines."""
    contents, start = _student(recipe, teacher, train)
    a, its, wanted = contents.architecture, teacher.architecture, recipe.distil
    weights = _weights(recipe)
    learner, objective = _objective(wanted, weights, contents, teacher, recipe.run.seed)
    learner.to(machine.device)
    plan = Plan(recipe.phases, recipe.schedule, recipe.optim.lr)
    rates = [rate(recipe, phase) for phase in recipe.phases]
    scored = 2.0 if wanted.everywhere else 2 * max(rates)  # the teacher's scores take as much room as the student's
    feed = assembly.feed(recipe, plan, train, machine, a, scored)
    identity: Json = {
        "text in data.store": train.fingerprint,
        "held-out text": held.fingerprint,
        "teacher": _hash(name),
    }
    flops: list[float] = [
        cost.training_flops(a, phase.max_length, share)
        + cost.forward_flops(its, phase.max_length)
        + share * cost.mask_head_flops(its)
        for phase, share in zip(recipe.phases, rates, strict=True)
    ]
    intro = [
        f"teacher: {describe_architecture(its)}; {start}",
        f"terms: {', '.join(f'{term} {weight:g}' for term, weight in objective.weights.items())}; "
        f"temperature {wanted.temperature:g}",
    ]
    asked = pretraining(mlm=1.0)
    return Training(recipe, machine, held, contents, feed, learner, objective, asked, flops, identity), intro


def _objective(
    wanted: Distil, weights: dict[str, float], contents: Contents, teacher: Model, seed: int
) -> tuple[Pupil, Distillation]:
    """What learns, and what it is asked."""
    a, its = contents.architecture, teacher.architecture
    given = wanted.match
    last = chosen(given, its.layers, a.layers, "distil.match") if given else ends(its.layers, a.layers)
    pairs = list(enumerate(last, 1)) if weights["hidden"] else []
    heads, layer = wanted.relation_heads or its.heads, wanted.relation_layer or its.layers
    if weights["relation"]:
        for width, whose in ((a.width, "student"), (its.width, "teacher")):
            if width % heads:
                raise UserError(
                    f"distil.relation_heads: {heads} cannot divide the {whose}'s width of {width}; set another number"
                )
        if layer > its.layers:
            raise UserError(f"distil.relation_layer: {layer} is more than the teacher's {its.layers} layers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        learner = pupil(contents.network, a.width, its.width, weights, len(pairs))
    objective = distillation(
        weights,
        None if wanted.cache else teacher.network,
        wanted.temperature,
        wanted.everywhere,
        pairs,
        (a.layers, layer, heads),
    )
    return learner, objective


def _cached(recipe: DistilRecipe, feed: Feed, teacher: Model, machine: Machine, identity: Json) -> tuple[Targets, str]:
    """The feed with the teacher's likeliest tokens, made now where they are not there yet; and a line about it."""
    wanted, vocabulary = recipe.distil, teacher.architecture.vocab_size
    about = identity | {
        "temperature (distil.temperature)": wanted.temperature,
        "distil.top_k": wanted.top_k,
        "seed (run.seed)": recipe.run.seed,
        "data section": asdict(replace(recipe.data, store="", held_out="")),
        "plan (phases, schedule)": [*(asdict(phase) for phase in recipe.phases), asdict(recipe.schedule)],
        "number of micro-batches (run.micro_tokens)": [len(streams) for streams in feed.streams],
        "compilation (run.compile)": machine.compiled,
    }
    targets = Targets(Path(wanted.cache), feed, wanted.top_k, vocabulary, about)
    columns = (
        TextColumn("asking the teacher"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    if targets.missing:
        with Progress(*columns, transient=True) as progress:
            task = progress.add_task("", total=len(feed.plan))
            targets.make(
                teacher.network, wanted.temperature, lambda: half(machine.device), lambda n: progress.advance(task, n)
            )
    tokens = sum(phase.steps * phase.batch_tokens * rate(recipe, phase) for phase in recipe.phases)
    line = (
        f"the teacher's {wanted.top_k} likeliest tokens: {targets.bytes / 1e6:,.1f} MB in {wanted.cache}, "
        f"{targets.bytes / tokens:.0f} bytes a masked token"
    )
    teacher.network.to("meta")  # it is not needed any more
    return targets, line


def _hash(teacher: str) -> str:
    """What tells a teacher from another: its weights."""
    folder = Path(teacher)
    for name in (SINGLE, INDEX):
        if (folder / name).is_file():
            return file_hash(folder / name)
    return teacher
