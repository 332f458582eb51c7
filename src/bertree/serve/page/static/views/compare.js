/** Two models side by side: their candidates for masks, their cosines, their heads. */

import { bars, candidateRows } from "../parts/bars.js";
import { onScheme } from "../parts/colours.js";
import { area, choice, segments } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
import { headPicture, Heads, liveliest, unpack } from "../parts/heads.js";
import { cosine, heatMap, linesOf } from "../parts/heat.js";

const MOST = 12; // lines
const KINDS = [
  { value: "fill", name: "masks", does: "fill" },
  { value: "similarity", name: "similarity", does: "embed" },
  { value: "layers", name: "layers", does: "layers" },
];
const TEXTS = {
  fill: "The capital of France is [MASK].",
  similarity: "A man is playing a guitar.\nSomebody makes music.\nThe stock market fell sharply.\nShares lost value.",
  layers: "The cat sat on the mat because it was tired.",
};

/** Kind -> [path, body, what to draw of the answer]. */
const ASK = {
  fill: (text, model) => [
    "fill",
    { text, k: 8, model },
    (answer) =>
      answer.masks.map((mask, index) =>
        bars(candidateRows(mask), {
          label: `Candidates of ${model} for mask ${index + 1}`,
          title: answer.masks.length > 1 ? `Mask ${index + 1}` : null,
          longest: 1,
        }),
      ),
  ],
  similarity: (text, model) => {
    const lines = linesOf(text, MOST);
    const draw = ({ data }) => {
      const vectors = [...data].sort((a, b) => a.index - b.index).map((item) => item.embedding);
      return heatMap(
        lines,
        vectors.map((a) => vectors.map((b) => cosine(a, b))),
      );
    };
    return ["v1/embeddings", { input: lines, model }, draw];
  },
  layers: (text, model, page) => [
    "layers",
    { text, model, encoding_format: "base64" },
    ({ tokens, attention }) => {
      if (!attention?.length) return el("p", { class: "hint" }, "This model has no attention.");
      const weights = attention.map((layer) => unpack(layer, tokens.length));
      const single = el("div", { class: "stack" });
      const heads = new Heads(weights, liveliest(tokens, weights), (layer, head) =>
        replace(
          single,
          el("h2", {}, `Layer ${layer + 1}, head ${head + 1}`),
          headPicture(tokens, weights[layer][head], null),
        ),
      );
      onScheme(() => heads.colour(), page.signal);
      return [heads.node, single];
    },
  ],
};

export default {
  id: "compare",
  name: "Compare",
  title: "Two models side by side",
  about: "The same text read by two models of this server.",
  does: null,
  defaults: { kind: "fill", text: "", left: "", right: "" },

  build(page) {
    const { served, state } = page;
    const kinds = KINDS.filter(({ does }) => served.able(does).length > 1);
    if (!kinds.length) {
      return el(
        "div",
        { class: "panel notice" },
        el("strong", {}, "Only one model is served that could be compared."),
        el("p", { class: "soft" }, "Name two or more, with fill masks, vectors or layers in common."),
        el("code", {}, "bertree serve default my-model"),
      );
    }
    const kind = kinds.find(({ value }) => value === state.kind) ?? kinds[0];
    const able = served.able(kind.does).map((entry) => entry.id);
    const chosen = {
      left: able.includes(state.left) ? state.left : able[0],
      right: able.includes(state.right) ? state.right : (able.find((id) => id !== able[0]) ?? able[1]),
    };
    const columns = { left: el("div", { class: "stack" }), right: el("div", { class: "stack" }) };
    const channels = { left: page.channel(), right: page.channel() };

    const query = async (side) => {
      const text = input.input.value;
      if (!text.trim()) return replace(columns[side], el("p", { class: "hint" }, "Write a text."));
      const [path, body, draw] = ASK[kind.value](text, chosen[side], page);
      const answer = await channels[side](path, body, { shown: side === "left" });
      if (answer === undefined) return undefined;
      return replace(columns[side], answer === null ? null : draw(answer));
    };
    const both = () => Promise.all([query("left"), query("right")]);
    const soon = debounce(both, 250);
    const input = area(
      kind.value === "similarity" ? `Texts, one a line (up to ${MOST})` : "Text",
      state.text || TEXTS[kind.value],
      (text) => {
        page.save({ text });
        soon();
      },
      { rows: kind.value === "similarity" ? 4 : 1, large: kind.value !== "similarity" },
    );
    const column = (side, name) =>
      el(
        "section",
        { class: "panel stack", "aria-label": `${name} model` },
        choice(`${name} model`, able, chosen[side], (model) => {
          chosen[side] = model;
          page.save({ [side]: model });
          query(side);
        }).node,
        columns[side],
      );
    both();
    return [
      el(
        "div",
        { class: "panel stack" },
        kinds.length > 1
          ? segments("Compare", kinds, kind.value, (value) => {
              page.save({ kind: value, text: "" });
              page.again();
            }).node
          : null,
        input.node,
        page.problem,
      ),
      el("div", { class: "two" }, column("left", "First"), column("right", "Second")),
    ];
  },
};
