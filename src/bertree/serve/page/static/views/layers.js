/** Attention heads as small pictures, one head in full, and what each layer would predict. */

import { onScheme, percent } from "../parts/colours.js";
import { area, segments } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
import { clean, headPicture, Heads, liveliest, unpack } from "../parts/heads.js";

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

export default {
  id: "layers",
  name: "Layers",
  title: "Attention and layers",
  about: "Which tokens each head looks at, and which word each layer would already predict at every place.",
  does: "layers",
  defaults: { text: "The capital of France is [MASK].", pair: "", layer: "", head: "", token: "", table: "lens" },

  build(page) {
    const ask = page.channel();
    const grid = el("div", {});
    const single = el("div", { class: "stack" });
    const name = el("h2", {});
    const below = el("div", {});
    const told = el("p", { class: "small", role: "status" });
    const results = el("div", { class: "stack", hidden: true });
    let answer = null;
    let heads = null;

    const drawHead = (layer, head, chosen = true) => {
      if (chosen) page.save({ layer: String(layer + 1), head: String(head + 1) });
      name.textContent = `Layer ${layer + 1}, head ${head + 1}`;
      const at = page.state.token === "" ? null : Number(page.state.token) - 1;
      const token = at !== null && answer.tokens[at] !== undefined ? at : null;
      const keep = (index) => index !== token && page.save({ token: String(index + 1) });
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
      replace(below, page.state.table === "norms" ? norms() : answer.lens ? lens() : none());
    };

    const show = () => {
      results.hidden = false;
      told.textContent = answer.cut ? `Only the first ${answer.tokens.length} tokens are shown.` : "";
      if (!answer.attention?.length) {
        replace(grid, el("p", { class: "hint" }, "This model has no attention."));
        replace(single);
      } else {
        const asked = [Number(page.state.layer) - 1, Number(page.state.head) - 1];
        const there = answer.attention[asked[0]]?.[asked[1]] !== undefined;
        let first = !there; // a head that the page has chosen is not part of the address
        heads = new Heads(
          answer.attention,
          there ? asked : liveliest(answer.tokens, answer.attention),
          (layer, head) => {
            drawHead(layer, head, !first);
            first = false;
          },
        );
        replace(grid, heads.node);
      }
      drawTable();
    };

    const query = async () => {
      const { text, pair } = page.state;
      if (!text.trim()) {
        ask.drop();
        page.calls.clear();
        results.hidden = true;
        return;
      }
      const body = { text, ...(pair.trim() ? { pair } : {}), model: page.model, encoding_format: "base64" };
      const found = await ask("layers", body);
      if (found === undefined) return;
      results.hidden = true;
      if (found === null) return;
      const attention = found.attention?.map((layer) => unpack(layer, found.tokens.length));
      answer = { ...found, attention };
      show();
    };
    const soon = debounce(query, 300);
    const change = (field) => (value) => {
      page.save({ [field]: value, token: "" });
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
        if (answer) drawTable();
      },
    );
    replace(
      results,
      el(
        "div",
        { class: "attention" },
        el(
          "div",
          { class: "panel stack" },
          el("h2", {}, "All heads: a row for each layer, a column for each head"),
          grid,
        ),
        el("div", { class: "panel stack" }, name, single),
      ),
      el(
        "div",
        { class: "panel stack" },
        el("div", { class: "row" }, el("h2", {}, "Layer by layer"), table.node),
        below,
      ),
    );
    return [
      el(
        "div",
        { class: "panel stack" },
        area("Text", page.state.text, change("text"), { rows: 1, large: true }).node,
        area("Second text, for models that read pairs", page.state.pair, change("pair"), { rows: 1 }).node,
        page.problem,
        told,
      ),
      results,
    ];
  },
};
