"""Distillation on a token store: a student is pretrained with its teacher (DistilBERT).

OUT receives what `bertree pretrain` writes, and comparison.json: size, speed and held-out scores of both.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bertree.comparison.compare import compare_to_teacher
from bertree.config.names import resolve_model_path
from bertree.config.overrides import Override
from bertree.config.sections import Phase
from bertree.console import bar
from bertree.data.store import Store
from bertree.distillation import text_recipe
from bertree.distillation.student import build_text_student, last_layers, parse_layers
from bertree.distillation.teacher_cache import TeacherCache
from bertree.embeddings.correlation import measures
from bertree.errors import UserError
from bertree.inference.load import Run, load
from bertree.inference.model import Model
from bertree.interop.contents import Contents
from bertree.interop.weights import weights_hash
from bertree.model import cost
from bertree.model.architecture import Transformer
from bertree.objectives.distill_pretraining import (
    PretrainingDistillation,
    StudentWithProjections,
    add_projections,
    distillation_objective,
    without_masks,
)
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build
from bertree.pretraining.held_out import held_out_questions, held_out_stream
from bertree.pretraining.job import StoreJob, StoreTraining, Trainee, execute_store_job
from bertree.pretraining.recipe import DistillRecipe
from bertree.report.formats import describe_architecture
from bertree.report.run_page import write_run_report
from bertree.run_folder import MODEL
from bertree.tasks.batches import inference_autocast
from bertree.train.device_setup import DeviceSetup
from bertree.train.held_out import evaluate_questions

TEXTS = 64  # held-out examples that teacher and student are timed on


def distill_on_text(
    teacher_path: str,
    student: str,
    overrides: Sequence[str | Override],
    *,
    out: Path,
    store: str,
    layers: str = "",
    cache: str = "",
    epochs: float = 0.0,
    resume: bool = False,
    seconds: float = 0.0,
    progress: bool | None = None,
) -> Run:
    """Pretrain a student with its teacher. `seconds` is the time for timing both at the end; 0: they are not timed."""
    if not math.isfinite(epochs) or epochs < 0:
        raise UserError(f"epochs: {epochs}: must be a positive number")
    named = {
        "distill.teacher": str(Path(teacher_path).resolve()) if Path(teacher_path).exists() else teacher_path,
        "data.store": store,
        "distill.layers": layers,
        "distill.cache": str(Path(cache).resolve()) if cache else "",
    }
    recipe = text_recipe.find_recipe(student, named, overrides)

    def build_job(device_setup: DeviceSetup) -> StoreJob:
        teacher = _load_teacher(teacher_path, device_setup, text_recipe.term_weights(recipe))
        train, held_out = build.open_stores(recipe.data)
        text_recipe.check(recipe, teacher, train, teacher_path)
        sized = text_recipe.set_sizes(recipe, student, epochs, train, teacher.max_length)
        return StoreJob(
            recipe=sized,
            train=train,
            held_out=held_out,
            build_trainee=lambda: _build_trainee(sized, teacher, teacher_path, train),
            before_steps=lambda training: _with_cache(training, sized, teacher) if sized.distill.cache else training,
            after_steps=(lambda training: _compare(training, teacher_path, seconds))
            if seconds
            else lambda training: None,
        )

    return execute_store_job(build_job, recipe, out=out, resume=resume, progress=progress)


def _load_teacher(name: str, device_setup: DeviceSetup, weights: Mapping[str, float]) -> Model:
    """Load the teacher for these loss terms, in half precision on a GPU, with its weights frozen."""
    model = load(name, device=str(device_setup.device), precision="bfloat16" if device_setup.bf16 else "float32")
    if not model.trained:
        raise UserError(f"{name}: is a preset with random weights, which has nothing to teach; give a trained model")
    if "mask" not in model.network.heads and (weights["ce"] or not weights["vector"]):
        raise UserError(
            f"{name}: has no MLM head, so it cannot teach masked tokens; give the model it was fine-tuned from, or "
            "teach its sentence vectors (distill.ce=0 distill.vector=4), or a task (`task=TASK` `data=DIR`)"
        )
    if weights["vector"]:
        if model.network.readout.transforms or model.vector.prompt_text(None):
            what = (
                "other hidden states than the last" if model.network.readout.transforms else "a prompt before the text"
            )
            raise UserError(f"{name}: its vectors are made of {what}, which a student cannot learn from")
        model.network.vector = model.pooling
    model.network.requires_grad_(False)
    return model


def _build_trainee(recipe: DistillRecipe, teacher: Model, teacher_path: str, train: Store) -> Trainee:
    """Build the student and its objective, and describe both in a few lines."""
    contents, initial_weights = build_text_student(recipe, teacher, train)
    network, objective = _build_objective(recipe, contents, teacher)
    settings, teacher_a = recipe.distill, teacher.architecture
    # The teacher's logits take as much memory as the student's.
    logit_share = 2.0 if settings.everywhere else 2 * max(build.mask_share(recipe, phase) for phase in recipe.phases)

    def teacher_flops(phase: Phase) -> float:
        share = build.mask_share(recipe, phase) if "mask" in teacher.network.heads else 0.0
        return cost.pretraining_forward_flops(teacher_a, phase.max_length, share) if objective.teacher else 0

    terms = ", ".join(f"{term} {weight:g}" for term, weight in objective.weights.items())
    intro = [
        f"teacher: {teacher_path}, {describe_architecture(teacher_a)}; {initial_weights}",
        f"terms: {terms}; temperature {settings.temperature:g}",
    ]
    return Trainee(
        contents=contents,
        network=network,
        objective=objective,
        evaluated=pretraining_objective(mlm=1.0),
        logit_share=logit_share,
        teacher_flops=teacher_flops,
        identity={"teacher": weights_hash(resolve_model_path(teacher_path))},
        intro=intro,
    )


def _build_objective(
    recipe: DistillRecipe, contents: Contents, teacher: Model
) -> tuple[StudentWithProjections, PretrainingDistillation]:
    """Build the objective, and the student with the projections to the teacher's width that it needs."""
    settings, weights = recipe.distill, text_recipe.term_weights(recipe)
    a, teacher_a = contents.architecture, teacher.architecture
    if not isinstance(a, Transformer) or not isinstance(teacher_a, Transformer):
        raise UserError("distillation on text is for transformers; an LSTM learns a task from a teacher (`task=TASK`)")
    if settings.match:
        matched = parse_layers(settings.match, teacher_a.layers, a.layers, "distill.match")
    else:
        matched = last_layers(teacher_a.layers, a.layers)
    pairs = list(enumerate(matched, 1)) if weights["hidden"] else []
    heads, layer = _relation(recipe, a, teacher_a) if weights["relation"] else (1, teacher_a.layers)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.run.seed)
        network = add_projections(contents.network, a.output_width, teacher_a.output_width, weights, len(pairs))
    needs_teacher = any(weight for term, weight in weights.items() if term != "mlm") and not settings.cache
    objective = distillation_objective(
        weights,
        teacher.network if needs_teacher else None,
        temperature=settings.temperature,
        everywhere=settings.everywhere,
        pairs=pairs,
        relation=(a.layers, layer, heads),
    )
    return network, objective


