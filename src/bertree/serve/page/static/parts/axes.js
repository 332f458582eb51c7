/** Controls for the axes of the design space, and changed axes as text. */

import { grouped } from "./colours.js";
import { choice, line, slider, toggle } from "./controls.js";
import { el } from "./dom.js";

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

const sees = (kind) => (values) => String(values.attention).split(",").includes(kind);
const either =
  (...rules) =>
  (values) =>
    rules.some((rule) => rule(values));
const placed = (kind) => (values) => values.positions === kind;
const lsh = sees("lsh");
/** Axis -> when it matters. An axis that is not here always does. */
const MATTERS = {
  ...Object.fromEntries(
    ["lsh_chunk_length", "lsh_chunks_before", "lsh_chunks_after", "buckets", "hashes", "eval_hashes"].map((name) => [
      name,
      lsh,
    ]),
  ),
  ...{ hash_seed: lsh, duplicates: lsh, shared_qk: lsh, look_ahead: either(lsh, sees("local"), sees("chunked")) },
  ...{
    window: sees("local"),
    chunk_length: sees("chunked"),
    chunks_before: sees("chunked"),
    chunks_after: sees("chunked"),
  },
  ...{ clamp: placed("relative"), shared_position_bias: placed("relative"), memory: placed("relative") },
  ...{
    query_stream: placed("relative"),
    segment_encoding: (values) => placed("relative")(values) && values.segments > 0,
  },
  ...{ memory_start: (values) => values.memory > 0, same_length: (values) => values.memory > 0 },
  ...{
    rotary_base: placed("rotary"),
    local_rotary_base: (values) => placed("rotary")(values) && sees("local")(values),
  },
  ...{ axial_shape: placed("axial"), axial_widths: placed("axial"), position_offset: placed("learned") },
  groups: (values) => values.sharing !== "none",
  embedding_projection: (values) => values.embedding_width !== values.width,
  embedding_divisor: (values) => Boolean(values.cutoffs),
  output_projections: (values) => Boolean(values.cutoffs),
  mask_activation: (values) => values.mask_transform === true,
  first_norm: (values) => values.residual !== "post-norm",
  final_norm: (values) => values.residual !== "post-norm",
  norm_bias: (values) => values.norm === "layer",
  direction: either(sees("causal"), (values) => values.body !== undefined && values.body !== "transformer"),
};

/** Whether an axis changes anything at a point; one that was turned stays, so that it can be turned back. */
export const matters = (axis, values, turned) =>
  axis.name in turned || values[axis.name] !== axis.default || (MATTERS[axis.name]?.(values) ?? true);

/** The control of an axis, and below it what the axis is, in a sentence. */
export const axisControl = (axis, value, change) =>
  el(
    "div",
    { class: "axis" },
    control(axis, value, change),
    axis.about ? el("p", { class: "small" }, axis.about) : null,
  );

/** A slider, a choice, a switch or a line of text, as the axis is. */
function control(axis, value, change) {
  const label = axis.name.replaceAll("_", " ");
  if (axis.kind === "switch") return toggle(label, value === true, change).node;
  if (axis.kind === "choice") {
    const options = [...new Set([...(axis.choices ?? []), value])].map((entry) => String(entry));
    return choice(label, options, String(value), change).node;
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
      },
      (index) => change(numbers[index]),
    ).node;
  }
  const number = axis.kind === "number";
  const { node, input } = line(label, String(value), (text) => change(number ? Number(text) : text), {
    type: number ? "number" : "text",
  });
  if (number) input.step = "any";
  return node;
}
