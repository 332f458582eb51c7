"""A recipe is a TOML file that describes a run on a token store: read, laid over what it extends, checked, frozen.

    extends = "bert-base"            another recipe, by name or path; this file holds the differences
    [model]                          preset or start, and any axis of the architecture
    [data] [objective] [optim] [schedule] [run] [scale]
    [distill]                         in a recipe for a student
    [[phases]]                       one after the other: steps, max_length, batch_tokens

Overrides (`optim.lr=1e-4`) change the tree before it is checked; nothing changes it afterwards. Each part of
the program is given its own section and never sees the rest.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from bertree.config import settings
from bertree.config.overrides import Override, apply_overrides, overrides_of, parse
from bertree.config.sections import OptimSettings, Phase, ScaleSettings, ScheduleSettings
from bertree.config.settings import AtLeast, Keys, setting
from bertree.console import note
from bertree.errors import UserError, suggest
from bertree.files.formats import Json, read_toml
from bertree.model.architecture import TYPES, Architecture
from bertree.model.presets import preset
from bertree.objectives.pretraining import TERMS, WEIGHTS
from bertree.pretraining.sections import LANES, DataSettings, DistillSettings, PretrainingRunSettings
from bertree.train.feed import MOST_STEPS

BUNDLED = Path(__file__).parent / "recipes"
MODEL_KEYS = ("preset", "start", *TYPES)


@dataclass(frozen=True)
class Recipe:
    """The settings of a run."""

    name: str = setting("", "of the recipe")
    note: str = setting("", "what it is, in a line")
    model: Json = field(default_factory=dict)  # preset or start, and axes of the architecture
    data: DataSettings = field(default_factory=DataSettings)
    # Weights of the loss terms; 0 leaves one out.
    objective: Annotated[dict[str, float], Keys(WEIGHTS), AtLeast(0)] = field(default_factory=lambda: dict(WEIGHTS))
    optim: OptimSettings = field(default_factory=OptimSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    phases: tuple[Phase, ...] = ()
    run: PretrainingRunSettings = field(default_factory=PretrainingRunSettings)
    scale: ScaleSettings = field(default_factory=ScaleSettings)
    # Where it was read from, for messages, and the keys that overrides have set.
    source: str = field(default="", compare=False, metadata=settings.NOT_A_SETTING)
    overridden: frozenset[str] = field(default=frozenset(), compare=False, metadata=settings.NOT_A_SETTING)

    @property
    def axes(self) -> dict[str, Any]:
        """The axes of the architecture that the recipe sets."""
        values = {axis: value for axis, value in self.model.items() if axis in TYPES}
        return {axis: _read_axis(axis, value, self.source) for axis, value in values.items()}

    def base_architecture(self) -> Architecture:
        """Return the architecture of the preset."""
        name = self.model.get("preset")
        if not name:
            raise UserError(f"{self.source}: model.preset: is not set; give a preset's name (see `bertree info`)")
        try:
            return preset(str(name)).architecture
        except UserError as error:
            raise UserError(f"{self.source}: model.preset: {error}") from None

    def with_axes(self, base: Architecture, axes: Mapping[str, Any]) -> Architecture:
        """Return an architecture with other axes, which this recipe asks for."""
        try:
            return base.with_values(axes)
        except UserError as error:
            raise UserError(f"{self.source}: model: {error}") from None


@dataclass(frozen=True)
class DistillRecipe(Recipe):
    """The settings of a student's run. model.preset may be "half": half of the teacher."""

    distill: DistillSettings = field(default_factory=DistillSettings)


@contextmanager
def naming_recipe(recipe: Recipe) -> Iterator[None]:
    """Name the recipe before an error that begins with one of its settings."""
    try:
        yield
    except UserError as error:
        if setting := re.match(r"([a-z]+)\.[a-z]|(max_length|batch_tokens|masking|format) ", str(error)):
            if setting[2]:
                section = "data" if setting[2] in ("masking", "format") else "phases"
                error.args = (f"{recipe.source}: {section}: {error}",)
            elif setting[1] in {field.name for field in fields(DistillRecipe)}:
                error.args = (f"{recipe.source}: {error}",)
        raise


def bundled_recipes() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in BUNDLED.glob("*.toml"))


def recipes() -> dict[str, str]:
    """Return the built-in recipes: their names, each with a note on what it is.

    >>> bertree.recipes()["bert-base-tiny"]
    """
    return {name: load(name).note for name in bundled_recipes()}


def recipe(name: str | Path, *, overrides: Sequence[str] = (), **changes: Any) -> Recipe:
    """Return a recipe with every value: a built-in one, or a .toml file; `changes` are other settings (`lr=1e-4`).

    >>> bertree.recipe("bert-base-tiny", lr=1e-4).optim.lr
    """
    return load(str(name), [*overrides, *overrides_of(changes)])


