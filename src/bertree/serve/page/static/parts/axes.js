/** Controls for the axes of the design space, and changed axes as text. */

import { grouped } from "./colours.js";
import { choice, line, slider, toggle } from "./controls.js";

/** "layers=6;attention=full,local" <-> {layers: 6, attention: "full,local"} */
export const parseChanges = (text, axes) =>
  Object.fromEntries(
    text
      .split(";")
      .filter(Boolean)
      .map((part) => {
        const [name, ...rest] = part.split("=");
        const { kind } = axes.find((axis) => axis.name === name) ?? {};
        const raw = rest.join("=");
        return [name, kind === "number" ? Number(raw) : kind === "switch" ? raw === "true" : raw];
      }),
  );
export const writeChanges = (changes) =>
  Object.entries(changes)
    .map(([name, value]) => `${name}=${value}`)
    .join(";");

/** Whole numbers that a slider goes through: all small ones, then steps of a quarter of a power of two. */
function steps(low, high, current) {
  const found = new Set([current]);
  for (let number = Math.max(0, low); number <= Math.min(high, 16); number++) found.add(number);
  for (let power = 16; power <= high; power *= 2) {
    for (const quarter of [1, 1.25, 1.5, 1.75])
      if (power * quarter >= low && power * quarter <= high) found.add(power * quarter);
  }
  return [...found].sort((a, b) => a - b);
}

/** A slider, a choice, a switch or a line of text, as the axis is. */
export function axisControl(axis, value, change) {
  const label = axis.name.replaceAll("_", " ");
  if (axis.kind === "switch") return toggle(label, value === true, change, axis.about).node;
  if (axis.kind === "choice") {
    const options = [...new Set([...(axis.choices ?? []), value])].map((entry) => String(entry));
    const { node } = choice(label, options, String(value), change);
    node.title = axis.about ?? "";
    return node;
  }
  const whole = Number.isInteger(value) && Number.isInteger(axis.default);
  if (axis.kind === "number" && whole) {
    const numbers = steps(axis.low, Math.max(axis.high, value), value);
    return slider(
      label,
      {
        value: numbers.indexOf(value),
        low: 0,
        high: numbers.length - 1,
        format: (index) => grouped(numbers[index]),
        about: axis.about,
      },
      (index) => change(numbers[index]),
    ).node;
  }
  const number = axis.kind === "number";
  const { node, input } = line(label, String(value), (text) => change(number ? Number(text) : text), {
    type: number ? "number" : "text",
  });
  if (number) input.step = "any";
  node.title = axis.about ?? "";
  return node;
}
