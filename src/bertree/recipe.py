"""A recipe is a TOML file: what to train, on what, how. Read, laid over the recipe it extends, checked, frozen.

    extends = "bert-base"            another recipe, by name or path; this file holds the differences
    [model]                          preset or start, and any axis of the architecture
    [data] [objective] [optim] [schedule] [run]
    [[phases]]                       one after the other: steps, max_length, batch_tokens

Overrides (`optim.lr=1e-4`) change the tree before it is checked; nothing changes it afterwards. Each part of
the program is handed its own section and never sees the whole.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from bertree.errors import UserError, suggest
from bertree.files import Json, read_toml

MOST_STEPS = 20_000_000
MOST_SEED = 2**62
SHIPPED = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Data:
    """Which text, and what an example is."""

    store: str = ""  # folder of a token store (`bertree prepare`)
    held_out: str = ""  # another store to evaluate on; without one, a share of the documents is held out
    held_out_share: float = 0.01
    format: str = "full-sentences"
    masking: str = "token"
    mask_rate: float = 0.15


@dataclass(frozen=True)
class Objective:
    """Weights of the loss terms; 0 leaves one out."""

    mlm: float = 1.0
    nsp: float = 0.0
    sop: float = 0.0


@dataclass(frozen=True)
class Optim:
    """The optimiser."""

    name: str = "adamw"
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01  # not on biases and norms
    clip: float = 1.0  # largest norm of the gradient; 0: no limit


@dataclass(frozen=True)
class Schedule:
    """The learning rate over the run."""

    shape: str = "linear"  # after the warm-up: linear, cosine, constant
    warmup: int = 0  # steps in which the rate rises from 0
    final: float = 0.0  # share of the rate that is left at the end
    growth: int = 1  # up to this factor the batch grows instead of the rate's decay


@dataclass(frozen=True)
class Phase:
    """A stretch of the run with one length and one batch size."""

    steps: int = 0
    max_length: int = 512
    batch_tokens: int = 131072
    mask_rate: float = 0.0  # in this phase; 0: the data's. Held-out text is always masked at the data's


@dataclass(frozen=True)
class Run:
    """How it is computed, watched and kept."""

    seed: int = 0
    device: str = "auto"  # cuda where there is one
    precision: str = "auto"  # bf16 on a GPU that has it, else fp32
    compile: str = "auto"  # yes, no; auto: on a GPU
    deterministic: bool = True  # the same bytes every time
    micro_tokens: int = 0  # tokens computed at once; 0: as many as the device likes
    recompute: bool = False  # activations again in the backward pass: less memory, a third more work
    log_every: int = 50
    eval_every: int = 1000
    eval_tokens: int = 262144  # of held-out text
    save_every: int = 1000
    keep: int = 2  # newest checkpoints; the best is kept as well
    bad_steps: int = 20  # steps in a row without a finite gradient after which the run stops
    tensorboard: bool = False


@dataclass(frozen=True)
class Recipe:
    """A whole run."""

    name: str = ""
    note: str = ""
    model: Json = field(default_factory=dict)  # preset or start, and axes: checked by who builds the model
    data: Data = Data()
    objective: Objective = Objective()
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    phases: tuple[Phase, ...] = ()
    run: Run = Run()


OPTIONS = {
    "optim.name": ("adamw", "lamb"),
    "schedule.shape": ("linear", "cosine", "constant"),
    "run.precision": ("auto", "bf16", "fp32"),
    "run.compile": ("auto", "yes", "no"),
}
ABOVE_ZERO = ("optim.lr", "optim.eps", "data.mask_rate")
AT_LEAST_ONE = (
    *("phases.steps", "phases.max_length", "phases.batch_tokens", "schedule.growth"),
    *("run.log_every", "run.eval_every", "run.eval_tokens", "run.save_every", "run.keep", "run.bad_steps"),
)
NOT_NEGATIVE = (
    *("optim.weight_decay", "optim.clip", "schedule.warmup", "schedule.final", "run.micro_tokens", "run.seed"),
    *("objective.mlm", "objective.nsp", "objective.sop"),
)
SHARES = ("optim.betas", "schedule.final", "data.held_out_share", "phases.mask_rate")


def shipped() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of that name or file, with the overrides laid over it."""
    tree = _tree(name, ())
    for override in overrides:
        _override(tree, override)
    return from_tree(tree, name)


