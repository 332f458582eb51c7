/** The single texts of a page of `bertree layers`: which text, of which model. The page bundles it with parts/. */

import { choice } from "./parts/controls.js";
import { el, replace } from "./parts/dom.js";
import { unpack } from "./parts/heads.js";
import { explorer } from "./parts/layers.js";

const texts = JSON.parse(document.getElementById("examples").textContent);
const frame = document.getElementById("texts");
if (frame) {
  const state = { text: "0", model: "0", layer: "", head: "", token: "", table: "lens" };
  const view = explorer(state, (changes) => Object.assign(state, changes), new AbortController().signal);
  const show = () => {
    const one = texts[Number(state.text)].models[Number(state.model)];
    view.show({ ...one, attention: one.attention?.map((layer) => unpack(layer, one.tokens.length, true)) });
  };
  const choose = (field, label, names) => {
    const options = names.map((name, index) => ({ value: String(index), name }));
    const change = (value) => {
      Object.assign(state, { [field]: value, token: field === "text" ? "" : state.token });
      show();
    };
    return choice(label, options, "0", change).node;
  };
  const short = (text) => (text.length > 60 ? `${text.slice(0, 59)}…` : text);
  const { names } = texts[0];
  const choices = el(
    "div",
    { class: "row" },
    choose("text", "Text", texts.map((entry) => short(entry.text))),
    names.length > 1 ? choose("model", "Model", names) : null,
  );
  show();
  replace(frame, el("div", { class: "stack" }, choices, view.told, view.node));
}