def _relation(recipe: DistillRecipe, a: Transformer, teacher_a: Transformer) -> tuple[int, int]:
    """Return the heads in which relations of tokens are compared, and the teacher's layer."""
    widths = a.heads * a.head_size, teacher_a.heads * teacher_a.head_size  # of queries and keys
    common = math.gcd(*widths)
    fitting = max(number for number in range(1, teacher_a.heads + 1) if common % number == 0)
    heads, layer = recipe.distill.relation_heads or fitting, recipe.distill.relation_layer or teacher_a.layers
    if common % heads:
        raise UserError(
            f"distill.relation_heads: {heads} must divide the widths of student and teacher ({widths[0]} and "
            f"{widths[1]}); {fitting} does"
        )
    if layer > teacher_a.layers:
        raise UserError(f"distill.relation_layer: {layer} is more than the teacher's {teacher_a.layers} layers")
    return heads, layer


def _with_cache(training: StoreTraining, recipe: DistillRecipe, teacher: Model) -> StoreTraining:
    """Return the training with batches that carry the teacher's likeliest tokens; compute what the cache misses on one
    rank, and free the teacher."""
    world, network, device = training.world, teacher.network, training.device_setup.device
    cache = world.check_together(lambda: _open_cache(training, recipe, teacher))

    def compute() -> None:
        with bar("asking the teacher", cache.steps_missing) as progress:
            cache.compute(network, recipe.distill.temperature, lambda: inference_autocast(device), progress.advance)

    def check() -> None:
        if cache.missing:
            raise UserError(f"{recipe.distill.cache}: rank 0 has filled it, but its files are not here")

    world.check_together(lambda: compute() if world.is_first and cache.missing else None)
    world.check_together(check)
    network.to("meta")  # no longer needed
    tokens = sum(phase.steps * phase.batch_tokens * build.mask_share(recipe, phase) for phase in recipe.phases)
    line = (
        f"the teacher's {recipe.distill.top_k} likeliest tokens: {cache.bytes / 1e6:,.1f} MB in "
        f"{recipe.distill.cache}, {cache.bytes / tokens:.0f} bytes a masked token"
    )
    return replace(training, feed=cache, intro=[line])