def load(name: str, overrides: Iterable[str | Override] = ()) -> Recipe:
    """Return the recipe of that name or file with the overrides laid over it."""
    return with_overrides(_tree(name, ()), name, overrides)


def with_overrides(tree: Json, name: str, overrides: Iterable[str | Override]) -> Recipe:
    """Return the recipe of plain values with the overrides laid over it; `name` is for messages."""
    steps = total_steps(tree)
    parsed = [parse(override) if isinstance(override, str) else override for override in overrides]
    sections = {*tree, *(override.key.partition(".")[0] for override in parsed)}
    kind = DistillRecipe if "distill" in sections else Recipe
    for section in (override.key.partition(".")[0] for override in parsed if "." in override.key):
        if not isinstance(tree.get(section, {}), dict | list if section == "phases" else dict):
            raise UserError(f"{name}: {section}: must be a table")
    overridden = apply_overrides(tree, parsed, kind, free={"model": MODEL_KEYS})
    if "schedule.warmup" not in overridden:
        scale_warmup(tree, steps)
    return from_tree(tree, name, overridden)


def from_tree(tree: Json, where: str, overridden: Iterable[str] = ()) -> Recipe:
    """Return a checked recipe from plain values."""
    kind = DistillRecipe if "distill" in tree else Recipe
    recipe: Recipe = settings.read(kind, tree, where)
    check(recipe, where)
    return replace(recipe, source=where, overridden=frozenset(overridden))


def _tree(name: str, above: tuple[Path, ...]) -> Json:
    """Return the values of a recipe laid over those of the recipe it extends."""
    path = _find(name, above[-1].parent if above else Path())
    if path in above:
        raise UserError("the recipes extend each other in a circle")
    tree = read_toml(path)
    base = tree.pop("extends", None)
    tree.setdefault("name", path.stem)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{path}: extends: must be the name or the path of a recipe, not {base!r}")
    try:
        below = _tree(base, (*above, path))
    except UserError as error:
        raise UserError(f"{name}: extends: {error}") from None
    merged = settings.merge(below, tree)
    if isinstance(schedule := tree.get("schedule", {}), dict) and "warmup" not in schedule:
        scale_warmup(merged, total_steps(below))
    return merged


def _find(name: str, beside: Path) -> Path:
    path = Path(name)
    try:
        for candidate in (path, beside / path, BUNDLED / f"{name}.toml"):
            if candidate.is_file():
                return candidate.resolve()
    except (OSError, ValueError):  # a name that no file can have
        pass
    if path.suffix == ".toml" or "/" in name:
        raise UserError(f"{name}: no such recipe file")
    raise UserError(f"'{name}': no such recipe, {suggest(name, bundled_recipes())}; or give the path of a .toml file")


def check(recipe: Recipe, where: str) -> None:
    """Check what concerns more than one setting."""
    if not recipe.phases:
        raise UserError(f"{where}: phases: there is none; add [[phases]] with steps, max_length and batch_tokens")
    _check_objective(recipe, where)
    _check_lanes(recipe, where)
    total = sum(phase.steps for phase in recipe.phases)
    if recipe.schedule.warmup > total:
        raise UserError(
            f"{where}: schedule.warmup: {recipe.schedule.warmup} is more than the run's {total} steps; set a shorter "
            "one: schedule.warmup=..."
        )
    if recipe.run.minutes and isinstance(recipe, DistillRecipe) and recipe.distill.cache:
        raise UserError(
            f"{where}: run.minutes: the teacher's cache (distill.cache) is filled before steps can be measured; leave "
            "one of them out"
        )
    if total > MOST_STEPS:
        raise UserError(f"{where}: phases: {total} steps in all are more than the {MOST_STEPS} supported")
    for key, value in recipe.model.items():
        if key not in MODEL_KEYS:
            raise UserError(f"{where}: {settings.key_path('model', key)}: unknown key, {suggest(key, MODEL_KEYS)}")
        _read_axis(key, value, where)


def _read_axis(name: str, value: Any, where: str) -> Any:
    """Read an axis of the architecture, or the name of a preset. One number needs no quotes where a list may stand."""
    kind = TYPES.get(name, str)
    text = str(value) if kind is str and name in TYPES and type(value) is int else value
    return settings.read(kind, text, where, f"model.{name}")


def _check_lanes(recipe: Recipe, where: str) -> None:
    data = recipe.data
    if not data.in_lanes:
        if data.format.startswith("lanes"):
            raise UserError(f"{where}: data.format: {data.format}: unknown, {suggest(data.format, LANES)}")
        if data.backward:
            raise UserError(
                f"{where}: data.backward: only lanes run backwards; set data.format=lanes, or backward=false"
            )
        return
    if data.masking == "next" and (data.backward or data.paired):
        key = "backward" if data.backward else "format"
        raise UserError(
            f"{where}: data.{key}: {str(getattr(data, key)).lower()}: the next token is predicted forwards alone; set "
            "data.masking=permutation"
        )
    if data.paired and not 0 < data.reuse < 1:
        raise UserError(f"{where}: data.reuse: {data.reuse}: give a share of more than 0, less than 1")
    if isinstance(recipe, DistillRecipe):
        raise UserError(f"{where}: data.format: {recipe.data.format}: a student does not read in lanes; set stream")
    for number, phase in enumerate(recipe.phases):
        if phase.batch_tokens % phase.max_length:
            raise UserError(
                f"{where}: phases.{number}.batch_tokens: {phase.batch_tokens} must be a multiple of max_length "
                f"{phase.max_length}: each of the lanes reads that much in a step"
            )


