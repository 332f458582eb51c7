/** Labelled controls. Each returns {node, input}; `change` gets the value as it changes. */

import { el, uniqueId } from "./dom.js";

export function area(label, value, change, { rows = 3, placeholder = "", large = false } = {}) {
  const id = uniqueId("area");
  const grow = () => {
    input.style.height = "auto";
    input.style.height = `${Math.min(input.scrollHeight + 2, 480)}px`;
  };
  const input = el("textarea", {
    id,
    rows,
    placeholder,
    value,
    spellcheck: "false",
    class: large ? "large" : null,
    oninput: () => {
      grow();
      change(input.value);
    },
  });
  requestAnimationFrame(grow);
  const set = (text) => {
    input.value = text;
    grow();
  };
  return { node: el("div", { class: "field" }, el("label", { for: id }, label), input), input, set };
}

export function line(label, value, change, { type = "text", placeholder = "", large = false, list = null } = {}) {
  const id = uniqueId("line");
  const input = el("input", {
    id,
    type,
    placeholder,
    value,
    autocomplete: "off",
    spellcheck: "false",
    list,
    class: large ? "large" : null,
    oninput: () => change(input.value),
  });
  return { node: el("div", { class: "field" }, el("label", { for: id }, label), input), input };
}

/** `options`: names, or {value, name}. */
export function choice(label, options, value, change) {
  const id = uniqueId("choice");
  const entries = options.map((option) => (typeof option === "string" ? { value: option, name: option } : option));
  const input = el(
    "select",
    { id, onchange: () => change(input.value) },
    entries.map((entry) => el("option", { value: entry.value, selected: entry.value === value }, entry.name)),
  );
  return { node: el("div", { class: "field" }, el("label", { for: id }, label), input), input };
}

/** A slider with its value beside it. */
export function slider(label, { value, low, high, step = 1, format = String, about = null }, change) {
  const id = uniqueId("slider");
  const output = el("output", { for: id }, format(Number(value)));
  const show = () => {
    output.textContent = format(Number(input.value));
    input.setAttribute("aria-valuetext", output.textContent);
    input.style.setProperty("--at", `${(100 * (input.value - low)) / (high - low || 1)}%`);
  };
  const input = el("input", {
    id,
    type: "range",
    min: low,
    max: high,
    step,
    oninput: () => {
      show();
      change(Number(input.value));
    },
  });
  input.value = value;
  show();
  const set = (number) => {
    input.value = number;
    show();
  };
  return {
    node: el("div", { class: "slider", title: about }, el("label", { for: id }, label), output, input),
    input,
    set,
  };
}

export function toggle(label, checked, change, about = null) {
  const input = el("input", { type: "checkbox", checked, onchange: () => change(input.checked) });
  return { node: el("label", { class: "switch", title: about }, input, el("span", {}, label)), input };
}

/** A row of exclusive choices, shown side by side. */
export function segments(label, options, value, change) {
  const name = uniqueId("segments");
  const node = el(
    "fieldset",
    { class: "segments" },
    el("legend", {}, label),
    options.map((option) =>
      el(
        "label",
        {},
        el("input", {
          type: "radio",
          name,
          value: option.value,
          checked: option.value === value,
          onchange: () => change(option.value),
        }),
        el("span", {}, option.name),
      ),
    ),
  );
  return { node };
}

/** Examples to start from. */
export const examples = (texts, use) =>
  el(
    "p",
    { class: "examples" },
    el("span", {}, "Try "),
    texts.map((text) => el("button", { type: "button", class: "chip", onclick: () => use(text) }, text)),
  );