def _open_cache(training: StoreTraining, recipe: DistillRecipe, teacher: Model) -> TeacherCache:
    """Return the cache of the teacher's likeliest tokens, checked to belong to this run."""
    feed = training.feed
    reads = repr([(update.phase, update.first, update.batches) for update in feed.schedule.updates])
    identity = training.identity | {
        "temperature (distill.temperature)": recipe.distill.temperature,
        "distill.top_k": recipe.distill.top_k,
        "seed (run.seed)": recipe.run.seed,
        "data section": asdict(replace(recipe.data, store="", held_out="")),
        "phases section": [asdict(phase) for phase in recipe.phases],
        "growth of batches (schedule)": hashlib.sha256(reads.encode()).hexdigest(),
        "number of micro-batches (run.micro_tokens)": feed.micro_batches,
        "compilation (run.compile)": training.device_setup.compiled,
    }
    a, counts = training.trainee.contents.architecture, feed.micro_batches
    all_ranks = build.build_feed(recipe, feed.schedule, training.job.train, training.device_setup, a, counts=counts)
    return TeacherCache(
        Path(recipe.distill.cache),
        feed,
        all_ranks,
        k=recipe.distill.top_k,
        vocabulary=teacher.architecture.vocab_size,
        identity=identity,
    )


def _compare(training: StoreTraining, teacher_path: str, seconds: float) -> None:
    """Compare teacher and student on the same held-out text, for the report."""
    recipe, device, student = training.job.recipe, training.device_setup.device, training.trainee
    held_out, phase = training.job.held_out, recipe.phases[-1]
    stream = held_out_stream(recipe, held_out, phase)
    questions = held_out_questions(recipe, held_out, phase, student.evaluated)
    teacher = load(teacher_path, device=str(device))
    figures = [
        evaluate_questions(network, questions, lambda: inference_autocast(device)) if "mask" in network.heads else {}
        for network in (teacher.network, student.contents.network)
    ]
    scores = {name: [figures_of_model.get(name) for figures_of_model in figures] for name in ("perplexity", "accuracy")}
    backend, count = teacher.required_tokenizer.backend, min(stream.examples, TEXTS)
    examples = [stream.example(k * stream.examples // count) for k in range(count)]
    texts = [backend.decode(without_masks(example).ids.tolist()) for example in examples]
    texts = [text for text in texts if text.strip()]
    if student.contents.network.vector is not None:
        vectors = [model.embed(texts) for model in (teacher, load(training.out / MODEL, device=str(device)))]
        scores["vector_cosine"] = [1.0, float(measures(*vectors)["cosine"].mean())]
    compare_to_teacher(teacher_path, training.out, texts, scores, seconds, device=device)
    write_run_report(training.out)
