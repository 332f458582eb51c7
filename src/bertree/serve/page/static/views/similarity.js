/** Similarity of lines: vectors from the server, cosines here. */

import { area } from "../parts/controls.js";
import { debounce, el, replace, roving } from "../parts/dom.js";

const MOST = 40;
const START = [
  "A man is playing a guitar.",
  "Somebody makes music.",
  "The stock market fell sharply.",
  "Shares lost much of their value today.",
  "A cat sleeps on the warm stones.",
  "The kitten naps in the sun.",
];

function cosine(a, b) {
  let [dot, left, right] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    left += a[i] * a[i];
    right += b[i] * b[i];
  }
  return left && right ? dot / Math.sqrt(left * right) : 0;
}

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
    const heat = el("div", { class: "heat-scroll" });
    const readout = el("p", { class: "readout", "aria-live": "polite" });
    const pairs = el("ol", { class: "pairs" });

    const table = (lines, values) => {
      const tell = (i, j) =>
        replace(
          readout,
          el("b", {}, values[i][j].toFixed(3)),
          ` ${lines[i]}`,
          i === j ? null : [el("span", { class: "soft" }, " and "), lines[j]],
        );
      const cells = [];
      const rows = lines.map((text, i) =>
        el(
          "tr",
          { role: "row" },
          el(
            "th",
            { role: "rowheader", scope: "row", title: text },
            el("span", { class: "line-number" }, String(i + 1)),
            el("span", { class: "line-text" }, text),
          ),
          lines.map((other, j) => {
            const value = values[i][j];
            const cell = el(
              "td",
              {
                role: "gridcell",
                tabindex: cells.length ? -1 : 0,
                class: value < 0 ? "negative" : null,
                "--share": Math.min(1, Math.abs(value)).toFixed(3),
                "aria-label": `${i + 1} and ${j + 1}: ${value.toFixed(2)}`,
                onpointerenter: () => tell(i, j),
                onfocus: () => tell(i, j),
              },
              value.toFixed(2),
            );
            cells.push(cell);
            return cell;
          }),
        ),
      );
      const grid = el(
        "table",
        {
          class: lines.length > 14 ? "heat dense" : "heat",
          role: "grid",
          "aria-label": "Cosine similarity of each pair",
        },
        el(
          "thead",
          {},
          el(
            "tr",
            { role: "row" },
            el("td", { "aria-hidden": "true" }),
            lines.map((text, i) => el("th", { scope: "col", title: text }, String(i + 1))),
          ),
        ),
        el("tbody", {}, rows),
      );
      roving(grid, () => cells, { columns: () => lines.length });
      return grid;
    };

    const show = (lines) => {
      const vectors = lines.map((text) => known.get(text));
      const values = vectors.map((a) => vectors.map((b) => cosine(a, b)));
      replace(heat, table(lines, values));
      replace(
        pairs,
        closest(lines, values).map(([value, a, b]) =>
          el("li", {}, el("b", {}, value.toFixed(2)), el("span", {}, a), el("span", { class: "soft" }, b)),
        ),
      );
      replace(readout, el("span", { class: "soft" }, "Point at a field, or move in the table with the arrow keys."));
    };

    const query = async () => {
      const lines = [
        ...new Set(
          input.input.value
            .split("\n")
            .map((text) => text.trim())
            .filter(Boolean),
        ),
      ].slice(0, MOST);
      const fresh = lines.filter((text) => !known.has(text));
      page.calls.set("v1/embeddings", { input: lines, model: page.model });
      if (fresh.length) {
        const answer = await ask("v1/embeddings", { input: fresh, model: page.model }, { shown: false });
        if (!answer) return;
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
      el("div", { class: "panel stack" }, heat, readout),
      el("div", { class: "panel stack" }, el("h2", {}, "Closest pairs"), pairs),
    ];
  },
};
