/** One text in every layer, in the playground and in reports: all heads, one of them in full, and what each layer would
 * predict. */

import { onScheme, percent } from "./colours.js";
import { segments } from "./controls.js";
import { el, replace } from "./dom.js";
import { clean, headPicture, Heads, liveliest } from "./heads.js";

const isMask = (token) => token === "[MASK]" || token === "<mask>";

/** A table: a row for each layer, from the last one down, a column for each token. It begins at the first mask. */
function layerTable(name, tokens, rows, cell) {
  const label = (layer) => (layer === 0 ? "input" : String(layer));
  const mark = (index) => (isMask(tokens[index]) ? "masked" : null);
  const heads = tokens.map((token, index) => el("th", { scope: "col", class: mark(index) }, clean(token)));
  const line = (layer) =>
    el("tr", {}, el("th", { scope: "row", title: `Layer ${label(layer)}` }, label(layer)), rows[layer].map(cell));
  const node = el(
    "div",
    { class: "lens-scroll", tabindex: 0, role: "region", "aria-label": name },
    el(
      "table",
      { class: "lens" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "layer"), heads)),
      el("tbody", {}, [...rows.keys()].reverse().map(line)),
    ),
  );
  const first = heads[tokens.findIndex(isMask)];
  if (first)
    requestAnimationFrame(() =>
      node.scrollTo({ left: first.offsetLeft - node.clientWidth / 2 + first.offsetWidth / 2 }),
    );
  return node;
}

function lensCell(candidates) {
  const [best] = candidates;
  const all = candidates.map((candidate) => `${candidate.text.trim()} ${percent(candidate.probability)}`).join(", ");
  return el("td", { title: all, "--share": best.probability.toFixed(3) }, best.text.trim() || "␣");
}

/** {node, told, show(answer)}: `answer` has tokens, attention (layer, head, from, to; or null), lens (or null), norms,
 * cut. `state` holds layer, head, token and table as texts; `save(changes)` keeps what is chosen. */
export function explorer(state, save, signal) {
  const grid = el("div", {});
  const single = el("div", { class: "stack" });
  const name = el("h2", {});
  const below = el("div", {});
  const told = el("p", { class: "small", role: "status" });
  let answer = null;
  let heads = null;

  const drawHead = (layer, head, chosen = true) => {
    if (chosen) save({ layer: String(layer + 1), head: String(head + 1) });
    name.textContent = `Layer ${layer + 1}, head ${head + 1}`;
    const at = state.token === "" ? null : Number(state.token) - 1;
    const token = at !== null && answer.tokens[at] !== undefined ? at : null;
    const keep = (index) => index !== token && save({ token: String(index + 1) });
    replace(single, headPicture(answer.tokens, answer.attention[layer][head], token, keep));
  };

  const drawTable = () => {
    const highest = Math.max(...answer.norms.flat(), 1e-9);
    const norms = () =>
      layerTable("Length of the state of each token, by layer", answer.tokens, answer.norms, (value) =>
        el("td", { "--share": (value / highest).toFixed(3) }, value.toFixed(1)),
      );
    const lens = () => layerTable("What each layer would predict, by token", answer.tokens, answer.lens, lensCell);
    const none = () => el("p", { class: "hint" }, "This model has no mask head, so its layers predict no words.");
    replace(below, state.table === "norms" ? norms() : answer.lens ? lens() : none());
  };

  const show = (found) => {
    answer = found;
    told.textContent = answer.cut ? `Only the first ${answer.tokens.length} tokens are shown.` : "";
    heads = null;
    if (!answer.attention?.length) {
      replace(grid, el("p", { class: "hint" }, "This model has no attention."));
      replace(single);
    } else {
      const asked = [Number(state.layer) - 1, Number(state.head) - 1];
      const there = answer.attention[asked[0]]?.[asked[1]] !== undefined;
      let first = !there; // a head that the page has chosen is not part of the address
      const choose = (layer, head) => {
        drawHead(layer, head, !first);
        first = false;
      };
      heads = new Heads(answer.attention, there ? asked : liveliest(answer.tokens, answer.attention), choose);
      replace(grid, heads.node);
    }
    drawTable();
  };

  onScheme(() => heads?.colour(), signal);
  const tables = [
    { value: "lens", name: "predictions" },
    { value: "norms", name: "norms" },
  ];
  const table = segments("Show", tables, state.table, (value) => {
    save({ table: value });
    if (answer) drawTable();
  });
  const all = el("h2", {}, "All heads: a row for each layer, a column for each head");
  const node = el(
    "div",
    { class: "stack" },
    el(
      "div",
      { class: "attention" },
      el("div", { class: "panel stack" }, all, grid),
      el("div", { class: "panel stack" }, name, single),
    ),
    el("div", { class: "panel stack" }, el("div", { class: "row" }, el("h2", {}, "Layer by layer"), table.node), below),
  );
  return { node, told, show };
}
