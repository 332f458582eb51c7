/** The family tree, and the design space around each of its models. */

import { grouped, HUES, short } from "../parts/colours.js";
import { axisControl, matters, parseChanges, writeChanges } from "../parts/axes.js";
import { segments, slider } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
import { scatter } from "../parts/scatter.js";
import { tree } from "../parts/tree.js";

const MAIN = [
  "layers",
  "width",
  "heads",
  "ffn_width",
  "embedding_width",
  "vocab_size",
  "max_positions",
  "sharing",
  "attention",
  "positions",
  "residual",
  "ffn",
  "segments",
];
const LENGTHS = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];
const BATCHES = [1, 2, 4, 8, 16, 32, 64, 128, 256];
const PINS = 2;
const HEIGHTS = {
  operations: ["Operations for each token, forward", (point) => point.operations_per_token, ""],
  memory: ["Memory to train it, one batch", (point) => point.peak, "B"],
};
/** The figures of points side by side: [name, value, unit]. */
const FIGURES = [
  ["parameters", (point) => point.parameters, ""],
  ["memory to use it", (point) => point.weights, "B"],
  ["memory to train it", (point) => point.peak, "B"],
  ["operations for each token", (point) => point.operations_per_token, ""],
];
const flat = (answer) => ({ ...answer, weights: answer.memory.weights, peak: answer.memory.peak });

function stackedBar(name, parts, format) {
  const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  const shown = parts.filter((part) => part.value > 0);
  const hue = (index) => `var(--hue-${index % HUES})`;
  return el(
    "figure",
    { class: "stacked" },
    el("figcaption", {}, name),
    el(
      "div",
      { class: "stacked-bar", "aria-hidden": "true" },
      shown.map((part, index) =>
        el("span", {
          "--hue": hue(index),
          "--share": part.value / total,
          title: `${part.name}: ${format(part.value)}`,
        }),
      ),
    ),
    el(
      "ul",
      { class: "legend" },
      shown.map((part, index) => el("li", { "--hue": hue(index) }, `${part.name} `, el("b", {}, format(part.value)))),
    ),
  );
}

/** A figure, and how many times that of the preset it is. */
function tile(name, value, was, more, unit = "") {
  const ratio = was && value !== was ? `${(value / was).toFixed(2)} × the preset` : more;
  return el(
    "div",
    { class: "tile" },
    el("span", { class: "soft" }, name),
    el("b", {}, short(value, unit)),
    el("span", { class: "small" }, ratio),
  );
}

class DesignSpace {
  constructor(page, space) {
    this.page = page;
    this.space = space;
    this.changes = parseChanges(page.state.changes, space.axes);
    this.ask = page.channel();
    this.base = null; // the preset's own answer
    this.compared = ""; // what it was asked with
    this.soon = debounce(() => this.query(), 90);
    this.tiles = el("div", { class: "tiles", "aria-live": "polite" });
    this.bars = el("div", { class: "stack" });
    this.controls = el("div", { class: "stack" });
    this.name = el("div", { class: "point" });
    this.plot = el("div", { class: "panel stack" });
    this.beside = el("div", { class: "panel stack" });
    this.askPins = page.channel();
    this.answer = null; // of the present point
    const index = (list, value) => Math.max(0, list.indexOf(Number(value)));
    const pick = (name, list, label) =>
      slider(
        label,
        { value: index(list, page.state[name]), low: 0, high: list.length - 1, format: (at) => grouped(list[at]) },
        (at) => {
          page.save({ [name]: String(list[at]) });
          this.placePresets();
          this.soon();
        },
      ).node;
    const shown = space.presets.filter((preset) => !preset.study || preset.name === page.state.preset);
    this.node = el(
      "div",
      { class: "space" },
      tree(shown, page.state.preset, (preset) => this.choose(preset)),
      el(
        "div",
        { class: "stack" },
        this.plot,
        el("div", { class: "panel stack" }, this.name, page.problem, this.tiles, this.bars),
        this.beside,
        el(
          "div",
          { class: "panel stack" },
          el("h2", {}, "Computed for"),
          el(
            "div",
            { class: "options" },
            pick("length", LENGTHS, "tokens of a text"),
            pick("batch", BATCHES, "texts of a batch"),
          ),
        ),
        this.controls,
      ),
    );
    this.placePresets = debounce(async () => {
      const { length, batch } = page.state;
      const answer = await page.channel()(`space?length=${length}&batch=${batch}`, undefined, { shown: false });
      if (answer) this.space = answer;
      this.drawPlot();
    }, 200);
    this.choose(page.state.preset, false);
  }

  /** The pinned points: [{preset, changes}] */
  get pins() {
    const entries = this.page.state.pins.split("|").filter(Boolean);
    return entries.map((entry) => {
      const [preset, ...rest] = entry.split(";");
      return { preset, changes: parseChanges(rest.join(";"), this.space.axes), entry };
    });
  }

  pin(entries) {
    this.page.save({ pins: entries.slice(-PINS).join("|") });
    this.drawName();
    this.drawBeside();
    this.drawPlot();
  }

