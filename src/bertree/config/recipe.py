"""A recipe is a TOML file: what to train, on what, how. Read, laid over the recipe it extends, checked, frozen.

    extends = "bert-base"            another recipe, by name or path; this file holds the differences
    [model]                          preset or start, and any axis of the architecture
    [data] [objective] [optim] [schedule] [run]
    [[phases]]                       one after the other: steps, max_length, batch_tokens

Overrides (`optim.lr=1e-4`) change the tree before it is checked; nothing changes it afterwards. Each part of
the program is handed its own section and never sees the whole.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bertree.config import settings
from bertree.errors import UserError, suggest
from bertree.files import Json, read_toml

MOST_STEPS = 20_000_000
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


@dataclass(frozen=True)
class Distil:
    """What is learned from a teacher. Weights of terms: 0 leaves one out; that of the true tokens is objective.mlm."""

    teacher: str = ""  # folder of a model with an MLM head
    ce: float = 5.0  # its distribution at the masked tokens
    cos: float = 1.0  # the direction of its last states
    hidden: float = 0.0  # its states between, layer by layer
    relation: float = 0.0  # how its queries, keys and values relate tokens (MiniLM)
    temperature: float = 2.0
    everywhere: bool = False  # ce at every token instead of the masked ones
    start: str = "teacher"  # the student's first weights: teacher (some of its layers), random
    layers: str = ""  # which of the teacher's layers those are, from 1: "1,3,5"; none: evenly spread from the first
    match: str = ""  # which of its layers each of the student's is compared with; none: evenly spread up to the last
    relation_layer: int = 0  # of the teacher; 0: the last
    relation_heads: int = 0  # 0: the teacher's attention heads, or fewer where the widths ask for it
    cache: str = ""  # folder to keep the teacher's likeliest tokens in, so that it need not be asked again
    top_k: int = 32  # how many of them


@dataclass(frozen=True)
class DistilRecipe(Recipe):
    """A whole run of a student. model.preset may be "half": half of the teacher."""

    distil: Distil = Distil()


LIMITS = settings.Limits(
    options={
        "optim.name": ("adamw", "lamb"),
        "schedule.shape": ("linear", "cosine", "constant"),
        "run.precision": ("auto", "bf16", "fp32"),
        "run.compile": ("auto", "yes", "no"),
        "distil.start": ("teacher", "random"),
    },
    above_zero=("optim.lr", "optim.eps", "data.mask_rate", "distil.temperature"),
    at_least_one=(
        *("phases.steps", "phases.max_length", "phases.batch_tokens", "schedule.growth"),
        *("run.log_every", "run.eval_every", "run.eval_tokens", "run.save_every", "run.keep", "run.bad_steps"),
        "distil.top_k",
    ),
    not_negative=(
        *("optim.weight_decay", "optim.clip", "schedule.warmup", "schedule.final", "run.micro_tokens", "run.seed"),
        *("objective.mlm", "objective.nsp", "objective.sop"),
        *("distil.ce", "distil.cos", "distil.hidden", "distil.relation"),
        *("distil.relation_layer", "distil.relation_heads"),
    ),
    shares=("optim.betas", "schedule.final", "data.held_out_share", "phases.mask_rate"),
)


def shipped() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def load(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe of that name or file, with the overrides laid over it."""
    tree = _tree(name, ())
    for override in overrides:
        settings.override(tree, override)
    return from_tree(tree, name)


def from_tree(tree: Json, where: str) -> Recipe:
    """A checked recipe from plain values."""
    recipe: Recipe = settings.read(DistilRecipe if "distil" in tree else Recipe, tree, where)
    check(recipe, where)
    return recipe


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
    return settings.merged(_tree(base, (*above, path)), tree)


def _find(name: str, beside: Path) -> Path:
    given = Path(name)
    for path in (given, beside / given, SHIPPED / f"{name}.toml"):
        if path.is_file():
            return path.resolve()
    if given.suffix == ".toml" or "/" in name:
        raise UserError(f"{name}: no such recipe file")
    raise UserError(f"{name}: no such recipe, {suggest(name, shipped())}; or give the path of a .toml file")


def check(recipe: Recipe, where: str) -> None:
    """What types cannot say."""
    settings.check(recipe, where, LIMITS)
    if not recipe.phases:
        raise UserError(f"{where}: phases: there is none; add [[phases]] with steps, max_length and batch_tokens")
    terms = asdict(recipe.objective)
    taught = isinstance(recipe, DistilRecipe) and any(
        (recipe.distil.ce, recipe.distil.cos, recipe.distil.hidden, recipe.distil.relation)
    )
    if not any(terms.values()) and not taught:
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
