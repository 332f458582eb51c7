/** A chart of lines over steps, drawn as SVG; the nearest point of each line is read out. */

import { HUES, short } from "./colours.js";
import { byHand, el, replace, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [460, 220, 52, 24, 10, 26];

/** About `count` round numbers from low to high. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high + step * 1e-9; at++) found.push(at * step);
  return found;
}

/** A number of a metric: 2.9402 -> "2.940", 0.00002 -> "2e-5", 340649 -> "341 k". */
export function figure(value) {
  const size = Math.abs(value);
  if (size >= 1000) return short(value).replace(/\.?0+ /, " ");
  if (size !== 0 && size < 0.001) return value.toExponential(1).replace("e-0", "e-");
  return Number(value.toPrecision(4)).toString();
}

/** The place in `steps`, which rise, that is nearest to a step. */
function nearest(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}

/** `lines`: [{name, hue, thin, steps, values}], none of them empty. */
export function lineChart(title, lines) {
  const all = (pick) => lines.flatMap(pick);
  const [first, last] = [Math.min(...all((line) => line.steps[0])), Math.max(...all((line) => line.steps.at(-1)))];
  let [low, high] = [Math.min(...all((line) => line.values)), Math.max(...all((line) => line.values))];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 10, high + (Math.abs(high) || 1) / 10];
  const x = (step) => LEFT + ((step - first) / (last - first || 1)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - ((value - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const hue = (line) => `var(--hue-${line.hue % HUES})`;
  const draw = (line) => [
    svg("polyline", {
      class: line.thin ? "line thin" : "line",
      "--hue": hue(line),
      points: line.steps.map((step, index) => `${x(step).toFixed(1)},${y(line.values[index]).toFixed(1)}`).join(" "),
    }),
    line.steps.length < 30 && !line.thin
      ? line.steps.map((step, index) =>
          svg("circle", { class: "dot", "--hue": hue(line), cx: x(step), cy: y(line.values[index]), r: 2.6 }),
        )
      : null,
  ];
  const grid = ticks(low, high, 4).map((value) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    svg("text", { x: LEFT - 7, y: y(value) + 4, "text-anchor": "end" }, figure(value)),
  ]);
  const below = ticks(first, last, 5).map((step) =>
    svg("text", { x: x(step), y: HEIGHT - 8, "text-anchor": "middle" }, figure(step)),
  );
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const values = el("ul", { class: "legend", role: "status" });
  const tell = (step) => {
    cursor.setAttribute("visibility", step === null ? "hidden" : "visible");
    if (step !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(step));
    replace(
      values,
      step === null ? null : el("li", { class: "none" }, `step ${Math.round(step)}`),
      lines.map((line) => {
        const at = step === null ? line.steps.length - 1 : nearest(line.steps, step);
        return el(
          "li",
          { "--hue": hue(line), class: line.thin ? "thin" : null },
          `${line.name} `,
          el("b", {}, figure(line.values[at])),
        );
      }),
    );
  };
  let at = null;
  const keys = (event) => {
    const { steps } = lines.reduce((a, b) => (b.steps.length > a.steps.length ? b : a));
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -steps.length, End: steps.length };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const from = at === null ? steps.length - 1 : at;
    at = Math.max(0, Math.min(steps.length - 1, from + moves[event.key]));
    tell(steps[at]);
  };
  const point = (event) => {
    const box = picture.getBoundingClientRect();
    const share = (((event.clientX - box.left) / box.width) * WIDTH - LEFT) / (WIDTH - LEFT - RIGHT);
    tell(first + Math.max(0, Math.min(1, share)) * (last - first));
  };
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      class: "chart",
      tabindex: 0,
      role: "application",
      "aria-label": `${title}, from step ${first} to ${last}. ${byHand("Arrow keys read its values.", "")}`,
      onkeydown: keys,
      onpointermove: point,
      onpointerdown: point,
      onpointerleave: () => tell(null),
    },
    grid,
    below,
    lines.map(draw),
    cursor,
  );
  tell(null);
  return el("figure", { class: "panel stack chart-card" }, el("figcaption", {}, title), picture, values);
}