  get entry() {
    const changes = writeChanges(this.changes);
    return `${this.preset.name}${changes ? `;${changes}` : ""}`;
  }

  /** All members as dots; where one stands depends on the length and the batch that were chosen. */
  drawPlot() {
    const [yName, height, yUnit] = HEIGHTS[this.page.state.height] ?? HEIGHTS.operations;
    const pinned = new Set(this.pins.map((pin) => pin.preset));
    const shown = this.space.presets.filter((preset) => !preset.study || preset.name === this.preset.name);
    const points = shown.map((preset) => ({
      name: preset.name,
      x: preset.parameters,
      y: height(preset),
      mark: preset.name === this.preset.name ? "chosen" : pinned.has(preset.name) ? "pinned" : null,
      title: `${preset.name}: ${short(preset.parameters)} parameters, ${short(height(preset), yUnit)}`,
    }));
    if (this.answer && Object.keys(this.changes).length)
      points.push({
        name: "your point",
        x: this.answer.parameters,
        y: height(this.answer),
        mark: "own",
        title: `Your point: ${short(this.answer.parameters)} parameters`,
      });
    const focused = this.plot.contains(document.activeElement);
    const pick = segments(
      "Against",
      [
        { value: "operations", name: "operations" },
        { value: "memory", name: "memory" },
      ],
      this.page.state.height,
      (value) => {
        this.page.save({ height: value });
        this.drawPlot();
        this.plot.querySelector("input:checked").focus();
      },
    );
    const choose = (name) => name !== "your point" && this.choose(name);
    replace(
      this.plot,
      el("div", { class: "row" }, el("h2", {}, "Every member by its parameters"), pick.node),
      scatter(points, { xName: "Parameters", yName, yUnit }, choose),
    );
    if (focused) this.plot.querySelector("circle[tabindex='0']")?.focus();
  }

