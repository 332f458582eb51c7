/** The first page: what this server holds, and where to begin. */

import { grouped, short } from "../parts/colours.js";
import { el, replace } from "../parts/dom.js";
import { link } from "../parts/state.js";

/** Ability -> [name of a view, its id]. */
const VIEWS = {
  fill: ["fills masks", "fill"],
  embed: ["compares texts", "similarity"],
  predict: ["classifies", "classify"],
  entities: ["marks entities", "entities"],
  answer: ["answers questions", "answer"],
  generate: ["continues texts", "generate"],
  layers: ["shows its layers", "layers"],
};

/** What to try first: [ability, title, sentence, view, state]. Only what this server can do is shown. */
const STARTS = [
  ["fill", "Hide a word", "The capital of France is ▢. What does the model expect there?", "fill", {}],
  ["index", "Search", "Ask an index in your own words; the words that were found are marked.", "search", {}],
  ["predict", "Classify", "Write a sentence and see the classes with their probabilities.", "classify", {}],
  ["answer", "Ask a passage", "The answer is marked where it stands.", "answer", {}],
  ["entities", "Find names", "People, places and organizations, marked in your text.", "entities", {}],
  ["generate", "Continue a text", "Word by word, from a beginning of yours.", "generate", {}],
  ["embed", "Compare meanings", "Which of your sentences say the same in other words?", "similarity", {}],
  ["layers", "Look inside", "Every attention head, and what each layer would already answer.", "layers", {}],
];
const MOST_STARTS = 6;

const card = (title, text, href) => el("a", { class: "card", href }, el("strong", {}, title), el("span", {}, text));

function model(entry) {
  const facts = [
    entry.architecture,
    entry.parameters ? `${short(entry.parameters)} parameters` : null,
    entry.dimension ? `vectors of ${entry.dimension}` : null,
    entry.max_length ? `reads ${grouped(entry.max_length)} tokens` : null,
  ];
  const views = Object.entries(VIEWS).filter(([ability]) => entry.does.includes(ability));
  return el(
    "li",
    {},
    el("strong", {}, entry.id),
    el("span", { class: "small" }, facts.filter(Boolean).join(" · ")),
    el(
      "span",
      { class: "links" },
      views.map(([, [name, view]]) => el("a", { href: link(view, { model: entry.id }) }, name)),
    ),
  );
}

function index(entry) {
  const count = entry.passages === null || entry.passages === undefined ? "" : `${grouped(entry.passages)} passages`;
  return el(
    "li",
    {},
    el("strong", {}, entry.id),
    el("span", { class: "small" }, [count, `vectors by ${entry.model}`].filter(Boolean).join(" · ")),
    el(
      "span",
      { class: "links" },
      el("a", { href: link("search", { model: entry.id }) }, "search"),
      el("a", { href: link("map", { model: entry.id }) }, "map"),
    ),
  );
}

const list = (title, rows) =>
  rows.length
    ? el("section", { class: "panel stack" }, el("h2", {}, title), el("ul", { class: "holdings" }, rows))
    : null;

export default {
  id: "home",
  name: "Start",
  title: "What this server holds",
  about: "A playground for the models and indexes that it serves. Each view shows the call behind it.",
  does: null,
  defaults: {},

  build(page) {
    const { served } = page;
    const models = served.entries.filter((entry) => entry.kind !== "index");
    const starts = STARTS.filter(([ability]) => served.able(ability).length).slice(0, MOST_STARTS);
    const cards = el(
      "div",
      { class: "cards" },
      starts.map(([, title, text, view, values]) => card(title, text, link(view, values))),
      card("Turn BERT's axes", "The whole family in one plot: what each choice costs.", "#family"),
    );
    const runs = el("div", { class: "stack" });
    const watch = async () => {
      const answer = await page.channel()("runs", undefined, { shown: false });
      if (!answer?.runs.length) return;
      cards.append(card("Watch a training", "Curves as they are written, and the tables of studies.", "#runs"));
      const count = (kind, one, many) => {
        const number = answer.runs.filter((run) => run.kind === kind).length;
        return number ? `${number} ${number === 1 ? one : many}` : null;
      };
      const text = [count("run", "run", "runs"), count("study", "study", "studies")].filter(Boolean).join(" and ");
      const row = el(
        "li",
        {},
        el("strong", {}, text),
        el("span", { class: "small" }, "Curves as they are written, and tables."),
        el("span", { class: "links" }, el("a", { href: "#runs" }, "look at them")),
      );
      replace(runs, list("Runs and studies", [row]));
    };
    watch();
    page.calls.set("v1/models");
    return [
      page.problem,
      el("section", { class: "stack" }, el("h2", {}, "Begin here"), cards),
      list("Models", models.map(model)),
      list("Indexes", served.indexes.map(index)),
      runs,
      el(
        "section",
        { class: "panel stack" },
        el("h2", {}, "From a program"),
        el(
          "p",
          {},
          "OpenAI's, Cohere's and Hugging Face's clients work unchanged. ",
          el("a", { href: "docs" }, "All routes, with their fields: try a call"),
          ".",
        ),
      ),
    ];
  },
};
