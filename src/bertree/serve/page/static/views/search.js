/** Search as you type, with the words that were found marked in the passages. */

import { choice, line, slider } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
import { marked } from "../parts/marks.js";

const PART = /([^=,;]+)=\s*("(?:[^"\\]|\\.)*"|[^,;]*)/g;

/** A word of a filter may be a number or a text in the index: both are asked for. In quotes it is a text. */
function readings(word) {
  if (word.startsWith('"')) return [JSON.parse(word)];
  if (word === "true" || word === "false") return [word === "true", word];
  return word !== "" && Number.isFinite(Number(word)) ? [Number(word), word] : [word];
}

/** 'author=Wells, year=1898' -> {author: "Wells", year: [1898, "1898"]}; a key twice: any of its values. */
function condition(text) {
  const where = {};
  for (const [, name, word] of text.matchAll(PART)) {
    where[name.trim()] = [...(where[name.trim()] ?? []), ...readings(word.trim())];
  }
  return Object.fromEntries(Object.entries(where).map(([name, any]) => [name, any.length > 1 ? any : any[0]]));
}

const metadata = (values, add) =>
  Object.entries(values ?? {})
    .filter(([, value]) => value !== null && typeof value !== "object")
    .map(([name, value]) =>
      el(
        "button",
        { type: "button", class: "chip", title: "Search only here", onclick: () => add(name, value) },
        el("span", { class: "soft" }, `${name} `),
        String(value),
      ),
    );

/** What the number of a hit is, by mode. */
const SCORES = { hybrid: "words and meaning combined, about 0 to 1", vectors: "cosine", words: "BM25" };

const place = (name, rank) => `${name} ${rank ?? "–"}`;

/** What found a passage: its rank by words and by vectors; of one part, nothing. */
function ranks(hit, mode) {
  if (mode !== "hybrid") return null;
  const title = `BM25 ${Number(hit.word_score).toFixed(2)}, cosine ${Number(hit.cosine).toFixed(4)}`;
  const text = `${place("words", hit.word_rank)} · ${place("vectors", hit.vector_rank)}`;
  return el("span", { class: "soft small", title }, text);
}

/** The bar of a score between 0 and 1; none for what has another range, as BM25 has. */
function meter(hit, mode, reranked) {
  if ((mode === "words" && !reranked) || hit.score < 0 || hit.score > 1) return null;
  return el("span", { class: "meter", "aria-hidden": "true", "--share": hit.score });
}

function passage(hit, rank, mode, { add, reranked }) {
  const spans = (hit.highlights ?? []).map(([start, end]) => ({ start, end }));
  const where = hit.document.startsWith(hit.source) ? [hit.document] : [hit.document, hit.source];
  return el(
    "li",
    { class: "hit" },
    el(
      "div",
      { class: "hit-head" },
      el("span", { class: "rank" }, String(rank)),
      el("span", { class: "hit-where" }, where.filter(Boolean).join(" · ")),
      ranks(hit, mode),
      meter(hit, mode, reranked),
      el("span", { class: "score" }, Number(hit.score).toFixed(3)),
    ),
    el("p", { class: "reading" }, marked(hit.text, spans)),
    el("div", { class: "tags" }, metadata(hit.metadata, add)),
  );
}

export default {
  id: "search",
  name: "Search",
  title: "Search an index",
  about: "Passages are found by their words, by meaning, or by both. Results change as you type.",
  does: "index",
  defaults: { query: "", k: "10", where: "", rerank: "", mode: "" },

  build(page) {
    const ask = page.channel();
    const hits = el("ol", { class: "hits" });
    const count = el("p", { class: "small", role: "status" });

    const add = (name, value) => {
      const known = where.input.value.trim();
      const word = /[,;="]/.test(value) ? JSON.stringify(value) : value;
      where.input.value = `${known ? `${known}, ` : ""}${name}=${word}`;
      page.save({ where: where.input.value });
      query();
    };

    const query = async () => {
      const { query: text, k, rerank, mode } = page.state;
      if (!text.trim()) {
        ask.drop();
        page.calls.clear();
        page.fail("");
        replace(hits);
        count.textContent = `${page.entry.passages ?? "Its"} passages wait for a question.`;
        return;
      }
      const body = { query: text, index: page.model, k: Number(k) };
      const only = condition(page.state.where);
      if (Object.keys(only).length) body.where = only;
      if (rerank) body.rerank = rerank;
      if (mode) body.mode = mode;
      const answer = await ask("search", body);
      if (answer === undefined) return;
      if (answer === null) {
        replace(hits);
        count.textContent = "";
        return;
      }
      replace(
        hits,
        answer.hits.map((hit, index) => passage(hit, index + 1, answer.mode, { add, reranked: Boolean(rerank) })),
      );
      const time = answer.milliseconds === undefined ? "" : ` in ${Number(answer.milliseconds).toFixed(0)} ms`;
      const number = answer.hits.length === 1 ? "1 passage" : `${answer.hits.length} passages`;
      const score = rerank ? `that of ${rerank}` : SCORES[answer.mode];
      count.textContent = answer.hits.length ? `${number}${time}; score: ${score}` : "Nothing fits the filter.";
    };
    const soon = debounce(query, 120);
    const change = (name) => (value) => {
      page.save({ [name]: String(value) });
      soon();
    };

    const text = line("Question or words", page.state.query, change("query"), {
      type: "search",
      large: true,
      placeholder: "What do you want to find?",
    });
    const where = line("Only where", page.state.where, change("where"), { placeholder: "author=Wells, year=1898" });
    const k = slider("Passages", { value: page.state.k, low: 1, high: 50 }, change("k"));
    const classifiers = page.served.models("predict").map((entry) => entry.id);
    const own = classifiers.includes(page.entry.model)
      ? []
      : [{ value: page.entry.model, name: `${page.entry.model}, token by token` }];
    const rerankers = [...own, ...page.served.models("rerank").map((entry) => entry.id)];
    const rerank = choice(
      "Rerank with",
      [{ value: "", name: "nothing" }, ...rerankers],
      page.state.rerank,
      change("rerank"),
    );
    const modes = [
      { value: "", name: "words and meaning" },
      { value: "vectors", name: "meaning" },
      { value: "words", name: "words" },
    ];
    const mode = choice("Search by", modes, page.state.mode, change("mode"));
    requestAnimationFrame(() => page.state.query || text.input.focus({ preventScroll: true }));
    query();
    return [
      el(
        "div",
        { class: "panel stack" },
        text.node,
        page.problem,
        el("div", { class: "options" }, where.node, mode.node, rerankers.length ? rerank.node : null, k.node),
      ),
      el("div", { class: "stack" }, count, hits),
    ];
  },
};