  /** The pinned points and the present one side by side. */
  async drawBeside() {
    const { pins } = this;
    const answers = [];
    for (const pin of pins) {
      const longest = this.space.presets.find((preset) => preset.name === pin.preset)?.axes.max_positions;
      const length = longest ? Math.min(longest, Number(this.page.state.length)) : Number(this.page.state.length);
      const body = { preset: pin.preset, changes: pin.changes, length, batch: Number(this.page.state.batch) };
      const answer = await this.askPins("space", body, { shown: false });
      if (answer === undefined) return;
      if (answer?.valid) answers.push({ ...flat(answer), name: pin.entry.replaceAll(";", ", ") });
    }
    if (!pins.length || !this.answer) {
      replace(this.beside);
      return;
    }
    const points = [...answers, { ...this.answer, name: this.entry.replaceAll(";", ", ") }];
    const names = new Set(points.flatMap((point) => Object.keys(point.axes)));
    const differ = [...names].filter((name) => new Set(points.map((point) => String(point.axes[name]))).size > 1);
    const row = (name, cells) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name),
        cells.map((cell) => el("td", { class: "number" }, cell)),
      );
    const ratio = (value, first) => (value === first ? "" : ` (${(value / first).toFixed(2)} ×)`);
    replace(
      this.beside,
      el("h2", {}, "Beside the pinned points"),
      el(
        "div",
        { class: "table-scroll", tabindex: 0, role: "region", "aria-label": "Pinned points and the present one" },
        el(
          "table",
          { class: "figures" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              el("th", {}, ""),
              points.map((point) => el("th", { class: "number" }, point.name)),
            ),
          ),
          el(
            "tbody",
            {},
            FIGURES.map(([name, value, unit]) =>
              row(
                name,
                points.map((point) => short(value(point), unit) + ratio(value(point), value(points[0]))),
              ),
            ),
            differ.map((name) =>
              row(
                name.replaceAll("_", " "),
                points.map((point) => String(point.axes[name] ?? "–")),
              ),
            ),
          ),
        ),
      ),
    );
  }

  get preset() {
    return this.space.presets.find((preset) => preset.name === this.page.state.preset) ?? this.space.presets[0];
  }

  value(axis) {
    return this.changes[axis.name] ?? this.preset.axes[axis.name];
  }

  /** The length that was chosen, or the longest one that the point can read. */
  get length() {
    const value = (name) => this.changes[name] ?? this.preset.axes[name] ?? 0;
    const longest = value("max_positions") - value("position_offset");
    return longest > 0 ? Math.min(longest, Number(this.page.state.length)) : Number(this.page.state.length);
  }

  choose(preset, fresh = true) {
    if (fresh) this.changes = {};
    this.page.save({ preset, changes: writeChanges(this.changes) });
    this.drawControls();
    this.query();
  }

  turn(axis, value) {
    if (value === this.preset.axes[axis.name]) delete this.changes[axis.name];
    else this.changes[axis.name] = value;
    this.page.save({ changes: writeChanges(this.changes) });
    this.drawControls(axis.name);
    this.soon();
  }

  drawName() {
    const turned = Object.entries(this.changes);
    const clear = el(
      "button",
      { type: "button", class: "quiet", onclick: () => this.choose(this.preset.name) },
      "Back to the preset",
    );
    replace(
      this.name,
      el("strong", {}, this.preset.name),
      turned.map(([name, value]) => el("span", { class: "chip" }, `${name} = ${value}`)),
      turned.length ? clear : null,
      this.pinButton(),
      el("p", { class: "soft" }, this.preset.about),
    );
  }

  pinButton() {
    const entries = this.pins.map((pin) => pin.entry);
    const has = entries.includes(this.entry);
    const next = has ? entries.filter((entry) => entry !== this.entry) : [...entries, this.entry];
    const name = has ? "Unpin" : "Pin to compare";
    return el("button", { type: "button", class: "quiet", onclick: () => this.pin(next) }, name);
  }

  /** The controls, anew where another axis matters now; the one that is being turned stays as it is. */
  drawControls(turned = null) {
    this.drawName();
    const values = { ...this.preset.axes, ...this.changes };
    const there = this.space.axes.filter((axis) => axis.name in this.preset.axes && axis.name !== "body");
    const axes = there.filter((axis) => matters(axis, values, this.changes));
    const shown = axes.map((axis) => axis.name).join();
    if (turned !== null && shown === this.shownAxes) return;
    this.shownAxes = shown;
    const control = (axis) => axisControl(axis, this.value(axis), (value) => this.turn(axis, value));
    const first = MAIN.map((name) => axes.find((axis) => axis.name === name)).filter(Boolean);
    const rest = axes.filter((axis) => !MAIN.includes(axis.name));
    const left = there.length - axes.length;
    const open = this.controls.querySelector("details")?.open ?? false;
    const at = document.activeElement?.id;
    const label = at ? this.controls.querySelector(`label[for="${at}"]`)?.textContent : null;
    replace(
      this.controls,
      el(
        "div",
        { class: "panel stack" },
        el("h2", {}, "Axes"),
        el("div", { class: "options axes" }, first.map(control)),
      ),
      rest.length
        ? el(
            "details",
            { class: "panel", open },
            el(
              "summary",
              {},
              `${rest.length} more axes${left ? `; ${left} that change nothing here are left out` : ""}`,
            ),
            el("div", { class: "options axes" }, rest.map(control)),
          )
        : null,
    );
    const again = [...this.controls.querySelectorAll("label")].find((one) => one.textContent === label);
    if (again) document.getElementById(again.htmlFor)?.focus();
  }

  body(changes) {
    return { preset: this.preset.name, changes, length: this.length, batch: Number(this.page.state.batch) };
  }

  /** Ask for the preset itself, to compare with, and for the point. */
  async query() {
    const own = this.body({});
    const turned = Object.keys(this.changes).length > 0;
    this.page.calls.set("space", this.body(this.changes));
    if (this.compared !== JSON.stringify(own)) {
      const base = await this.ask("space", own, { shown: false });
      if (!base) return undefined;
      this.base = base;
      this.compared = JSON.stringify(own);
    }
    const answer = turned ? await this.ask("space", this.body(this.changes)) : this.base;
    if (!answer) return undefined;
    this.tiles.classList.toggle("stale", !answer.valid);
    this.bars.classList.toggle("stale", !answer.valid);
    this.page.fail(answer.valid ? "" : answer.message);
    return answer.valid && this.show(answer, turned && this.base.valid ? this.base : null);
  }

  show(answer, base) {
    this.answer = flat(answer);
    this.drawPlot();
    this.drawBeside();
    const { peak, ...memory } = answer.memory;
    replace(
      this.tiles,
      tile("Parameters", answer.parameters, base?.parameters, grouped(answer.parameters)),
      tile("Memory to use it", memory.weights, base?.memory.weights, "weights, float32", "B"),
      tile("Memory to train it", peak, base?.memory.peak, "at its peak, one batch", "B"),
      tile("Operations", answer.operations_per_token, base?.operations_per_token, "for each token, forward"),
    );
    replace(
      this.bars,
      stackedBar(
        "Where the parameters are",
        answer.parts.map((part) => ({ name: part.name.replaceAll("_", " "), value: part.parameters })),
        (value) => short(value),
      ),
      stackedBar(
        "Memory in training",
        Object.entries(memory).map(([name, value]) => ({ name, value })),
        (value) => short(value, "B"),
      ),
    );
  }
}

export default {
  id: "family",
  name: "Family tree",
  title: "The family and its design space",
  about: "Every model is a point in one space of choices. Choose one, turn its axes, and see what it costs.",
  does: null,
  defaults: { preset: "bert-base", changes: "", length: "512", batch: "1", height: "operations", pins: "" },

  build(page) {
    const place = el("div", { class: "stack" }, page.problem);
    const load = async () => {
      const { length, batch } = page.state;
      const space = await page.channel()(`space?length=${length}&batch=${batch}`, undefined, { shown: false });
      if (space) replace(place, new DesignSpace(page, space).node);
    };
    load();
    return place;
  },
};
