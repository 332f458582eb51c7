/** Similarity of lines: vectors from the server, cosines here. */

import { area } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
import { cosine, heatMap, linesOf } from "../parts/heat.js";

const MOST = 40;
const START = [
  "A man is playing a guitar.",
  "Somebody makes music.",
  "The stock market fell sharply.",
  "Shares lost much of their value today.",
  "A cat sleeps on the warm stones.",
  "The kitten naps in the sun.",
];

function closest(lines, values) {
  const pairs = [];
  for (let i = 0; i < lines.length; i++)
    for (let j = i + 1; j < lines.length; j++) pairs.push([values[i][j], lines[i], lines[j]]);
  return pairs.sort((a, b) => b[0] - a[0]).slice(0, 5);
}

export default {
  id: "similarity",
  name: "Similarity",
  title: "Similarity of texts",
  about:
    "One text a line. Each field is the cosine of two of their vectors: 1 for the same direction, 0 for unrelated.",
  does: "embed",
  defaults: { lines: START.join("\n") },

  build(page) {
    const ask = page.channel();
    const known = new Map(); // line -> vector, so that only new lines are sent
    const heat = el("div", { class: "stack" });
    const pairs = el("ol", { class: "pairs" });

    const show = (lines) => {
      const vectors = lines.map((text) => known.get(text));
      const values = vectors.map((a) => vectors.map((b) => cosine(a, b)));
      replace(heat, heatMap(lines, values));
      replace(
        pairs,
        closest(lines, values).map(([value, a, b]) =>
          el("li", {}, el("b", {}, value.toFixed(2)), el("span", {}, a), el("span", { class: "soft" }, b)),
        ),
      );
    };

    const query = async () => {
      const lines = linesOf(input.input.value, MOST);
      const fresh = lines.filter((text) => !known.has(text));
      page.calls.set("v1/embeddings", { input: lines, model: page.model });
      if (fresh.length) {
        const answer = await ask("v1/embeddings", { input: fresh, model: page.model }, { shown: false });
        if (answer === undefined) return;
        if (answer === null) {
          replace(heat);
          replace(pairs);
          return;
        }
        answer.data.forEach((item) => known.set(fresh[item.index], item.embedding));
      } else ask.drop();
      if (lines.length < 2) {
        replace(heat, el("p", { class: "hint" }, "Write at least two lines."));
        replace(pairs);
        return;
      }
      show(lines);
    };
    const soon = debounce(query, 250);
    const input = area(
      `Texts, one a line (up to ${MOST})`,
      page.state.lines,
      (lines) => {
        page.save({ lines });
        soon();
      },
      { rows: 6 },
    );
    query();
    return [
      el("div", { class: "panel stack" }, input.node, page.problem),
      el("div", { class: "panel stack" }, heat),
      el("div", { class: "panel stack" }, el("h2", {}, "Closest pairs"), pairs),
    ];
  },
};
