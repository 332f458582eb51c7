/** The family tree, and the design space around each of its models. */

import { grouped, HUES, short } from "../parts/colours.js";
import { axisControl, parseChanges, writeChanges } from "../parts/axes.js";
import { slider } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
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
    const index = (list, value) => Math.max(0, list.indexOf(Number(value)));
    const pick = (name, list, label) =>
      slider(
        label,
        { value: index(list, page.state[name]), low: 0, high: list.length - 1, format: (at) => grouped(list[at]) },
        (at) => {
          page.save({ [name]: String(list[at]) });
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
        el("div", { class: "panel stack" }, this.name, page.problem, this.tiles, this.bars),
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
    this.choose(page.state.preset, false);
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
    this.drawName();
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
      el("p", { class: "soft" }, this.preset.about),
    );
  }

  drawControls() {
    this.drawName();
    const axes = this.space.axes.filter((axis) => axis.name in this.preset.axes && axis.name !== "body");
    const control = (axis) => axisControl(axis, this.value(axis), (value) => this.turn(axis, value));
    const first = MAIN.map((name) => axes.find((axis) => axis.name === name)).filter(Boolean);
    const rest = axes.filter((axis) => !MAIN.includes(axis.name));
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
            { class: "panel" },
            el("summary", {}, `${rest.length} more axes`),
            el("div", { class: "options axes" }, rest.map(control)),
          )
        : null,
    );
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
  defaults: { preset: "bert-base", changes: "", length: "512", batch: "1" },

  build(page) {
    const place = el("div", { class: "stack" }, page.problem);
    const load = async () => {
      const space = await page.channel()("space", undefined, { shown: false });
      if (space) replace(place, new DesignSpace(page, space).node);
    };
    load();
    return place;
  },
};
