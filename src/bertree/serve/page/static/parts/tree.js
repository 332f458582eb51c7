/** The family tree: models under the model they come from. */

import { short } from "./colours.js";
import { el, roving, svg } from "./dom.js";

const ROW = 30; // pixels, as in views.css
const INDENT = 15;

/** Presets in the order of the tree, each with its depth. */
function inOrder(presets) {
  const rows = [];
  const names = new Set(presets.map((preset) => preset.name));
  const add = (parent, depth) => {
    for (const preset of presets) {
      const above = names.has(preset.parent) ? preset.parent : null;
      if (above !== parent) continue;
      rows.push({ ...preset, depth });
      add(preset.name, depth + 1);
    }
  };
  add(null, 0);
  return rows;
}

/** The tree; `choose(name)` is called when a model is chosen. */
export function tree(presets, chosen, choose) {
  const rows = inOrder(presets);
  const y = (index) => index * ROW + ROW / 2;
  const x = (depth) => depth * INDENT + 9;
  const at = new Map(rows.map((row, index) => [row.name, index]));
  const lines = rows.flatMap((row, index) => {
    if (!row.depth) return [];
    const [px, py] = [x(row.depth - 1), y(at.get(row.parent))];
    return svg("path", { d: `M${px} ${py + 5}V${y(index) - 8}q0 8 8 8H${x(row.depth) - 5}` });
  });
  const items = rows.map((row) =>
    el(
      "button",
      {
        type: "button",
        role: "treeitem",
        "aria-level": row.depth + 1,
        "aria-selected": String(row.name === chosen),
        tabindex: row.name === chosen ? 0 : -1,
        title: row.about,
        "--depth": row.depth,
        onclick: () => {
          for (const item of items) item.setAttribute("aria-selected", String(item.dataset.name === row.name));
          choose(row.name);
        },
        "data-name": row.name,
      },
      el("span", {}, row.name),
      row.parameters ? el("span", { class: "soft" }, short(row.parameters)) : null,
    ),
  );
  const node = el(
    "div",
    { class: "tree", role: "tree", "aria-label": "Family tree" },
    svg("svg", { "aria-hidden": "true", width: 160, height: rows.length * ROW }, lines),
    items,
  );
  roving(node, () => items, { onmove: (item) => item.click() });
  const stop = items.find((item) => item.dataset.name === chosen) ?? items[0];
  stop.tabIndex = 0;
  requestAnimationFrame(() => node.scrollTo({ top: stop.offsetTop - node.clientHeight / 2 }));
  return node;
}
