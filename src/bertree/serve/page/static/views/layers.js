/** Attention heads as small pictures, one head in full, and what each layer would predict. */

import { area } from "../parts/controls.js";
import { debounce, el } from "../parts/dom.js";
import { unpack } from "../parts/heads.js";
import { explorer } from "../parts/layers.js";

export default {
  id: "layers",
  name: "Layers",
  title: "Attention and layers",
  about: "Which tokens each head looks at, and which word each layer would already predict at every place.",
  does: "layers",
  defaults: { text: "The capital of France is [MASK].", pair: "", layer: "", head: "", token: "", table: "lens" },

  build(page) {
    const ask = page.channel();
    const results = explorer(page.state, (changes) => page.save(changes), page.signal);
    results.node.hidden = true;

    const query = async () => {
      const { text, pair } = page.state;
      if (!text.trim()) {
        ask.drop();
        page.calls.clear();
        results.node.hidden = true;
        return;
      }
      const body = { text, ...(pair.trim() ? { pair } : {}), model: page.model, encoding_format: "base64" };
      const found = await ask("layers", body);
      if (found === undefined) return;
      results.node.hidden = found === null;
      if (found === null) return;
      const attention = found.attention?.map((layer) => unpack(layer, found.tokens.length));
      results.show({ ...found, attention });
    };
    const soon = debounce(query, 300);
    const change = (field) => (value) => {
      page.save({ [field]: value, token: "" });
      soon();
    };
    query();
    return [
      el(
        "div",
        { class: "panel stack" },
        area("Text", page.state.text, change("text"), { rows: 1, large: true }).node,
        area("Second text, for models that read pairs", page.state.pair, change("pair"), { rows: 1 }).node,
        page.problem,
        results.told,
      ),
      results.node,
    ];
  },
};