def from_tree(tree: Json, where: str) -> Recipe:
    """A checked recipe from plain values."""
    recipe: Recipe = _read(Recipe, tree, where, "")
    _check(recipe, where)
    return recipe


def as_toml(recipe: Recipe) -> str:
    """The whole recipe, every value written out."""
    tree = asdict(recipe)
    plain = {key: value for key, value in tree.items() if isinstance(value, str)}
    lines = [f"{key} = {_toml(value)}" for key, value in plain.items() if value]
    for name, value in tree.items():
        for table in value if name == "phases" else [value]:
            if isinstance(table, dict):
                lines += ["", f"[[{name}]]" if name == "phases" else f"[{name}]"]
                lines += [f"{key} = {_toml(inner)}" for key, inner in table.items()]
    return "\n".join(lines) + "\n"


def differences(one: Recipe, other: Recipe) -> list[str]:
    """Keys in which two recipes differ, for example `optim.lr`."""
    first, second = _flat(asdict(one)), _flat(asdict(other))
    return sorted(key for key in first | second if first.get(key) != second.get(key))


def _flat(tree: Any, prefix: str = "") -> Json:
    items: Iterable[tuple[Any, Any]]
    if isinstance(tree, dict):
        items = tree.items()
    elif isinstance(tree, list | tuple) and tree and isinstance(tree[0], dict):
        items = enumerate(tree)
    else:
        return {prefix: list(tree) if isinstance(tree, tuple) else tree}
    flat: Json = {}
    for key, value in items:
        flat |= _flat(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _tree(name: str, above: tuple[Path, ...]) -> Json:
    """The values of a recipe laid over those of the recipe it extends."""
    path = _find(name, above[-1].parent if above else Path())
    if path in above:
        raise UserError(f"{above[-1]}: extends: the recipes extend each other in a circle")
    tree = read_toml(path)
    base = tree.pop("extends", None)
    tree.setdefault("name", path.stem)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise UserError(f"{path}: extends: must be the name or the path of a recipe, not {base!r}")
    return _merged(_tree(base, (*above, path)), tree)


def _find(name: str, beside: Path) -> Path:
    given = Path(name)
    for path in (given, beside / given, SHIPPED / f"{name}.toml"):
        if path.is_file():
            return path.resolve()
    if given.suffix == ".toml" or "/" in name:
        raise UserError(f"{name}: no such recipe file")
    raise UserError(f"{name}: no such recipe, {suggest(name, shipped())}; or give the path of a .toml file")


def _merged(base: Json, over: Json) -> Json:
    """Tables are laid over each other; everything else, phases too, is replaced."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = _merged(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return result


def _override(tree: Json, text: str) -> None:
    """One `key.key=value` from the command line; the value in TOML, or a bare word."""
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise UserError(f"'{text}': expected key=value, for example optim.lr=1e-4")
    try:
        value = tomllib.loads(f"v = {raw}")["v"]
    except tomllib.TOMLDecodeError:
        value = raw
    *path, last = key.split(".")
    place: Any = tree
    for word in path:
        if isinstance(place, list):
            place = _item(place, word, key)
        elif isinstance(place, dict):
            place = place.setdefault(word, {})
    if isinstance(place, list):
        _item(place, last, key)
        place[int(last)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise UserError(f"{key}: is a single value, not a table")


def _item(items: list[Any], word: str, key: str) -> Any:
    if not word.isdigit() or int(word) >= len(items):
        raise UserError(f"{key}: '{word}' is not one of the {len(items)} entries, which count from 0")
    return items[int(word)]


def _read(kind: Any, value: Any, where: str, at: str) -> Any:
    """`value` as `kind`: a dataclass, a list of them, or a plain type. The first mistake is named."""
    place = f"{where}: {at}" if at else where
    if is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise UserError(f"{place}: must be a table")
        hints = get_type_hints(kind)
        found = {}
        for key, inner in value.items():
            if key not in hints:
                raise UserError(f"{where}: {at + '.' if at else ''}{key}: unknown key, {suggest(key, hints)}")
            found[key] = _read(hints[key], inner, where, f"{at}.{key}" if at else key)
        return kind(**found)  # type: ignore[operator]
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        if not isinstance(value, list | tuple):
            raise UserError(f"{place}: must be a list")
        if kinds[-1] is not ... and len(value) != len(kinds):
            raise UserError(f"{place}: must be a list of {len(kinds)} values, not {len(value)}")
        return tuple(_read(kinds[0], inner, where, f"{at}.{i}") for i, inner in enumerate(value))
    if kind is float and type(value) is int:
        return float(value)
    wanted = dict if get_origin(kind) is dict else kind
    if type(value) is not wanted:
        raise UserError(f"{place}: must be {_WORDS[wanted]}, not {value!r}")
    return value


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a table"}


def _check(recipe: Recipe, where: str) -> None:
    """What types cannot say."""
    for key, value in _values(recipe):
        if key in OPTIONS and value not in OPTIONS[key]:
            raise UserError(f"{where}: {key}: unknown value '{value}', {suggest(value, OPTIONS[key])}")
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise UserError(f"{where}: {key}: must be finite, not {value}")
        if key in ABOVE_ZERO and not value > 0:
            raise UserError(f"{where}: {key}: must be above 0, not {value}")
        if key in AT_LEAST_ONE and value < 1:
            raise UserError(f"{where}: {key}: must be at least 1, not {value}")
        if key in NOT_NEGATIVE and value < 0:
            raise UserError(f"{where}: {key}: must not be negative, but is {value}")
        if key == "run.seed" and value > MOST_SEED:
            raise UserError(f"{where}: run.seed: must be at most {MOST_SEED}, not {value}")
        if key in SHARES and not all(0 <= part < 1 for part in (value if isinstance(value, tuple) else (value,))):
            raise UserError(f"{where}: {key}: must lie in [0, 1), not {value}")
    if not recipe.phases:
        raise UserError(f"{where}: phases: there is none; add [[phases]] with steps, max_length and batch_tokens")
    terms = asdict(recipe.objective)
    if not any(terms.values()):
        raise UserError(f"{where}: objective: every term is 0, so there is nothing to learn")
    if terms["nsp"] and terms["sop"]:
        raise UserError(f"{where}: objective: nsp and sop ask about the same pair; set one of them to 0")
    asked = recipe.data.format.partition("+")[2]
    for name in ("nsp", "sop"):
        if terms[name] and asked != name:
            raise UserError(
                f"{where}: objective.{name}: needs a format that asks it, for example segment-pair+{name}, "
                f"not {recipe.data.format}"
            )
    total = sum(phase.steps for phase in recipe.phases)
    if recipe.schedule.warmup > total:
        raise UserError(
            f"{where}: schedule.warmup: {recipe.schedule.warmup} is more than the run's {total} steps; set a shorter "
            "one: schedule.warmup=..."
        )
    if total > MOST_STEPS:
        raise UserError(f"{where}: phases: {total} steps in all are more than the {MOST_STEPS} supported")
    for key, value in recipe.model.items():
        if type(value) not in (str, int, float, bool):
            raise UserError(f"{where}: model.{key}: must be a single value, not {value!r}")


def _values(recipe: Recipe) -> Iterable[tuple[str, Any]]:
    for section in fields(recipe):
        value = getattr(recipe, section.name)
        parts: Sequence[Any] = value if section.name == "phases" else [value]
        for part in parts:
            if is_dataclass(part):
                for inner in fields(part):
                    yield f"{section.name}.{inner.name}", getattr(part, inner.name)


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
