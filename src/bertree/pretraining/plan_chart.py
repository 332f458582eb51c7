"""The chart of a memory plan: the memory that a device needs on each mesh, by purpose, against what it has."""

from markupsafe import Markup

from bertree.model.cost import GIB
from bertree.report.svg import LETTER, WIDTH, element, group, path, standalone_picture, text
from bertree.scale.plan.memory import Bytes
from bertree.scale.plan.meshes import Row, name
from bertree.scale.plan.plan import Plan

MARGIN, ROW, THICK = 10, 36, 13
COLOUR_OF = {"weights": 0, "gradients": 1, "optimizer": 2, "activations": 4, "buffers": 7}  # number of its colour
LONGEST = 26  # letters of a model's name that are shown
MOST = 3.0  # times the memory of a device: longer bars are cut off


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
