/** A text continued by a left-to-right model, piece by piece as it is made. */

import { area, choice, slider } from "../parts/controls.js";
import { el, replace } from "../parts/dom.js";
import { events } from "../parts/server.js";

const two = (value) => value.toFixed(2);
const SLIDERS = [
  ["tokens", "Tokens", { low: 1, high: 400 }, "How many tokens to add."],
  [
    "temperature",
    "Temperature",
    { low: 0, high: 2, step: 0.05, format: two },
    "Below 1: safer words. Above 1: bolder ones.",
  ],
  [
    "top_k",
    "Top k",
    { low: 0, high: 100, format: (value) => (value ? String(value) : "all") },
    "Draw from the k likeliest tokens.",
  ],
  [
    "top_p",
    "Top p",
    { low: 0.05, high: 1, step: 0.05, format: two },
    "Draw from the likeliest tokens that make up this share.",
  ],
  [
    "penalty",
    "Penalty",
    { low: 1, high: 2, step: 0.05, format: two },
    "Above 1: tokens that were there already become less likely.",
  ],
  ["seed", "Seed", { low: 0, high: 99 }, "The same seed gives the same text."],
];

export default {
  id: "generate",
  name: "Generate",
  title: "Continue a text",
  about: "A left-to-right model adds one token after the other.",
  does: "generate",
  defaults: {
    prompt: "Once upon a time",
    tokens: "60",
    temperature: "1",
    top_k: "0",
    top_p: "1",
    penalty: "1",
    seed: "0",
    control: "",
  },

  build(page) {
    const ask = page.channel();
    const text = el("div", { class: "reading generated", "aria-live": "off" });
    const told = el("p", { class: "small", role: "status" });
    let running = false;

    const body = () => {
      const numbers = SLIDERS.map(([name]) => [name, Number(page.state[name])]);
      const control = page.state.control.trim();
      return {
        prompt: page.state.prompt,
        model: page.model,
        ...Object.fromEntries(numbers),
        ...(control ? { control } : {}),
        stream: true,
      };
    };
    const preview = () => page.calls.set("generate", body(), true);

    const stop = (message) => {
      running = false;
      button.textContent = "Generate";
      told.textContent = message;
    };

    const run = async () => {
      running = true;
      button.textContent = "Stop";
      told.textContent = "Writing…";
      const tail = el("span", { class: "tail" });
      replace(text, el("span", { class: "prompt" }, page.state.prompt), tail);
      const began = performance.now();
      let problem = "";
      const count = await ask("generate", body(), {
        use: async (response) => {
          let tokens = 0;
          for await (const event of events(response)) {
            if (event.text) tail.append(event.text);
            if (event.error) problem = event.error.message ?? String(event.error);
            tokens = event.tokens ?? tokens;
          }
          return tokens;
        },
      });
      if (!running) return;
      const seconds = (performance.now() - began) / 1000;
      stop(count === undefined || count === null ? "" : `${count} tokens in ${seconds.toFixed(1)} s`);
      if (problem) page.fail(problem);
    };

    const button = el(
      "button",
      {
        type: "button",
        class: "primary",
        onclick: () => {
          if (!running) return run();
          ask.drop();
          return stop("Stopped.");
        },
      },
      "Generate",
    );
    const change = (name) => (value) => {
      page.save({ [name]: String(value) });
      preview();
    };
    const prompt = area("Prompt", page.state.prompt, change("prompt"), { rows: 3 });
    prompt.input.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !running) run();
      if (event.key === "Escape" && running) button.click();
    });
    const codes = page.entry.controls ?? [];
    const control = choice(
      "Control code",
      [{ value: "", name: "none" }, ...codes],
      page.state.control,
      change("control"),
    );
    preview();
    return [
      el(
        "div",
        { class: "panel stack" },
        prompt.node,
        el(
          "div",
          { class: "options" },
          SLIDERS.map(
            ([name, label, range, about]) =>
              slider(label, { ...range, value: page.state[name], about }, change(name)).node,
          ),
          codes.length ? control.node : null,
        ),
        el(
          "div",
          { class: "row" },
          button,
          el("span", { class: "small mouse" }, el("kbd", {}, "Ctrl"), " + ", el("kbd", {}, "Enter")),
        ),
        page.problem,
      ),
      el("div", { class: "panel stack" }, text, told),
    ];
  },
};
