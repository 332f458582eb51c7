/** Attention: all heads as small pictures, numbered, and one of them in full. */

import { percent, rgb } from "./colours.js";
import { byHand, el, replace, roving, svg } from "./dom.js";

const SIDE = 120; // pixels of the tokens on each side
const MOST_PIXELS = 36; // of a small picture
const STRONGEST = 3; // lines of a token, as long as none is chosen

/** A token as it is shown: a blank before a word of byte-level and Unigram tokenizers becomes a dot. */
export const clean = (token) => token.replace(/^(##|Ġ|▁)/, (mark) => (mark === "##" ? "##" : "·"));

const isSpecial = (token) => /^(\[(CLS|SEP|PAD)\]|<[^>]*>)$/.test(token);

/** The heads of a layer, each n x n weights, from base64 of one byte for each weight, or of two (`wide`). */
export function unpack(text, n, wide = false) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const weights = wide ? new Uint16Array(bytes.buffer) : bytes;
  const row = (start) => Array.from(weights.subarray(start, start + n), (weight) => weight / (wide ? 65535 : 255));
  return Array.from({ length: weights.length / (n * n) }, (_, head) =>
    Array.from({ length: n }, (_, i) => row((head * n + i) * n)),
  );
}

/** [layer, head] that looks most at words that are neither the token itself nor its neighbours, and not at the same
 * word from everywhere: where to begin. */
export function liveliest(tokens, attention) {
  const words = tokens.flatMap((token, index) => (isSpecial(token) ? [] : index));
  const score = (weights) => {
    const usual = weights.map((_, j) => weights.reduce((sum, row) => sum + row[j], 0) / weights.length);
    const far = (i) => words.filter((j) => Math.abs(i - j) > 1).map((j) => weights[i][j] - usual[j]);
    return words.reduce((sum, i) => sum + Math.max(0, ...far(i)), 0);
  };
  let [best, most] = [[0, 0], -1];
  attention.forEach((heads, layer) =>
    heads.forEach((weights, head) => {
      const found = score(weights);
      if (found > most) [best, most] = [[layer, head], found];
    }),
  );
  return best;
}

/** An n x n matrix in at most MOST_PIXELS a side: of a block the highest weight, which a mean would hide. */
function pooled(weights) {
  const size = Math.min(weights.length, MOST_PIXELS);
  const at = (index) => Math.floor((index * size) / weights.length);
  const small = Array.from({ length: size }, () => new Array(size).fill(0));
  weights.forEach((row, i) =>
    row.forEach((weight, j) => {
      small[at(i)][at(j)] = Math.max(small[at(i)][at(j)], weight);
    }),
  );
  return small;
}

/** Paint a matrix of weights, a pixel for each or for a block. */
function paint(canvas, matrix, [red, green, blue]) {
  const weights = pooled(matrix);
  const n = weights.length;
  canvas.width = canvas.height = n;
  const context = canvas.getContext("2d");
  const image = context.createImageData(n, n);
  weights.forEach((row, i) =>
    row.forEach((weight, j) => image.data.set([red, green, blue, 255 * Math.sqrt(weight)], 4 * (i * n + j))),
  );
  context.putImageData(image, 0, 0);
}

/** All heads: a row for each layer, a column for each head; `choose(layer, head)` is told of the chosen one. */
export class Heads {
  constructor(attention, chosen, choose) {
    this.attention = attention;
    this.columns = attention[0]?.length ?? 0;
    this.choose = choose;
    this.buttons = [];
    const number = (value) => el("span", { class: "head-number" }, String(value));
    this.node = el(
      "div",
      {
        class: "heads",
        role: "group",
        "aria-label": "Attention heads: a row for each layer, a column for each head",
        "--heads": this.columns,
      },
      el("span", { class: "head-number", title: "Layer, from top to bottom; head, from left to right" }, "↓→"),
      Array.from({ length: this.columns }, (_, head) => number(head + 1)),
      attention.map((heads, layer) => [number(layer + 1), heads.map((_, head) => this.button(layer, head))]),
    );
    roving(this.node, () => this.buttons, { columns: () => this.columns, onmove: (button) => button.click() });
    this.colour();
    this.select(...chosen);
  }

  button(layer, head) {
    const name = `Layer ${layer + 1}, head ${head + 1}`;
    const made = el(
      "button",
      { type: "button", tabindex: -1, "aria-label": name, title: name, onclick: () => this.select(layer, head) },
      el("canvas"),
    );
    this.buttons.push(made);
    return made;
  }

  colour() {
    const ink = rgb("--accent");
    this.buttons.forEach((button, index) =>
      paint(button.firstChild, this.attention[Math.floor(index / this.columns)][index % this.columns], ink),
    );
  }

  select(layer, head) {
    this.buttons.forEach((button, index) => {
      const chosen = index === layer * this.columns + head;
      button.setAttribute("aria-pressed", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
    });
    this.choose(layer, head);
  }
}

/** The tokens that one looks at most, in words. */
function describe(tokens, weights, from) {
  const order = weights[from].map((weight, j) => [weight, j]).sort((a, b) => b[0] - a[0]);
  const seen = order.filter(([weight]) => weight >= 0.01).slice(0, 5);
  const words = seen.map(([weight, j]) => `${clean(tokens[j])} ${percent(weight)}`);
  return [el("b", {}, clean(tokens[from])), " looks at ", words.join(", ") || "nothing in particular"];
}

/** One head: tokens on both sides, lines for its strongest weights; the token under the pointer or the focus stands
 * out with all of its own. Weights are drawn against the strongest of their token, so that a long text shows them too.
 */
export function headPicture(tokens, weights, focus, onfocus = () => {}) {
  const row = tokens.length > 40 ? 17 : 22;
  const middle = matchMedia("(max-width: 860px)").matches ? 70 : 190;
  const [near, far, bend] = [SIDE, SIDE + middle, SIDE + middle / 2];
  const [width, height] = [far + SIDE, tokens.length * row + 8];
  const y = (index) => index * row + row / 2 + 4;
  const lines = svg("g", { class: "lines" });
  const readout = el("p", { class: "readout", role: "status" });
  const highest = weights.map((all) => Math.max(...all, 1e-9));
  const curve = (i, j, share) =>
    svg("path", {
      d: `M${near} ${y(i)} C${bend} ${y(i)} ${bend} ${y(j)} ${far} ${y(j)}`,
      "stroke-opacity": (0.12 + 0.88 * share).toFixed(3),
      "stroke-width": (0.6 + 2.2 * share).toFixed(2),
    });
  const strongest = (i, count) =>
    weights[i]
      .map((weight, j) => [weight / highest[i], j])
      .sort((a, b) => b[0] - a[0])
      .slice(0, count)
      .filter(([share]) => share > 0.05);
  const draw = (from) => {
    const rows = from === null ? [...tokens.keys()] : [from];
    // Without a chosen token, those that look at many at once fade.
    const fade = (i) => (from === null ? Math.min(1, 0.15 + highest[i]) : 1);
    const count = from === null ? STRONGEST : tokens.length;
    replace(
      lines,
      rows.flatMap((i) => strongest(i, count).map(([share, j]) => curve(i, j, share * fade(i)))),
    );
    right.forEach((word, j) => word.style.setProperty("--share", from === null ? 0 : weights[from][j] / highest[from]));
    left.forEach((word, i) => word.classList.toggle("chosen", i === from));
    const hint = byHand("Point at a token on the left to see what it looks at.", "Tap a token on the left.");
    replace(readout, from === null ? el("span", { class: "soft" }, hint) : describe(tokens, weights, from));
  };
  const word = (token, index, [x, at, anchor], properties) =>
    svg(
      "g",
      properties,
      svg("rect", { x, y: y(index) - row / 2 + 1, width: SIDE - 6, height: row - 2, rx: 4 }),
      svg("text", { x: at, y: y(index) + 4, "text-anchor": anchor }, clean(token)),
    );
  const left = tokens.map((token, index) =>
    word(token, index, [0, near - 12, "end"], {
      class: "word",
      tabindex: index === (focus ?? 0) ? 0 : -1,
      role: "button",
      "aria-label": `Attention of ${token}, token ${index + 1}`,
      onpointerenter: () => draw(index),
      onfocus: () => {
        draw(index);
        onfocus(index);
      },
    }),
  );
  const right = tokens.map((token, index) => word(token, index, [far + 6, far + 12, "start"], { class: "word seen" }));
  const picture = svg(
    "svg",
    {
      class: "head-picture",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      tabindex: -1, // Chromium stops at an SVG that listens to the focus of what is in it
      role: "group",
      "aria-label": "Attention from the tokens on the left to those on the right",
      onpointerleave: (event) => event.pointerType === "mouse" && draw(null),
    },
    lines,
    left,
    right,
  );
  roving(picture, () => left);
  draw(focus);
  const frame = el("div", { class: "head-scroll" }, picture);
  if (focus !== null) requestAnimationFrame(() => frame.scrollTo({ top: y(focus) - frame.clientHeight / 2 }));
  return [readout, frame];
}
