/** The little Markdown that a study's table.md is written in, as elements: headings, paragraphs, lists, tables. */

import { el } from "./dom.js";

const cells = (line) =>
  line
    .replace(/^\||\|\s*$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim());

/** `code` between backticks; everything else as it is. */
const inline = (text) =>
  text.split(/`([^`]+)`/).map((piece, index) => (index % 2 ? el("code", {}, piece) : piece || null));

function table(lines) {
  const [head, rule, ...rows] = lines.map(cells);
  const right = rule.map((cell) => cell.endsWith(":"));
  const row = (values, tag) =>
    el(
      "tr",
      {},
      values.map((value, index) =>
        el(index === 0 && tag === "td" ? "th" : tag, { class: right[index] ? "number" : null }, inline(value)),
      ),
    );
  return el(
    "div",
    { class: "table-scroll", tabindex: 0, role: "region", "aria-label": `Table: ${head.filter(Boolean).join(", ")}` },
    el(
      "table",
      { class: "figures" },
      el("thead", {}, row(head, "th")),
      el(
        "tbody",
        {},
        rows.map((values) => row(values, "td")),
      ),
    ),
  );
}

export function markdown(text) {
  const blocks = text.split(/\n\s*\n/).map((block) => block.split("\n").filter((line) => line.trim()));
  return blocks
    .filter((lines) => lines.length)
    .map((lines) => {
      if (lines[0].startsWith("|") && /^\|[\s:|-]+$/.test(lines[1] ?? "")) return table(lines);
      if (lines.every((line) => line.startsWith("- ")))
        return el(
          "ul",
          { class: "remarks" },
          lines.map((line) => el("li", {}, inline(line.slice(2)))),
        );
      const heading = /^#+ (.*)$/.exec(lines[0]);
      return heading ? el("h3", {}, heading[1]) : el("p", { class: "reading" }, inline(lines.join(" ")));
    });
}
