"""The memory plan of a recipe, `bertree.plan`, and its chart: what a device needs on each mesh, against what it has."""

from collections.abc import Mapping, Sequence
from os import fspath
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup

from bertree.config import names as model_names
from bertree.config.overrides import overrides_of
from bertree.errors import UserError
from bertree.files.atomic import refuse_other, write_atomically
from bertree.interop.folder import read_architecture
from bertree.model import cost
from bertree.model.architecture import Architecture, Transformer, check_type, parse_override
from bertree.model.cost import GIB
from bertree.model.presets import PRESETS, preset
from bertree.pretraining.build import mask_share
from bertree.pretraining.recipe import Recipe, bundled_recipes, load
from bertree.report.svg import LETTER, WIDTH, element, group, path, standalone_picture, text
from bertree.scale.plan.memory import Bytes
from bertree.scale.plan.meshes import Batches, Hardware, Row, name
from bertree.scale.plan.plan import Plan, make_plan

BATCH_TOKENS = 524_288  # of Megatron-LM and Turing-NLG: 512 sequences of 1,024 tokens, or 1,024 of 512
MARGIN, ROW, THICK = 10, 36, 13
COLOUR_OF = {"weights": 0, "gradients": 1, "optimizer": 2, "activations": 4, "buffers": 7}  # number of its colour
LONGEST = 26  # letters of a model's name that are shown
MOST = 3.0  # times the memory of a device: longer bars are cut off


class _Wanted(NamedTuple):
    """What is planned, and the batch and the tokens of its recipe, if it has one."""

    name: str
    architecture: Architecture
    batch_tokens: int | None = None
    length: int | None = None
    rate: float | None = None
    tokens: float | None = None


def plan(
    model: str | Path,
    devices: int = 8,
    *,
    card: float = 80.0,
    tokens: float | None = None,
    batch_tokens: int | None = None,
    length: int | None = None,
    zero: int | None = None,
    tensor: int | None = None,
    recompute: bool | None = None,
    sequence_parallel: bool = True,
    peak: float = 312.0,
    efficiency: float = 0.5,
    link: float = 300.0,
    network: float = 25.0,
    node: int = 8,
    plot: str | Path | None = None,
    overrides: Sequence[str] = (),
    **changes: Any,
) -> Plan:
    """Plan the training of a model on many devices: memory of each, communication and time, for every mesh.

    `model` is a preset, a model folder or a recipe; `changes` are axes of it, or settings of the recipe, and
    `overrides` the same as strings (`"layers=6"`). `zero`, `tensor` and `recompute` leave one choice of each. `plot` is
    a file for the chart (SVG). docs/plan.md says what is assumed.

    >>> bertree.plan("megatron-gpt-8.3b", devices=64, card=80, tokens=300e9).settings
    """
    hardware = Hardware(card, peak, efficiency, link, network, node)
    subject = _find(fspath(model), overrides, changes)
    a = subject.architecture
    if not isinstance(a, Transformer):
        raise UserError(f"{subject.name}: plans are for transformers, and this is a {a.body}; give a transformer")
    size = batch_tokens if batch_tokens is not None else subject.batch_tokens or BATCH_TOKENS
    longest = length if length is not None else subject.length or min(1024, a.longest_input)
    total = tokens if tokens is not None else subject.tokens
    for key, value in (("batch_tokens", size), ("length", longest), ("tokens", total)):
        if value is not None and value <= 0:
            raise UserError(f"{key}: {value:g} must be more than 0")
    rate = subject.rate if subject.rate is not None else cost.costs(a).rate
    batches = Batches(size, longest, rate, recompute)
    planned = make_plan(
        subject.name,
        a,
        devices,
        hardware,
        batches,
        tokens=total,
        zero=zero,
        tensor=tensor,
        sequence_parallel=sequence_parallel,
    )
    if plot is not None:
        refuse_other(Path(plot))
        write_atomically(Path(plot), plan_svg(planned))
    return planned


