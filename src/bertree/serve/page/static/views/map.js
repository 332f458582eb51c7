/** A map of an index: passages that mean the same lie together. */

import { HUES, onScheme, rgb } from "../parts/colours.js";
import { choice } from "../parts/controls.js";
import { byHand, el, replace } from "../parts/dom.js";
import { keywords } from "../parts/keywords.js";
import { colourings, palette } from "../parts/palette.js";
import { Plane } from "../parts/plane.js";
import { link } from "../parts/state.js";

const EDGE = 0.12; // share of the middle that is kept free around it, for outliers
const KEYS = "Arrow keys go to the next passage, with Shift they move the map; plus and minus zoom, 0 shows all.";

/** The nearest point in the direction of an arrow key. */
function neighbour(points, from, key) {
  const along = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
  let [best, least] = [from, Infinity];
  for (const point of points) {
    const [dx, dy] = [point.x - from.x, point.y - from.y];
    const forward = dx * along[0] + dy * along[1];
    const aside = Math.abs(dx * along[1]) + Math.abs(dy * along[0]);
    const cost = forward + 2 * aside;
    if (point !== from && forward > 0 && aside < 2 * forward && cost < least) [best, least] = [point, cost];
  }
  return best;
}

/** Points scaled into the unit square. The middle 96 % fill most of it; what lies far outside is drawn in towards the
 * edge, so that one outlier does not push all others together. */
function unitSquare(points) {
  const scale = (name) => {
    const sorted = points.map((point) => point[name]).sort((a, b) => a - b);
    const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
    const [low, high] = [at(0.02), at(0.98)];
    const size = high - low || sorted.at(-1) - sorted[0] || 1;
    const squeeze = (over) => EDGE * (over / (over + EDGE)); // 0 at the border of the middle, at most EDGE
    return (value) => {
      const place = (value - low) / size;
      const drawn = place < 0 ? -squeeze(-place) : place > 1 ? 1 + squeeze(place - 1) : place;
      return (drawn + EDGE) / (1 + 2 * EDGE);
    };
  };
  const [x, y] = [scale("x"), scale("y")];
  return points.map((point) => ({ ...point, x: x(point.x), y: 1 - y(point.y) }));
}

class IndexMap {
  constructor(page, answer) {
    this.page = page;
    this.points = unitSquare(answer.points);
    this.colourings = colourings(this.points);
    const { points } = this;
    this.words = keywords(
      points.map((point) => point.text),
      points.map((point) => point.cluster),
    );
    this.shown = null; // the point whose passage is shown
    this.only = undefined; // a value of the legend: the others are dimmed
    this.card = el("div", { class: "map-card panel", "aria-live": "polite" });
    this.legend = el("ul", { class: "legend" });
    this.canvas = el("canvas", {
      class: "map",
      tabindex: 0,
      role: "application",
      "aria-label": `Map of ${this.points.length} passages. ${KEYS}`,
    });
    this.plane = new Plane(
      this.canvas,
      {
        draw: (context) => this.draw(context),
        over: (x, y) => this.hover(x, y),
        press: (x, y) => this.pick(x, y),
        keys: (event) => this.key(event),
      },
      page.signal,
    );
    this.canvas.addEventListener(
      "focus",
      () => this.shown ?? (this.canvas.matches(":focus-visible") && this.show(this.points[0])),
    );
    onScheme(() => this.colour(), page.signal);
    this.shown = this.points[page.state.passage === "" ? -1 : Number(page.state.passage)] ?? null;
    this.colour();
    this.tell();
  }

  colour() {
    const name = this.page.state.colour;
    const colouring = this.colourings.find((entry) => entry.value === name) ?? this.colourings[0];
    this.of = colouring.of;
    this.palette = palette(this.points, colouring);
    const css = (variable) => `rgb(${rgb(variable).join(" ")})`;
    const names = [
      "--ink",
      "--paper",
      "--accent",
      "--edge-strong",
      ...Array.from({ length: HUES }, (_, i) => `--hue-${i}`),
    ];
    this.css = Object.fromEntries(names.map((variable) => [variable, css(variable)]));
    const { rows, others, rest, low, high } = this.palette;
    replace(
      this.legend,
      rows.map((row) =>
        el(
          "li",
          { "--hue": `var(${row.variable})`, class: row.hollow ? "hollow" : null },
          el(
            "button",
            {
              type: "button",
              "aria-pressed": String(this.only === row.value),
              onclick: (event) => this.dim(row.value, event.currentTarget),
            },
            `${this.title(row.value)} `,
            el("b", {}, String(row.count)),
          ),
        ),
      ),
      others ? el("li", { "--hue": "var(--edge-strong)" }, `${others} other values `, el("b", {}, String(rest))) : null,
      low === undefined
        ? null
        : el("li", { class: "ramp" }, el("span", {}, String(low)), el("i"), el("span", {}, String(high))),
    );
    this.plane.paint();
  }

  /** A value of the legend; a cluster is named by the words that tell it from the others. */
  title(value) {
    if (this.page.state.colour !== "cluster") return String(value);
    return this.words.get(value)?.join(", ") || `cluster ${value + 1}`;
  }