def _check_objective(recipe: Recipe, where: str) -> None:
    used = [TERMS[name] for name, weight in recipe.objective.items() if weight]
    has_teacher_terms = isinstance(recipe, DistillRecipe) and any(recipe.distill.weights.values())
    if not used and not has_teacher_terms:
        raise UserError(f"{where}: objective: every term is 0, so there is nothing to learn")
    by_targets: dict[str, str] = {}
    for term in used:
        if (first := by_targets.setdefault(term.targets, term.name)) != term.name:
            raise UserError(f"{where}: objective: {first} and {term.name} have the same targets; set one of them to 0")
    for term in used:
        provided = "nsp" if recipe.data.paired else recipe.data.format.partition("+")[2]
        if term.format and provided != term.format:
            has_lanes = recipe.data.in_lanes and term.format == "nsp"
            example = "lanes+pairs" if has_lanes else f"segment-pair+{term.format}"
            raise UserError(
                f"{where}: objective.{term.name}: needs a format that provides it, for example {example}, not "
                f"{recipe.data.format}"
            )


def check_architecture(recipe: Recipe, a: Architecture, unit: str, has_codes: bool) -> None:
    """Check that a model can learn what the data asks for: `unit` of masking, and control codes before texts."""
    where = f"{recipe.source}: data.masking"
    if a.direction != "forward":
        _check_direction(recipe, a.direction, unit, has_codes)
    if recipe.data.in_lanes and not a.has_attention:
        raise UserError(
            f"{recipe.source}: data.format: a {a.body} starts every sequence afresh; set data.format=stream"
        )
    if unit == "next" and not a.causal:
        kinds = str(a.axes().get("attention", "full"))
        way = "model.attention=causal" if "full" in kinds else "model.look_ahead=false"
        raise UserError(f"{where}: next: with {kinds} attention a token sees the one it must predict; set {way}")
    if unit == "permutation" and a.causal:
        raise UserError(
            f"{where}: permutation: with causal attention a token sees those before it in the text, whatever the "
            "order; set model.attention=full"
        )
    if unit == "permutation" and not a.axes().get("query_stream"):
        raise UserError(
            f"{where}: permutation: a token must be predicted without being seen, by a second stream; set "
            "model.query_stream=true, or model.preset=xlnet-base"
        )
    if recipe.data.in_lanes and a.causal and unit != "next":
        raise UserError(f"{where}: {unit}: with causal attention lanes predict the next token; set data.masking=next")
    if recipe.data.paired and int(a.axes().get("segments", 0)) < 3:
        raise UserError(
            f"{recipe.source}: data.format: lanes+pairs: tells apart two texts and [CLS]; set model.segments=3"
        )


def _check_direction(recipe: Recipe, direction: str, unit: str, has_codes: bool) -> None:
    """Check that a text can be read from its end."""
    where = f"{recipe.source}: model.direction: {direction}"
    if unit != "next":
        raise UserError(f"{where}: every token predicts another one, and none is masked; set data.masking=next")
    if recipe.data.in_lanes:
        raise UserError(f"{where}: lanes run from left to right; set data.format=stream")
    if has_codes:
        raise UserError(
            f"{where}: the control codes of {recipe.data.store} stand before the texts, where they would be read last; "
            "set model.direction=forward"
        )


def total_steps(tree: Json) -> int:
    """Return the steps of all phases, of values that are not checked yet."""
    phases = tree.get("phases")
    steps = (
        [phase.get("steps") if isinstance(phase, dict) else None for phase in phases] if type(phases) is list else []
    )
    return sum(steps) if all(type(count) is int for count in steps) else 0  # type: ignore[arg-type]


def scale_warmup(tree: Json, steps: int) -> None:
    """Scale a warm-up that was chosen for a run of so many steps, if the tree's run is so short that more than half of
    it would be warm-up."""
    schedule, total = tree.get("schedule"), total_steps(tree)
    warmup = schedule.get("warmup") if isinstance(schedule, dict) else None
    if type(warmup) is not int or not 0 < total < steps or 2 * warmup <= total:
        return
    scaled = max(1, round(warmup * total / steps))
    tree["schedule"] = schedule | {"warmup": scaled}  # type: ignore[operator]
    note(f"schedule.warmup: {scaled} of {total} steps, scaled from the recipe's {warmup} of {steps:,}")
