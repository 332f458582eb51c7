/** Classes of texts with their probabilities, or a score. */

import { bars } from "../parts/bars.js";
import { area, examples, line } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
import { linesOf } from "../parts/heat.js";

const MOST = 50;
const TEXTS = ["A warm, funny film that never tries too hard.", "Two hours that I will not get back."];
const PAIRS = [
  ["A man is playing a guitar.", "Somebody makes music."],
  ["A man is playing a guitar.", "Nobody is making a sound."],
];

export default {
  id: "classify",
  name: "Classify",
  title: "Classes of texts",
  about: "What a fine-tuned model says about a text, or about two texts together, with its probabilities.",
  does: "predict",
  defaults: { texts: "", pair: "" },

  build(page) {
    const ask = page.channel();
    const pairs = page.entry.pairs === true;
    const results = el("div", { class: "classes" });
    const hint = (text) => replace(results, el("p", { class: "hint" }, text));

    /** A model with one output gives a score, which is no probability of a class. */
    const figure = (rows) =>
      rows.length === 1
        ? el("p", { class: "best" }, rows[0].score.toFixed(3), el("span", { class: "small" }, "  score"))
        : bars(
            rows.map((row) => ({ name: row.label, share: row.score })),
            { label: "Classes", longest: 1 },
          );

    const query = async () => {
      const { texts, pair } = page.state;
      const inputs = pairs ? [[texts.trim(), pair.trim()]] : linesOf(texts, MOST).map((text) => [text]);
      if (!inputs.length || inputs.some((input) => input.some((text) => !text))) {
        ask.drop();
        page.calls.clear();
        return hint(pairs ? "Write both texts." : "Write a text, or several, one a line.");
      }
      const single = page.entry.labels?.length === 1;
      const answer = await ask("predict", { inputs, model: page.model, ...(single ? { raw_scores: true } : {}) });
      if (answer === undefined) return undefined;
      if (answer === null) return replace(results);
      return replace(
        results,
        answer.map((rows, index) =>
          el(
            "section",
            { class: "panel stack" },
            pairs ? null : el("p", { class: "reading" }, inputs[index][0]),
            figure(rows),
          ),
        ),
      );
    };
    const soon = debounce(query, 250);
    const change = (name) => (value) => {
      page.save({ [name]: value });
      soon();
    };
    const label = pairs ? "First text" : `Texts, one a line (up to ${MOST})`;
    const texts = area(label, page.state.texts, change("texts"), { rows: pairs ? 2 : 3, large: pairs });
    const pair = line("Second text", page.state.pair, change("pair"), { large: true });
    const use = (first, second = "") => {
      texts.set(first);
      pair.input.value = second;
      page.save({ texts: first, pair: second });
      query();
    };
    if (!page.state.texts) pairs ? use(...PAIRS[0]) : use(TEXTS.join("\n"));
    else query();
    const starts = pairs ? PAIRS.map(([, second]) => second) : TEXTS;
    return [
      el(
        "div",
        { class: "panel stack" },
        texts.node,
        pairs ? pair.node : null,
        examples(starts, (text) => (pairs ? use(PAIRS[0][0], text) : use(text))),
        page.entry.labels?.length > 1
          ? el("p", { class: "small" }, `Classes of ${page.model}: ${page.entry.labels.slice(0, 40).join(", ")}`)
          : null,
        page.problem,
      ),
      results,
    ];
  },
};
