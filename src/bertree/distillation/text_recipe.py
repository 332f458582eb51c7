"""The recipe of a student on text: found by name, sized by the text, and checked against teacher and store."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertree.config.overrides import Override
from bertree.config.sections import Phase, ScaleSettings
from bertree.data.store import Store
from bertree.distillation.student import HALF
from bertree.errors import UserError, suggest
from bertree.inference.model import Model
from bertree.model.presets import PRESETS
from bertree.objectives.distill_pretraining import TEACHER_STATE_TERMS
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.pretraining.build import resolve_paths
from bertree.pretraining.recipe import DistillRecipe
from bertree.text.identity import tokenizer_hash

DEFAULT_RECIPE = "distilbert"  # of a student that is named by its shape alone
EPOCHS, WARMUP = 3.0, 0.05  # of such a student, and the share of its steps spent on warm-up
MIN_STEPS, MIN_BATCH = 4000, 4096  # steps below which the batch is made smaller, down to this size in tokens


def find_recipe(student: str, options: dict[str, str], overrides: Sequence[str | Override]) -> DistillRecipe:
    """Return the recipe of a student; `options` holds the values of named options."""
    named = _is_shape(student)
    if not named and Path(student).is_dir():
        raise UserError(f"`student={student}`: a model folder can be taught a task (`task`); on text, name its shape")
    if not named and student not in recipes.bundled_recipes() and not Path(student).is_file() and "/" not in student:
        names = (HALF, *(n for n, p in PRESETS.items() if not p.study), *recipes.bundled_recipes())
        raise UserError(f"`student={student}`: is neither half nor a preset nor a recipe; {suggest(student, names)}")
    shape = [f"model.preset={json.dumps(student)}"] if named else []
    lines = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in options.items() if value]
    recipe = resolve_paths(recipes.load(DEFAULT_RECIPE if named else student, [*shape, *overrides, *lines]))
    assert isinstance(recipe, DistillRecipe)
    if not recipe.data.store:
        raise UserError("`store`: is not set; give the folder of a token store (see `bertree prepare`)")
    _check_scale(recipe)
    return recipe


def _check_scale(recipe: DistillRecipe) -> None:
    defaults = replace(ScaleSettings(), data=recipe.scale.data)
    changed = next((name for name, value in vars(defaults).items() if getattr(recipe.scale, name) != value), None)
    if changed:
        raise UserError(f"scale.{changed}: every rank has a full copy of a student (data parallelism); leave it out")


def _is_shape(student: str) -> bool:
    return student == HALF or student in PRESETS


def set_sizes(recipe: DistillRecipe, student: str, epochs: float, store: Store, longest: int) -> DistillRecipe:
    """Return the recipe fitted to text and teacher. Settings of the user stay, and the others are still
    fitted.

    Sequences are at most `longest`, the teacher's maximum length. For a student that is named by its shape alone, the
    batch size is the paper's only if there is enough text: many small steps learn more from little text.
    """
    overridden, phases = recipe.overridden, recipe.phases
    named, has_steps = _is_shape(student), "phases.0.steps" in overridden
    if epochs and (has_steps or len(phases) > 1):
        why = "phases.0.steps says the same" if has_steps else f"the recipe has {len(phases)} phases"
        raise UserError(f"epochs: {why}; set the steps of each phase, or leave them out")
    if epochs and recipe.run.minutes:
        raise UserError("epochs: run.minutes says how long the run takes; leave one of them out")
    count = (epochs or EPOCHS) * store.tokens
    own_file = not named and student not in recipes.bundled_recipes()

    def fit(phase: Phase, key: str) -> Phase:
        size, length = phase.batch_tokens, phase.max_length
        if named and f"{key}.batch_tokens" not in overridden:
            while size > MIN_BATCH and count / size < MIN_STEPS:
                size //= 2
        if length > longest and (own_file or f"{key}.max_length" in overridden):
            raise UserError(
                f"{recipe.source}: {key}.max_length: {length} is more than the {longest} tokens the teacher reads; "
                f"set {key}.max_length={longest}"
            )
        return replace(phase, batch_tokens=size, max_length=min(length, longest))

    phases = tuple(fit(phase, f"phases.{number}") for number, phase in enumerate(phases))
    schedule = recipe.schedule
    if epochs or (named and not has_steps):
        phases = (replace(phases[0], steps=max(1, math.ceil(count / phases[0].batch_tokens))),)
        if "schedule.warmup" not in overridden:
            schedule = replace(schedule, warmup=math.ceil(WARMUP * phases[0].steps))
    sized = replace(recipe, phases=phases, schedule=schedule)
    recipes.check(sized, recipe.source)
    return sized


def check(recipe: DistillRecipe, teacher: Model, store: Store, name: str) -> None:
    """Refuse a recipe, teacher and store that do not fit together."""
    if teacher.tokenizer is not None and tokenizer_hash(teacher.tokenizer) != store.tokenizer_hash:
        raise UserError(
            f"{store.folder}: was made with another tokenizer than {name}'s, and what is learned of one vocabulary "
            "says nothing about another; prepare the text with the teacher's (bertree prepare), "
            "or teach a task, where vocabularies may differ (`task=TASK` `data=DIR`)"
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
