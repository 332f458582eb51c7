/** A heat map of the cosines between lines. */

import { byHand, el, replace, roving } from "./dom.js";

export function cosine(a, b) {
  let [dot, left, right] = [0, 0, 0];
  for (let i = 0; i < a.length; i++) {
    dot += a[i] * b[i];
    left += a[i] * a[i];
    right += b[i] * b[i];
  }
  return left && right ? dot / Math.sqrt(left * right) : 0;
}

/** The lines of a text: each once, without blanks around it. */
export const linesOf = (text, most) =>
  [
    ...new Set(
      text
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean),
    ),
  ].slice(0, most);

/** A table of `values[i][j]`, and below it the two lines of the field that is looked at. */
export function heatMap(lines, values) {
  const readout = el(
    "p",
    { class: "readout", "aria-live": "polite" },
    el(
      "span",
      { class: "soft" },
      byHand("Point at a field, or move in the table with the arrow keys.", "Tap a field to see its two lines."),
    ),
  );
  const tell = (i, j) =>
    replace(
      readout,
      el("b", {}, values[i][j].toFixed(3)),
      ` ${lines[i]}`,
      i === j ? null : [el("span", { class: "soft" }, " and "), lines[j]],
    );
  const cells = [];
  const cell = (value, i, j) => {
    const made = el(
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
    cells.push(made);
    return made;
  };
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
      values[i].map((value, j) => cell(value, i, j)),
    ),
  );
  const numbers = lines.map((text, i) => el("th", { scope: "col", title: text }, String(i + 1)));
  const grid = el(
    "table",
    { class: lines.length > 14 ? "heat dense" : "heat", role: "grid", "aria-label": "Cosine similarity of each pair" },
    el("thead", {}, el("tr", { role: "row" }, el("td", { "aria-hidden": "true" }), numbers)),
    el("tbody", {}, rows),
  );
  roving(grid, () => cells, { columns: () => lines.length });
  return [el("div", { class: "heat-scroll" }, grid), readout];
}
