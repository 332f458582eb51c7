"""What a temperature does to the answers of a teacher, as plain values (temperature.json) and as a section of a page.

`bertree.distillation` computes them on the dev split. p(T) = softmax(logits / T): with T near 0 all of the probability
goes to the likeliest class, at 1 it is the teacher's own, and with growing T every class gets the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markupsafe import Markup

from bertree.config.settings import read
from bertree.errors import UserError
from bertree.files.formats import Json, read_json
from bertree.report.curves import Mark, Series, curve_svg
from bertree.report.formats import digits, percent
from bertree.report.scales import Axis
from bertree.report.tables import Block, CaptionedChart, Cell, PageTable, Piece, Section, one_line
from bertree.run_folder import TEMPERATURE

SHOWN = (0.5, 1.0, 2.0, 4.0, 8.0)  # rows of the table


@dataclass(frozen=True, kw_only=True)
class SoftenedExample:
    """An example: the probability of its likeliest classes at each temperature."""

    texts: tuple[str, ...]  # the beginning of each
    gold: str | None
    classes: tuple[str, ...]  # the last may be all others together
    shares: tuple[tuple[float, ...], ...]  # of each class, at each temperature


@dataclass(frozen=True, kw_only=True)
class TemperatureEffect:
    """Entropy and calibration of a teacher's answers at several temperatures, and examples."""

    temperatures: tuple[float, ...]  # 1 is among them
    entropy: tuple[float, ...]  # mean, as a share of the largest: 0 one class, 1 all alike
    calibration_error: tuple[float, ...]  # none if no answer has a gold one
    answers: int  # that this is about
    examples: tuple[SoftenedExample, ...] = ()

    def at(self, temperature: float) -> int:
        """Return the index of the temperature that is nearest to this one."""
        return int(np.abs(np.log(np.array(self.temperatures) / temperature)).argmin())

    @property
    def best(self) -> float | None:
        """Return the temperature with the smallest calibration error."""
        return self.temperatures[int(np.argmin(self.calibration_error))] if self.calibration_error else None

    def line(self, used: float | None) -> str:
        """Sum the effect up in a line; `used` is the temperature of the soft targets, if there are any."""
        shown = list(dict.fromkeys([1.0] if used is None else [1.0, used]))
        entropies = [f"{percent(self.entropy[self.at(t)])} at T = {digits(t)}" for t in shown]
        parts = [f"entropy, as a share of the largest, {', '.join(entropies)}"]
        if self.best is not None:
            errors = [f"{percent(self.calibration_error[self.at(t)], 1)} at T = {digits(t)}" for t in shown]
            least = f"least at T = {digits(self.best)}, {percent(min(self.calibration_error), 1)}"
            parts.append(f"calibration error {', '.join(errors)} ({least})")
        return f"the teacher's answers on dev: {'; '.join(parts)}"


def read_temperature(out: Path) -> TemperatureEffect | None:
    """Read what the folder of a run has; None if it has nothing."""
    path = out / TEMPERATURE
    if not path.is_file():
        return None
    effect: TemperatureEffect = read(TemperatureEffect, read_json(path), str(path))
    count = len(effect.temperatures)
    lists = [effect.entropy, *(shares for example in effect.examples for shares in example.shares)]
    lists += [effect.calibration_error] if effect.calibration_error else []
    if not count or min(effect.temperatures) <= 0 or any(len(values) != count for values in lists):
        raise UserError(f"{path}: must have a value for each temperature, and these above 0")
    return effect


def temperature_sections(out: Path, distillation: Json) -> Iterator[Section]:
    """Yield the section of a run's page, if the run has a teacher with classes."""
    title = "What the temperature does"
    try:
        effect = read_temperature(out)
    except UserError as error:
        yield Section(title, blocks=[str(error)])
        return
    if effect is None:
        return
    used: float | None = distillation.get("temperature")
    how = {
        "soft": f"The student has learned the teacher's probabilities at T = {used:g}." if used else "",
        "hard": "The student has learned the teacher's likeliest class, the limit of T = 0.",
        "mse": "The student has learned the teacher's logits, the limit of a large T.",
    }.get(str(distillation.get("kind")), "")
    marks = [Mark(used, f"used: T = {used:g}", "used")] if used else []
    best = effect.best
    rows: list[list[Cell]] = []
    for t in sorted({*SHOWN, *filter(None, (used, best))}):
        figures = [effect.entropy, *([effect.calibration_error] if best else [])]
        kind = "strong" if t == used else ""
        rows.append(
            [one_line(Piece(text, kind)) for text in (digits(t), *(percent(f[effect.at(t)], 1) for f in figures))]
        )
    head = ["T", "entropy", *(["calibration error"] if best else [])]
    cards: list[Block] = [_chart("Entropy, as a share of the largest", effect, {"": effect.entropy}, marks)]
    if best is not None:
        least = Mark(best, f"least: T = {digits(best)}", "least")
        cards.append(_chart("Calibration error", effect, {"": effect.calibration_error}, [*marks, least]))
    for number, example in enumerate(effect.examples, 1):
        curves = dict(zip(example.classes, example.shares, strict=True))
        lines = []
        for t in sorted({1.0, used or 4.0}):
            shares = [f"{name}: {percent(values[effect.at(t)])}" for name, values in list(curves.items())[:3]]
            lines.append(f"{', '.join(shares)} at T = {digits(t)}")
        gold = f"; gold: {example.gold}" if example.gold is not None else ""
        chart = _chart(f"Example {number}", effect, curves, marks)
        cards.append(CaptionedChart(chart, f"{' / '.join(example.texts)}{gold}; {'; '.join(lines)}"))
    about = f"{how} p(T) = softmax(logits / T) of its {effect.answers:,} answers on the dev split:"
    yield Section(title, blocks=[about, PageTable(head, rows, numbers=range(3), kind="facts")])
    yield Section("", cards)


def _chart(title: str, effect: TemperatureEffect, curves: Json, marks: list[Mark]) -> Markup:
    x = np.array(effect.temperatures)
    series = [Series(name=name, x=x, y=np.array(values)) for name, values in curves.items()]
    return curve_svg(title, series, x=Axis(log=True), y=Axis(zero=True, text=percent), x_label="T", marks=marks)