def _find(name: str, overrides: Sequence[str], changes: Mapping[str, Any]) -> _Wanted:
    path = model_names.resolve_model_path(name)
    if name not in PRESETS and not path.is_dir() and (path.suffix == ".toml" or name in bundled_recipes()):
        return _from_recipe(load(name, [*overrides, *overrides_of(changes)]))
    a = preset(name).architecture if name in PRESETS or not path.is_dir() else read_architecture(path)
    values = dict(map(parse_override, overrides)) | {
        key: check_type(key, value, name) for key, value in changes.items()
    }
    return _Wanted(" ".join([name, *(f"{key}={value}" for key, value in values.items())]), a.with_values(values))


def _from_recipe(recipe: Recipe) -> _Wanted:
    """Take the model of a recipe, and of its phases the one with most tokens."""
    start = recipe.model.get("start")
    base = read_architecture(model_names.resolve_model_path(str(start))) if start else recipe.base_architecture()
    phase = max(recipe.phases, key=lambda phase: phase.steps * phase.batch_tokens)
    tokens = sum(phase.steps * phase.batch_tokens for phase in recipe.phases)
    a = recipe.with_axes(base, recipe.axes)
    return _Wanted(recipe.name, a, phase.batch_tokens, phase.max_length, mask_share(recipe, phase), float(tokens))


def plan_svg(plan: Plan) -> Markup:
    """Draw a plan as a picture of its own."""
    usable, card = plan.hardware.usable / GIB, plan.hardware.card
    most = max(card, min(MOST * card, max(row.gib for row in plan.rows))) * 1.02
    scale = (WIDTH - 2 * MARGIN) / most
    parts, top = _legend(), 74
    for number, row in enumerate(plan.rows):
        parts += _bar(row, row is plan.best, top + ROW * number, scale, most)
    parts += _limit(usable, scale, top, len(plan.rows))
    model = plan.model if len(plan.model) <= LONGEST else plan.model[: LONGEST - 1] + "…"
    title = f"{model} on {plan.devices:,} devices: GiB of each at the peak of a step"
    under = text(MARGIN - 2, 36, f"{plan.batches.tokens:,} tokens a step, AdamW, bf16; * recommended")
    return standalone_picture(title, top + ROW * len(plan.rows) + 26, [under, *parts])


def _legend() -> list[Markup]:
    parts, at = [], float(MARGIN)
    for label, colour in COLOUR_OF.items():
        box = element("rect", kind="part", x=f"{at:.1f}", y=46, width=11, height=11)
        parts += [group(f"s{colour}", box), text(f"{at + 16:.1f}", 56, label, "key")]
        at += 16 + LETTER * 1.1 * len(label) + 18
    return parts


def _limit(usable: float, scale: float, top: int, rows: int) -> list[Markup]:
    """Return the line at the memory that tensors can have."""
    at, bottom = MARGIN + usable * scale, top + ROW * rows + 4
    before = at > WIDTH / 2
    label = text(
        f"{at - 5 if before else at + 5:.1f}", bottom + 12, f"usable: {usable:.1f} GiB", "", "end" if before else ""
    )
    return [group("mark", element("line", x1=f"{at:.1f}", x2=f"{at:.1f}", y1=top, y2=bottom + 14)), label]


def _bar(row: Row, best: bool, y: int, scale: float, most: float) -> list[Markup]:
    words = [name(row.mesh) + (" *" if best else ""), f"{row.batch.count} x {row.batch.tokens:,} tokens"]
    words += ["recomputed"] if row.batch.recompute else []
    value = f"{row.gib:.1f} GiB" + ("" if row.fits else ", too much")
    parts = [text(MARGIN, y + 13, ", ".join(words), "key"), text(WIDTH - MARGIN, y + 13, value, "key value", "end")]
    at = float(MARGIN)
    end = MARGIN + most * scale
    for part, size in zip(Bytes._fields, row.peak.bytes, strict=True):
        width = min(size / GIB * scale, end - at)
        if width > 0:
            shape = {"x": f"{at:.1f}", "y": y + 18, "width": f"{width:.1f}", "height": THICK}
            hint = element("title", f"{part}: {size / GIB:.2f} GiB")
            parts.append(group(f"s{COLOUR_OF[part]}", hint, element("rect", kind="part", **shape)))
            at += width
    if row.gib > most:  # the bar continues
        parts.append(
            path(
                "grid",
                f"M{end - 9:.1f},{y + 16} {end - 14:.1f},{y + 33}M{end - 5:.1f},{y + 16} {end - 10:.1f},{y + 33}",
            )
        )
    return parts