  dim(value, button) {
    this.only = this.only === value ? undefined : value;
    for (const other of this.legend.querySelectorAll("button")) other.setAttribute("aria-pressed", "false");
    button.setAttribute("aria-pressed", String(this.only !== undefined));
    this.plane.paint();
  }

  draw(context) {
    const size = Math.min(7, 3.2 + Math.log2(Math.max(1, this.plane.scale)));
    for (const point of this.points) {
      const [x, y] = this.plane.toScreen(point);
      if (x < -9 || y < -9 || x > this.plane.width + 9 || y > this.plane.height + 9) continue;
      const share = this.palette.share?.(point);
      context.globalAlpha =
        this.only !== undefined && this.of(point) !== this.only
          ? 0.12
          : share === undefined
            ? 0.78
            : 0.15 + 0.85 * (share ?? 0);
      context.fillStyle = context.strokeStyle = this.css[this.palette.variable?.(point) ?? "--accent"];
      context.beginPath();
      context.arc(x, y, size, 0, 7);
      if (this.palette.hollow?.(point)) context.stroke();
      else context.fill();
    }
    context.globalAlpha = 1;
    if (!this.shown) return;
    const [x, y] = this.plane.toScreen(this.shown);
    for (const [width, colour] of [
      [5, "--paper"],
      [2.5, "--ink"],
    ]) {
      context.lineWidth = width;
      context.strokeStyle = this.css[colour];
      context.beginPath();
      context.arc(x, y, size + 3.5, 0, 7);
      context.stroke();
    }
    context.lineWidth = 1;
  }

  near(x, y, reach) {
    let [best, least] = [null, reach];
    for (const point of this.points) {
      const [px, py] = this.plane.toScreen(point);
      const apart = Math.hypot(px - x, py - y);
      if (apart < least) [best, least] = [point, apart];
    }
    return best;
  }

  hover(x, y) {
    const point = x === null ? null : this.near(x, y, 18);
    this.canvas.style.cursor = point ? "pointer" : "grab";
    if (point) this.show(point);
  }

  pick(x, y) {
    const point = this.near(x, y, 30);
    if (point) this.keep(point);
  }

  key(event) {
    if (event.shiftKey || !event.key.startsWith("Arrow")) return false;
    this.keep(neighbour(this.points, this.shown ?? this.points[0], event.key));
    this.plane.centre(this.shown);
    return true;
  }

  /** Show a point, and put it into the address. */
  keep(point) {
    this.show(point);
    this.page.save({ passage: String(this.points.indexOf(point)) });
  }

  show(point) {
    if (this.shown === point) return;
    this.shown = point;
    this.plane.paint();
    this.tell();
  }

  tell() {
    const point = this.shown;
    const hint = `${byHand("Point at", "Tap")} a dot to read its passage.`;
    if (!point) return replace(this.card, el("p", { class: "hint" }, hint));
    const facts = Object.entries(point.metadata ?? {}).filter(
      ([, value]) => value !== null && typeof value !== "object",
    );
    return replace(
      this.card,
      el(
        "p",
        { class: "small" },
        `${point.document} · in ${this.words.get(point.cluster)?.join(", ") || "its cluster"}`,
      ),
      el("p", { class: "reading" }, point.text, point.text.length >= 200 ? "…" : null),
      facts.length
        ? el(
            "p",
            { class: "tags" },
            facts.map(([name, value]) =>
              el("span", { class: "chip" }, el("span", { class: "soft" }, `${name} `), String(value)),
            ),
          )
        : null,
      el("a", { href: link("search", { query: point.text, model: this.page.model }) }, "Find passages like this"),
    );
  }
}

export default {
  id: "map",
  name: "Map",
  title: "Map of an index",
  about:
    "Every dot is a passage; those that mean the same lie together. Shown are the two main directions of the vectors." +
    " Clusters are named by the words that tell them from the others.",
  does: "index",
  defaults: { colour: "cluster", passage: "" },

  build(page) {
    const place = el("div", { class: "stack" }, el("p", { class: "hint" }, "Reading the map…"));
    const load = async () => {
      const answer = await page.channel()(`map?index=${encodeURIComponent(page.model)}&most=2000`);
      if (!answer) return replace(place);
      if (!answer.points.length) return replace(place, el("p", { class: "hint" }, "The index is empty."));
      const map = new IndexMap(page, answer);
      const by = choice("Colour by", map.colourings, page.state.colour, (colour) => {
        page.save({ colour });
        map.only = undefined;
        map.colour();
      });
      const button = (name, label, action) =>
        el("button", { type: "button", class: "quiet", "aria-label": label, onclick: action }, name);
      const count = answer.sampled ? `${answer.points.length} of ${answer.total} passages` : `${answer.total} passages`;
      return replace(
        place,
        el(
          "div",
          { class: "row" },
          by.node,
          el(
            "div",
            { class: "row zoom" },
            button("+", "Zoom in", () => map.plane.zoom(1.4)),
            button("−", "Zoom out", () => map.plane.zoom(1 / 1.4)),
            button("All", "Show all", () => map.plane.reset()),
          ),
          el("span", { class: "small" }, count),
        ),
        el("div", { class: "map-view" }, el("div", { class: "map-frame" }, map.canvas), map.card),
        map.legend,
      );
    };
    load();
    return [page.problem, place];
  },
};
