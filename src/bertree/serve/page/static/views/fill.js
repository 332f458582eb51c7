/** Fill masks: click words to mask them, see the candidates as bars. */

import { bars, candidateRows } from "../parts/bars.js";
import { percent } from "../parts/colours.js";
import { area, examples, slider } from "../parts/controls.js";
import { byHand, debounce, el, replace } from "../parts/dom.js";

const MASK = "[MASK]";
const WORDS = /\[MASK\]|<mask>|[\p{L}\p{M}\p{N}]+(?:['’][\p{L}\p{M}]+)*|[^\s]/gu;
const EXAMPLES = [
  "The capital of France is [MASK].",
  "She [MASK] a letter to her [MASK].",
  "The soup was too [MASK] to eat.",
];
const isMask = (word) => word === MASK || word === "<mask>";

/** Words and masks of a text with their places: [{word, start, end}] */
const words = (text) =>
  [...text.matchAll(WORDS)].map((match) => ({
    word: match[0],
    start: match.index,
    end: match.index + match[0].length,
  }));

export default {
  id: "fill",
  name: "Fill masks",
  title: "Fill in the mask",
  about: `${byHand("Click", "Tap")} a word to hide it. The model says what it expects in its place.`,
  does: "fill",
  defaults: { text: EXAMPLES[0], k: "6" },

  build(page) {
    const ask = page.channel();
    let hidden = []; // the words under the masks, to bring them back
    let masks = [];
    const line = el("div", { class: "words", role: "group", "aria-label": "Words of the text: choose one to mask it" });
    const found = el("div", { class: "candidates" });
    const told = el("p", { class: "small", role: "status" });
    const spoken = el("p", { class: "spoken", role: "status" });

    const put = (text, focus = -1) => {
      input.set(text);
      changed(text);
      if (focus >= 0) line.querySelectorAll("button")[focus]?.focus();
    };

    const press = (at) => {
      const text = input.input.value;
      const all = words(text);
      const { word, start, end } = all[at];
      const before = all.slice(0, at).filter((other) => isMask(other.word)).length;
      let written = MASK;
      if (isMask(word)) {
        [written = ""] = hidden.splice(before, 1);
        written ||= masks[before]?.candidates[0]?.text.trim() ?? "";
      } else hidden.splice(before, 0, word);
      put(text.slice(0, start) + written + text.slice(end), at);
    };

    const draw = () => {
      const text = input.input.value;
      let mask = 0;
      let done = 0;
      const pieces = [];
      words(text).forEach(({ word, start, end }, at) => {
        pieces.push(text.slice(done, start));
        const covered = isMask(word);
        const best = covered ? masks[mask++]?.candidates[0] : null;
        pieces.push(
          el(
            "button",
            {
              type: "button",
              class: covered ? "word mask" : "word",
              "aria-pressed": String(covered),
              "aria-label": covered ? `Mask, ${best?.text.trim() ?? "not filled yet"}` : null,
              onclick: () => press(at),
            },
            covered ? (best?.text.trim() ?? " ") : word,
          ),
        );
        done = end;
      });
      replace(line, pieces, text.slice(done));
    };

    const show = () => {
      draw();
      const text = input.input.value;
      if (!masks.length) {
        const hint = text.trim()
          ? byHand("Click a word above, or write [MASK] where one is missing.", "Tap a word above to hide it.")
          : "Write a sentence.";
        return replace(found, el("p", { class: "hint" }, hint));
      }
      return replace(
        found,
        masks.map((mask, index) =>
          bars(candidateRows(mask), {
            label: `Candidates for mask ${index + 1}`,
            title: masks.length > 1 ? `Mask ${index + 1}` : null,
            hint: "Put it into the text",
            use: (chosen) => {
              const place = words(text).filter((entry) => isMask(entry.word))[index];
              hidden.splice(index, 1);
              put(text.slice(0, place.start) + mask.candidates[chosen].text.trim() + text.slice(place.end));
            },
          }),
        ),
      );
    };

    const query = async () => {
      const text = input.input.value;
      if (!words(text).some((entry) => isMask(entry.word))) {
        ask.drop();
        page.calls.clear();
        page.fail("");
        masks = [];
        told.textContent = "";
        return show();
      }
      const answer = await ask("fill", { text, k: Number(page.state.k), model: page.model });
      if (answer === undefined) return undefined; // a newer question is under way
      if (answer === null) {
        masks = [];
        told.textContent = spoken.textContent = "";
        draw();
        return replace(found);
      }
      masks = answer.masks;
      told.textContent = answer.cut ? "The text is longer than the model reads; its end was left out." : "";
      spoken.textContent = masks
        .map(({ candidates: [best] }) => `${best.text}, ${percent(best.probability)}`)
        .join("; ");
      return show();
    };
    const soon = debounce(query);
    const changed = (text) => {
      const count = words(text).filter((entry) => isMask(entry.word)).length;
      if (count !== hidden.length) hidden = Array(count).fill("");
      page.save({ text });
      draw();
      soon();
    };

    const input = area("Text", page.state.text, changed, { rows: 2, large: true });
    const k = slider("Candidates", { value: page.state.k, low: 1, high: 20 }, (value) => {
      page.save({ k: String(value) });
      soon();
    });
    draw();
    query();
    return [
      el(
        "div",
        { class: "panel stack" },
        input.node,
        examples(EXAMPLES, (text) => put(text)),
        page.problem,
        line,
      ),
      el("div", { class: "panel stack" }, el("div", { class: "narrow" }, k.node), told, found, spoken),
    ];
  },
};
