/** Attention heads as small pictures, one head in full, and what each layer would predict. */

import { onScheme, percent, rgb } from "../parts/colours.js";
import { line, segments } from "../parts/controls.js";
import { debounce, el, replace, roving, svg } from "../parts/dom.js";

const ROW = 22; // pixels of a token in the picture of one head
const SIDE = 120; // pixels of the tokens on each side

const clean = (token) => token.replace(/^(##|Ġ|▁)/, (mark) => (mark === "##" ? "##" : "·"));

/** The heads of a layer, each n x n weights, from base64 of a byte for each weight. */
function unpack(text, n) {
  const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const row = (start) => Array.from(bytes.subarray(start, start + n), (byte) => byte / 255);
  return Array.from({ length: bytes.length / (n * n) }, (_, head) =>
    Array.from({ length: n }, (_, i) => row((head * n + i) * n)),
  );
}

/** Paint an n x n matrix of weights, a pixel for each. */
function paint(canvas, weights, [red, green, blue]) {
  const n = weights.length;
  canvas.width = canvas.height = n;
  const context = canvas.getContext("2d");
  const image = context.createImageData(n, n);
  weights.forEach((row, i) =>
    row.forEach((weight, j) => image.data.set([red, green, blue, 255 * Math.sqrt(weight)], 4 * (i * n + j))),
  );
  context.putImageData(image, 0, 0);
}

/** All heads: a row for each layer. */
class Heads {
  constructor(attention, chosen, choose) {
    this.attention = attention;
    this.buttons = [];
    const columns = attention[0]?.length ?? 0;
    this.node = el("div", {
      class: "heads",
      role: "group",
      "aria-label": "Attention heads, a row for each layer",
      "--heads": columns,
    });
    attention.forEach((heads, layer) => {
      this.node.append(el("span", { class: "layer-name" }, String(layer + 1)));
      heads.forEach((_, head) => {
        const button = el(
          "button",
          {
            type: "button",
            tabindex: -1,
            "aria-label": `Layer ${layer + 1}, head ${head + 1}`,
            title: `Layer ${layer + 1}, head ${head + 1}`,
            onclick: () => this.select(layer, head),
          },
          el("canvas"),
        );
        this.buttons.push(button);
        this.node.append(button);
      });
    });
    this.columns = columns;
    this.choose = choose;
    roving(this.node, () => this.buttons, { columns: () => columns, onmove: (button) => button.click() });
    this.colour();
    this.select(...chosen);
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

/** One head: tokens on both sides, a line for each weight; the token under the pointer or the focus stands out. */
function headPicture(tokens, weights, focus, onfocus) {
  const middle = matchMedia("(max-width: 860px)").matches ? 70 : 190;
  const [near, far, bend] = [SIDE, SIDE + middle, SIDE + middle / 2];
  const [width, height] = [far + SIDE, tokens.length * ROW + 8];
  const y = (index) => index * ROW + ROW / 2 + 4;
  const lines = svg("g", { class: "lines" });
  const curve = (i, j, weight) =>
    svg("path", {
      d: `M${near} ${y(i)} C${bend} ${y(i)} ${bend} ${y(j)} ${far} ${y(j)}`,
      "stroke-opacity": weight.toFixed(3),
      "stroke-width": (0.6 + 2.6 * weight).toFixed(2),
    });
  const draw = (from) => {
    const rows = from === null ? [...tokens.keys()] : [from];
    const least = from === null ? 0.08 : 0.01;
    const seen = (i) => weights[i].flatMap((weight, j) => (weight < least ? [] : curve(i, j, weight)));
    replace(lines, rows.flatMap(seen));
    right.forEach((word, j) => word.style.setProperty("--share", from === null ? 0 : Math.sqrt(weights[from][j])));
    left.forEach((word, i) => word.classList.toggle("chosen", i === from));
    onfocus(from);
  };
  const word = (token, index, [x, at, anchor], properties) =>
    svg(
      "g",
      properties,
      svg("rect", { x, y: y(index) - ROW / 2 + 1, width: SIDE - 6, height: ROW - 2, rx: 4 }),
      svg("text", { x: at, y: y(index) + 4, "text-anchor": anchor }, clean(token)),
    );
  const left = tokens.map((token, index) =>
    word(token, index, [0, near - 12, "end"], {
      class: "word",
      tabindex: index === (focus ?? 0) ? 0 : -1,
      role: "button",
      "aria-label": `Attention of ${token}, token ${index + 1}`,
      onpointerenter: () => draw(index),
      onfocus: () => draw(index),
    }),
  );
  const right = tokens.map((token, index) => word(token, index, [far + 6, far + 12, "start"], { class: "word seen" }));
  const label = "Attention from the tokens on the left to those on the right";
  const picture = svg(
    "svg",
    {
      class: "head-picture",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "group",
      "aria-label": label,
      onpointerleave: () => draw(null),
    },
    lines,
    left,
    right,
  );
  roving(picture, () => left);
  draw(focus);
  return picture;
}

/** A table: a row for each layer, from the last one down, a column for each token. */
function layerTable(name, tokens, rows, cell) {
  const label = (layer) => (layer === 0 ? "embeddings" : `layer ${layer}`);
  return el(
    "div",
    { class: "lens-scroll", tabindex: 0, role: "region", "aria-label": name },
    el(
      "table",
      { class: "lens" },
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("td"),
          tokens.map((token) => el("th", { scope: "col" }, clean(token))),
        ),
      ),
      el(
        "tbody",
        {},
        [...rows.keys()]
          .reverse()
          .map((layer) => el("tr", {}, el("th", { scope: "row" }, label(layer)), rows[layer].map(cell))),
      ),
    ),
  );
}

function lensCell(candidates) {
  const [best] = candidates;
  const all = candidates.map((candidate) => `${candidate.text.trim()} ${percent(candidate.probability)}`).join(", ");
  return el("td", { title: all, "--share": best.probability.toFixed(3) }, best.text.trim() || "␣");
}

export default {
  id: "layers",
  name: "Layers",
  title: "Attention and layers",
  about: "Which tokens each head looks at, and which word each layer would already predict at every place.",
  does: "layers",
  defaults: { text: "The capital of France is [MASK].", pair: "", layer: "0", head: "0", table: "lens" },

  build(page) {
    const ask = page.channel();
    const grid = el("div", {});
    const single = el("div", { class: "head-scroll" });
    const name = el("h2", {});
    const below = el("div", {});
    const told = el("p", { class: "small", role: "status" });
    let answer = null;
    let heads = null;
    let token = null;

    const drawHead = (layer, head) => {
      page.save({ layer: String(layer), head: String(head) });
      name.textContent = `Layer ${layer + 1}, head ${head + 1}`;
      const at = token !== null && token < answer.tokens.length ? token : null;
      replace(
        single,
        headPicture(answer.tokens, answer.attention[layer][head], at, (index) => (token = index)),
      );
    };

    const drawTable = () => {
      if (!answer) return;
      const highest = Math.max(...answer.norms.flat(), 1e-9);
      const norms = () =>
        layerTable("Length of the state of each token, by layer", answer.tokens, answer.norms, (value) =>
          el("td", { "--share": (value / highest).toFixed(3) }, value.toFixed(1)),
        );
      const lens = () => layerTable("What each layer would predict, by token", answer.tokens, answer.lens, lensCell);
      if (page.state.table === "norms") replace(below, norms());
      else
        replace(
          below,
          answer.lens
            ? lens()
            : el("p", { class: "hint" }, "This model has no mask head, so its layers predict no words."),
        );
    };

    const show = () => {
      told.textContent = answer.cut ? "Only the first 128 tokens are shown." : "";
      if (!answer.attention?.length) {
        replace(grid, el("p", { class: "hint" }, "This model has no attention."));
        replace(single);
      } else {
        const layer = Math.min(Number(page.state.layer) || 0, answer.attention.length - 1);
        const head = Math.min(Number(page.state.head) || 0, answer.attention[0].length - 1);
        heads = new Heads(answer.attention, [layer, head], drawHead);
        replace(grid, heads.node);
      }
      drawTable();
    };

    const query = async () => {
      const { text, pair } = page.state;
      if (!text.trim()) {
        ask.drop();
        return;
      }
      const body = { text, ...(pair.trim() ? { pair } : {}), model: page.model, encoding_format: "base64" };
      const found = await ask("layers", body);
      if (!found) return;
      const attention = found.attention?.map((layer) => unpack(layer, found.tokens.length));
      answer = { ...found, attention };
      show();
    };
    const soon = debounce(query, 300);
    const change = (field) => (value) => {
      page.save({ [field]: value });
      soon();
    };
    onScheme(() => heads?.colour(), page.signal);
    query();
    const table = segments(
      "Show",
      [
        { value: "lens", name: "predictions" },
        { value: "norms", name: "norms" },
      ],
      page.state.table,
      (value) => {
        page.save({ table: value });
        drawTable();
      },
    );
    return [
      el(
        "div",
        { class: "panel stack" },
        line("Text", page.state.text, change("text"), { large: true }).node,
        line("Second text, for models that read pairs", page.state.pair, change("pair")).node,
        page.problem,
        told,
      ),
      el(
        "div",
        { class: "attention" },
        el("div", { class: "panel stack" }, el("h2", {}, "Heads, by layer"), grid),
        el("div", { class: "panel stack" }, name, single),
      ),
      el(
        "div",
        { class: "panel stack" },
        el("div", { class: "row" }, el("h2", {}, "Layer by layer"), table.node),
        below,
      ),
    ];
  },
};
