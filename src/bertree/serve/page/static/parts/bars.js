/** Candidates or classes with their probabilities, as bars. */

import { percent } from "./colours.js";
import { el } from "./dom.js";

/** `rows`: [{name, share}]; `use(index)`, if there is one, is called for the bar that is clicked. */
export function bars(rows, { label, title = null, hint = null, use = null, longest = null }) {
  const highest = longest ?? Math.max(...rows.map((row) => row.share), 1e-9);
  const parts = (row) => [
    el("span", { class: "bar-word", title: row.name }, row.name),
    el("span", { class: "bar-track" }, el("span", { class: "bar-fill", "--share": row.share / highest })),
    el("span", { class: "bar-value" }, percent(row.share)),
  ];
  const bar = (row, index) =>
    use
      ? el("button", { type: "button", class: "bar", title: hint, onclick: () => use(index) }, parts(row))
      : el("div", { class: "bar" }, parts(row));
  return el(
    "section",
    { class: "bars", "aria-label": label },
    title ? el("h2", {}, title) : null,
    el(
      "ol",
      {},
      rows.map((row, index) => el("li", {}, bar(row, index))),
    ),
  );
}

/** The candidates of a mask of `POST /fill`, as rows. */
export const candidateRows = (mask) =>
  mask.candidates.map((candidate) => ({
    name: candidate.text.trim() || candidate.token,
    share: candidate.probability,
  }));
