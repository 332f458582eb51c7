"""The parts of distillation on text: a recipe sized by the text, the teacher, the student and its objective."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from bertree.config.overrides import Override
from bertree.data.store import Store
from bertree.distillation.student import copy_weights, halve, last_layers, parse_layers, spread_evenly
from bertree.errors import UserError, suggest
from bertree.inference.load import Model, load
from bertree.interop.contents import Contents
from bertree.model.architecture import Architecture, Transformer
from bertree.model.init import initialize
from bertree.model.pooling import Dense, SentencePooling
from bertree.model.presets import PRESETS, preset
from bertree.objectives.distill_pretraining import (
    TEACHER_STATE_TERMS,
    PretrainingDistillation,
    StudentWithProjections,
    add_projections,
    distillation_objective,
)
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.pretraining.recipe import DistillRecipe, DistillSettings
from bertree.pretraining.run import resolve_paths
from bertree.text.identity import tokenizer_hash
from bertree.train.device import Placement

DEFAULT_RECIPE = "distilbert"  # of a student that is named by its shape alone
EPOCHS, WARMUP = 3.0, 0.05  # of such a student, and the share of its steps spent on warm-up
SAMPLED_TOKENS = 200_000  # of the text, which tell the frequent ones
MIN_STEPS, MIN_BATCH = 4000, 4096  # steps below which the batch is made smaller, down to this size in tokens


def find_recipe(student: str, given: dict[str, str | None], overrides: Sequence[str | Override]) -> DistillRecipe:
    """Return the recipe of a student; `given` holds the values of named options."""
    named = _is_shape(student)
    if not named and Path(student).is_dir():
        raise UserError(f"`student={student}`: a model folder can be taught a task (`task`); on text, name its shape")
    if not named and student not in recipes.bundled_recipes() and not Path(student).is_file() and "/" not in student:
        known = suggest(student, ("half", *(n for n, p in PRESETS.items() if not p.study), *recipes.bundled_recipes()))
        raise UserError(f"`student={student}`: is neither half nor a preset nor a recipe; {known}")
    shape = [f"model.preset={json.dumps(student)}"] if named else []
    lines = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items() if value]
    recipe = resolve_paths(recipes.load(DEFAULT_RECIPE if named else student, [*shape, *overrides, *lines]))
    assert isinstance(recipe, DistillRecipe)
    if not recipe.data.store:
        raise UserError("`store`: is not set; give the folder of a token store (see `bertree prepare`)")
    return recipe


def _is_shape(student: str) -> bool:
    return student == "half" or student in PRESETS


def set_steps(recipe: DistillRecipe, student: str, epochs: float, store: Store, longest: int) -> DistillRecipe:
    """Return the recipe with as many steps as its epochs need. What the user has set stays.

    For a student that is named by its shape alone, the batch size is the paper's only if there is enough text: many
    small steps learn more from little text. `longest` is the teacher's maximum length.
    """
    told = recipe.overridden
    named, steps_told = _is_shape(student), "phases.0.steps" in told
    if epochs and (steps_told or len(recipe.phases) > 1):
        why = "phases.0.steps says the same" if steps_told else f"the recipe has {len(recipe.phases)} phases"
        raise UserError(f"epochs: {why}; set the steps of each phase, or leave them out")
    if epochs and recipe.run.minutes:
        raise UserError("epochs: run.minutes says how long the run takes; leave one of them out")
    if epochs or (named and not steps_told):
        epochs, phase = epochs or EPOCHS, recipe.phases[0]
        size = phase.batch_tokens
        while (
            named
            and "phases.0.batch_tokens" not in told
            and size > MIN_BATCH
            and epochs * store.tokens / size < MIN_STEPS
        ):
            size //= 2
        length = phase.max_length if "phases.0.max_length" in told else min(phase.max_length, longest)
        steps = max(1, math.ceil(epochs * store.tokens / size))
        warmup = recipe.schedule.warmup if "schedule.warmup" in told else math.ceil(WARMUP * steps)
        phase = replace(phase, steps=steps, batch_tokens=size, max_length=length)
        recipe = replace(recipe, phases=(phase,), schedule=replace(recipe.schedule, warmup=warmup))
        recipes.check(recipe, recipe.source)
    for number, phase in enumerate(recipe.phases):
        if phase.max_length > longest:
            raise UserError(
                f"{recipe.source}: phases.{number}.max_length: {phase.max_length} is more than the {longest} tokens "
                f"the teacher reads; set phases.{number}.max_length={longest}"
            )
    return recipe


def load_teacher(name: str, machine: Placement, weights: Mapping[str, float]) -> Model:
    """Load the teacher of these terms, in half precision on a GPU, with its weights frozen."""
    model = load(name, device=str(machine.device), precision="bfloat16" if machine.bf16 else "float32")
    if not model.trained:
        raise UserError(f"{name}: is a preset with random weights, which has nothing to teach; give a trained model")
    if "mask" not in model.network.heads and (weights["ce"] or not weights["vector"]):
        raise UserError(
            f"{name}: has no MLM head, so it cannot teach masked tokens; give the model it was fine-tuned from, or "
            "teach its sentence vectors (distill.ce=0 distill.vector=4), or a task (`task=TASK` `data=DIR`)"
        )
    if weights["vector"]:
        if model.network.readout.transforms or model.vector.prompt_text(None):
            what = "other states than the last" if model.network.readout.transforms else "a prompt before the text"
            raise UserError(f"{name}: its vectors are made of {what}, which a student cannot learn from")
        model.network.vector = model.pooling
    model.network.requires_grad_(False)
    return model


def check(recipe: DistillRecipe, teacher: Model, store: Store, name: str) -> None:
    """Refuse a recipe, teacher and store that do not fit together."""
    if teacher.tokenizer is not None and tokenizer_hash(teacher.tokenizer) != store.tokenizer_hash:
        raise UserError(
            f"{store.folder}: was made with another tokenizer than {name}'s, and what is learned of one vocabulary "
            f"says nothing about another; prepare the text with the teacher's (bertree prepare ... --tokenizer "
            f"{name}), or teach a task, where vocabularies may differ (`task=TASK` `data=DIR`)"
        )
    if teacher.architecture.vocab_size < store.vocab_size:
        raise UserError(f"{name}: has {teacher.architecture.vocab_size} tokens, the text {store.vocab_size}")
    if recipe.model.get("vocab_size", teacher.architecture.vocab_size) != teacher.architecture.vocab_size:
        raise UserError(
            f"{recipe.source}: model.vocab_size: a student has its teacher's vocabulary "
            f"({teacher.architecture.vocab_size}); leave it out"
        )
    if any(weight for term, weight in recipe.objective.items() if term != "mlm"):
        raise UserError(f"{recipe.source}: objective: a student learns mlm alone; set the other terms to 0")
    if recipe.model.get("start"):
        raise UserError(
            f"{recipe.source}: model.start: a student starts from its teacher (distill.start, distill.layers)"
        )
    if teacher.network.state_specs(1):
        raise UserError(
            f"{name}: has a memory of the text before, but distillation on text reads every sequence alone; "
            "teach a task (`task=TASK` `data=DIR`)"
        )
    unit = build.masking_of(recipe.data).unit
    if (unit == "permutation") != bool(teacher.architecture.axes().get("query_stream")):
        kind = "without a query stream" if unit == "permutation" else "with a query stream (XLNet)"
        raise UserError(
            f"{recipe.name}: data.masking: {recipe.data.masking}: a teacher {kind} was not trained for that; a query "
            "stream goes with permutation, others with masks or next"
        )
    if recipe.distill.vector and unit in ("permutation", "next"):
        raise UserError(f"distill.vector: is learned from text with masks; data.masking={recipe.data.masking} has none")
    if unit == "permutation" and recipe.distill.everywhere:
        raise UserError("distill.everywhere: a query stream predicts the tokens of the permutation and no others")
    if (unit == "next") != teacher.architecture.causal:
        kind = "causal" if teacher.architecture.causal else "full"
        raise UserError(
            f"{recipe.name}: data.masking: {recipe.data.masking}: a teacher with {kind} attention was not trained for "
            "that; full attention goes with masks, causal attention with next"
        )
    if recipe.distill.start == "random" and recipe.distill.layers:
        raise UserError("distill.layers: has no meaning with distill.start=random; leave one of them out")
    _check_cache(recipe, teacher.architecture.vocab_size)


def _check_cache(recipe: DistillRecipe, vocabulary: int) -> None:
    if not recipe.distill.cache:
        return
    if recipe.distill.top_k >= vocabulary:
        raise UserError(f"distill.top_k: must be less than the vocabulary's {vocabulary} tokens")
    weights = term_weights(recipe)
    if not weights["ce"]:
        raise UserError("distill.cache: with distill.ce=0 nothing would be read of it; leave one of them out")
    live = [f"distill.{term}=0" for term in TEACHER_STATE_TERMS if weights[term]]
    live += ["distill.everywhere=false"] if recipe.distill.everywhere else []
    if live:
        raise UserError(
            f"distill.cache: keeps the teacher's likeliest tokens and nothing else of it; set {' '.join(live)}"
        )


def term_weights(recipe: DistillRecipe) -> dict[str, float]:
    """Return the weight of each of the loss terms."""
    return {"mlm": recipe.objective["mlm"]} | recipe.distill.weights


def _architecture(recipe: DistillRecipe, teacher: Architecture) -> Architecture:
    """Return the student's architecture: half of the teacher, or a preset; with the recipe's changes."""
    name = str(recipe.model.get("preset") or "half")
    base = halve(teacher) if name == "half" else preset(name).architecture
    a = base.with_values({"vocab_size": teacher.vocab_size} | recipe.axes)
    if a.causal != teacher.causal:
        mine, its = a.axes()["attention"], teacher.axes()["attention"]
        raise UserError(f"{recipe.source}: model.attention: {mine}: must be the teacher's, {its}")
    return a


def build_student(recipe: DistillRecipe, teacher: Model, store: Store) -> tuple[Contents, str]:
    """Return the student with its initial weights, and a line about them."""
    a = _architecture(recipe, teacher.architecture)
    contents = build.build_untrained(a, {"mask": 0}, recipe.run.seed)
    if recipe.distill.vector:
        contents.network.vector = _student_pooling(a, teacher, recipe.run.seed)
    if contents.network.state_specs(1):
        raise UserError(f"{recipe.source}: model.memory: a student reads every sequence alone; set model.memory=0")
    contents.tokenizer = teacher.required_tokenizer
    line = "random"
    if recipe.distill.start == "teacher":
        depth, given = teacher.architecture.layers, recipe.distill.layers
        layers = parse_layers(given, depth, a.layers, "distill.layers") if given else spread_evenly(depth, a.layers)
        narrower = a.embedding_width < teacher.architecture.embedding_width
        tokens = _sampled_tokens(store) if narrower else None
        copied = copy_weights(contents.network, teacher.network, layers, tokens)
        if given and copied.layers < a.layers:
            raise UserError(f"distill.layers: {copied.misfit}; leave it out, or give the student the teacher's shape")
        total = len(contents.network.state_dict())
        which = f"layers {', '.join(map(str, layers))}" if copied.layers == a.layers else copied.misfit
        line = f"{copied.tensors} of {total} tensors from the teacher; {which}"
        if copied.positions and copied.layers == a.layers:
            contents.max_length = teacher.limit  # every position is known
    return build.fit_to_recipe(contents, recipe, store), f"first weights: {line}"


def _sampled_tokens(store: Store) -> torch.Tensor:
    """Return tokens at equal distances in a text."""
    step = store.tokens // SAMPLED_TOKENS + 1
    ids = np.concatenate([shard.tokens[::step] for shard in store.shards]).astype(np.int64)
    return torch.from_numpy(ids[ids < store.vocab_size])


def _student_pooling(a: Architecture, teacher: Model, seed: int) -> SentencePooling:
    """Return how the student makes vectors: as its teacher does, or with a linear layer to the width of the teacher's
    vectors if their states differ in width."""
    its = teacher.pooling
    same = a.output_width == its.state_width
    config = its.config if same else replace(its.config, dense=(Dense(its.width, "identity"),))
    pooling = SentencePooling(a.output_width, config, a.ends_in_summary)
    if same:
        pooling.load_state_dict(its.state_dict())
        return pooling
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialize(pooling, a.output_width**-0.5)
    return pooling


def build_objective(
    wanted: DistillSettings, weights: dict[str, float], contents: Contents, teacher: Model, seed: int
) -> tuple[StudentWithProjections, PretrainingDistillation]:
    """Build the student module and its objective."""
    a, its = contents.architecture, teacher.architecture
    assert isinstance(a, Transformer), "no other kind has an MLM head"
    assert isinstance(its, Transformer), "no other kind has an MLM head"
    given = wanted.match
    last = parse_layers(given, its.layers, a.layers, "distill.match") if given else last_layers(its.layers, a.layers)
    pairs = list(enumerate(last, 1)) if weights["hidden"] else []
    widths = a.heads * a.head_size, its.heads * its.head_size  # of queries and keys
    both = math.gcd(*widths)
    fitting = max(number for number in range(1, its.heads + 1) if both % number == 0)
    heads, layer = wanted.relation_heads or fitting, wanted.relation_layer or its.layers
    if weights["relation"]:
        if both % heads:
            raise UserError(
                f"distill.relation_heads: {heads} must divide the widths of student and teacher ({widths[0]} and "
                f"{widths[1]}); {fitting} does"
            )
        if layer > its.layers:
            raise UserError(f"distill.relation_layer: {layer} is more than the teacher's {its.layers} layers")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        learner = add_projections(contents.network, a.output_width, its.output_width, weights, len(pairs))
    needed = any(weight for term, weight in weights.items() if term != "mlm") and not wanted.cache
    objective = distillation_objective(
        weights,
        teacher.network if needed else None,
        wanted.temperature,
        wanted.everywhere,
        pairs,
        (a.layers, layer, heads),
    )
    return learner, objective
