/** An answer marked in its passage: in a passage of one's own, or in one that an index finds. */

import { area, choice, line, segments } from "../parts/controls.js";
import { percent } from "../parts/colours.js";
import { debounce, el, replace } from "../parts/dom.js";
import { marked } from "../parts/marks.js";

const PASSAGE =
  "The Amazon rainforest covers most of the Amazon basin of South America. The basin covers 7,000,000 square " +
  "kilometres, of which 5,500,000 are covered by the rainforest. Most of the forest, 60 percent, lies in Brazil, " +
  "followed by Peru with 13 percent.";

/** What a score means, in a word. */
const certainty = (score) =>
  score >= 0.5 ? "likely" : score >= 0.15 ? "unsure" : "very unsure: it may not be in the text";

export default {
  id: "answer",
  name: "Answers",
  title: "An answer in its passage",
  about: "A question, and where its answer may stand: in a passage of yours, or anywhere in an index.",
  does: "answer",
  defaults: { question: "Which country has most of the forest?", passage: PASSAGE, from: "passage", index: "" },

  build(page) {
    const ask = page.channel();
    const indexes = page.served.indexes.map((entry) => entry.id);
    const best = el("p", { class: "best", "aria-live": "polite" });
    const reading = el("div", { class: "reading" });
    const others = el("ol", { class: "answers" });

    const showIn = (candidate) => {
      const hit = candidate.passage;
      if (!hit && page.state.from === "index") return replace(reading);
      const text = hit?.text ?? page.state.passage;
      const spans = candidate.answer ? [candidate] : [];
      return replace(
        reading,
        hit ? el("p", { class: "small" }, [hit.document, hit.source].filter(Boolean).join(" · ")) : null,
        el("p", {}, marked(text, spans)),
      );
    };

    const show = (answer) => {
      const [first] = answer.candidates;
      const sure = first?.score >= 0 && first.score <= 1 ? `${percent(first.score)}, ${certainty(first.score)}` : null;
      replace(
        best,
        answer.answer
          ? [answer.answer, sure ? el("span", { class: "small" }, `  ${sure}`) : null]
          : el("span", { class: "soft" }, "There is no answer in it."),
      );
      showIn(answer);
      replace(
        others,
        answer.candidates.map((candidate) =>
          el(
            "li",
            {},
            el(
              "button",
              {
                type: "button",
                onclick: () => showIn(candidate),
                onfocus: () => showIn(candidate),
                onpointerenter: () => showIn(candidate),
              },
              el("span", {}, candidate.answer),
              el("span", { class: "score" }, Number(candidate.score).toFixed(3)),
            ),
          ),
        ),
      );
    };

    const query = async () => {
      const { question, passage, from, index } = page.state;
      if (!question.trim() || (from === "passage" && !passage.trim())) {
        ask.drop();
        replace(others);
        replace(reading);
        return replace(best, el("span", { class: "soft" }, "Write a question and a passage."));
      }
      const place = from === "index" ? { index: index || indexes[0], k: 5 } : { passage };
      const answer = await ask("answer", { question, ...place, model: page.model });
      if (answer === undefined) return undefined;
      if (answer) return show(answer);
      replace(others);
      replace(reading);
      return replace(best);
    };
    const soon = debounce(query, 250);
    const change = (name) => (value) => {
      page.save({ [name]: value });
      soon();
    };

    const question = line("Question", page.state.question, change("question"), { large: true });
    const passage = area("Passage", page.state.passage, change("passage"), { rows: 5 });
    const index = choice("Index", indexes, page.state.index || indexes[0], change("index"));
    const switchTo = (from) => {
      page.save({ from });
      passage.node.hidden = from !== "passage";
      index.node.hidden = from !== "index";
      query();
    };
    const from = segments(
      "Read",
      [
        { value: "passage", name: "my passage" },
        { value: "index", name: "an index" },
      ],
      page.state.from,
      switchTo,
    );
    if (!indexes.length) page.save({ from: "passage" });
    switchTo(page.state.from);
    return [
      el(
        "div",
        { class: "panel stack" },
        question.node,
        indexes.length ? from.node : null,
        passage.node,
        index.node,
        page.problem,
      ),
      el(
        "div",
        { class: "panel stack" },
        best,
        el("div", { class: "two" }, reading, el("div", { class: "stack" }, el("h2", {}, "Candidates"), others)),
      ),
    ];
  },
};
