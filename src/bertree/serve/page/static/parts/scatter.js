/** The family as a plot: a dot for each model, on two logarithmic axes. */

import { short } from "./colours.js";
import { roving, svg } from "./dom.js";

const [LEFT, RIGHT, TOP, BOTTOM] = [64, 18, 16, 42]; // margins
const NAMED = 13; // pixels of a label's line

/** 1, 10, 100 ... from low to high; with few of them also 3, 30 ... */
function ticks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const powers = Array.from({ length: last - first + 1 }, (_, index) => 10 ** (first + index));
  const all = powers.length > 3 ? powers : powers.flatMap((power) => [power, 3 * power]);
  return all.filter((value) => value >= low && value <= high);
}

/** `points`: [{name, x, y, mark, title}] with mark "chosen", "pinned" or none; `choose(name)` is called for a dot. */
export function scatter(points, { xName, yName, xUnit = "", yUnit = "" }, choose) {
  const [WIDTH, HEIGHT] = matchMedia("(max-width: 860px)").matches ? [380, 400] : [720, 380];
  const range = (pick) => {
    const values = points.map(pick);
    return [Math.min(...values) / 1.4, Math.max(...values) * 1.4];
  };
  const [[left, right], [low, high]] = [range((point) => point.x), range((point) => point.y)];
  const place = (value, from, to) => Math.log(value / from) / Math.log(to / from);
  const x = (value) => LEFT + place(value, left, right) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - place(value, low, high) * (HEIGHT - TOP - BOTTOM);
  const grid = [
    ticks(low, high).map((value) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
      svg("text", { x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, short(value, yUnit)),
    ]),
    ticks(left, right).map((value) => [
      svg("line", { class: "grid", x1: x(value), x2: x(value), y1: TOP, y2: HEIGHT - BOTTOM }),
      svg("text", { x: x(value), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, short(value, xUnit)),
    ]),
    svg("text", { class: "axis", x: WIDTH - RIGHT, y: HEIGHT - 6, "text-anchor": "end" }, xName),
    svg("text", { class: "axis", x: LEFT, y: TOP - 4 }, yName),
  ];
  // Names stand beside marked dots always, and beside others where there is room.
  const taken = [];
  const fits = (box) =>
    !taken.some((other) => Math.abs(other.y - box.y) < NAMED && other.x < box.end && box.x < other.end);
  const label = (point) => {
    const [px, py, width] = [x(point.x), y(point.y), point.name.length * 6.4 + 12];
    const after = { x: px + 7, end: px + 7 + width, y: py };
    const before = { x: px - 7 - width, end: px - 7, y: py };
    const above = { ...after, y: py - NAMED };
    const below = { ...after, y: py + NAMED };
    const inside = (box) => box.x > LEFT && box.end < WIDTH;
    const box =
      (point.mark ? [after, before, above, below] : [after, before]).find((one) => inside(one) && fits(one)) ??
      (point.mark ? after : null);
    if (!box) return null;
    taken.push(box);
    const anchor = box === before ? "end" : "start";
    return svg(
      "text",
      { class: `name ${point.mark ?? ""}`, x: px + (box === before ? -9 : 9), y: box.y + 4, "text-anchor": anchor },
      point.name,
    );
  };
  for (const point of points) taken.push({ x: x(point.x) - 4, end: x(point.x) + 4, y: y(point.y) });
  const order = [...points].sort((a, b) => (b.mark ? 1 : 0) - (a.mark ? 1 : 0));
  const labels = order.map(label);
  const dots = [...points]
    .sort((a, b) => (a.mark ? 1 : 0) - (b.mark ? 1 : 0) || a.x - b.x)
    .map((point) =>
      svg(
        "circle",
        {
          class: `dot ${point.mark ?? ""}`,
          cx: x(point.x),
          cy: y(point.y),
          r: point.mark ? 7 : 4.5,
          role: "button",
          tabindex: -1,
          "aria-label": point.title,
          onclick: () => choose(point.name),
          onkeydown: (event) => {
            if (event.key !== "Enter" && event.key !== " ") return;
            event.preventDefault();
            choose(point.name);
          },
        },
        svg("title", {}, point.title),
      ),
    );
  const stop = dots.find((dot) => dot.classList.contains("chosen")) ?? dots[0];
  stop?.setAttribute("tabindex", 0);
  const picture = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      class: "chart scatter",
      role: "group",
      "aria-label": `${yName} against ${xName}`,
    },
    grid,
    dots,
    labels,
  );
  roving(picture, () => dots);
  return picture;
}
