/** The frame: views, their state in the URL, the models that are served. */

import { callBox, copy } from "./parts/calls.js";
import { missing, Served } from "./parts/choices.js";
import { choice } from "./parts/controls.js";
import { el, replace } from "./parts/dom.js";
import { askForKey } from "./parts/key.js";
import { json, key, send, ServerError } from "./parts/server.js";
import * as state from "./parts/state.js";
import { tabs } from "./parts/tabs.js";
import answer from "./views/answer.js";
import classify from "./views/classify.js";
import compare from "./views/compare.js";
import entities from "./views/entities.js";
import family from "./views/family.js";
import fill from "./views/fill.js";
import generate from "./views/generate.js";
import home from "./views/home.js";
import layers from "./views/layers.js";
import map from "./views/map.js";
import runs from "./views/runs.js";
import search from "./views/search.js";
import similarity from "./views/similarity.js";

const VIEWS = [
  ...[home, fill, similarity, classify, search, map, entities, answer, generate],
  ...[layers, compare, family, runs],
];
const panel = document.getElementById("view");
let served = new Served([]);
let leave = new AbortController(); // aborted when the view is left
let asking = false;
const kept = {}; // the state of each view, for when one comes back to it

/** What a view gets: its state, its model, and how to ask the server. */
class Page {
  constructor(view, values, signal) {
    this.view = view;
    this.state = kept[view.id] = { ...view.defaults, ...values };
    this.signal = signal;
    this.served = served;
    this.able = view.does ? served.able(view.does) : [];
    const chosen = this.able.find((entry) => entry.id === this.state.model) ?? this.able[0];
    this.model = chosen?.id;
    this.entry = chosen;
    this.problem = el("p", { class: "problem", role: "alert" });
    this.calls = callBox();
    this.waiting = 0;
    this.node = el("div", { class: "view", "aria-busy": "false" });
  }

  save(changes) {
    Object.assign(this.state, changes);
    state.write(this.view.id, this.state, this.view.defaults);
  }

  /** Build the view anew from its state. */
  again() {
    show();
    panel.querySelector(".view input:checked, .view select")?.focus();
  }

  fail(message) {
    this.problem.textContent = message;
  }

  busy(change) {
    this.waiting += change;
    this.node.setAttribute("aria-busy", String(this.waiting > 0));
  }

  /** A channel for one kind of question: a new question drops the one before it and its answer. */
  channel() {
    let latest = new AbortController();
    const drop = () => latest.abort();
    this.signal.addEventListener("abort", drop);
    /** `use(response)` reads the answer; resolves to undefined if it is out of date, and to null if it failed. */
    const ask = async (path, body, { use = json, shown = true } = {}) => {
      latest.abort();
      const mine = (latest = new AbortController());
      if (this.signal.aborted) return undefined;
      if (shown) this.calls.set(path, body, body?.stream === true);
      this.busy(1);
      try {
        const found = await use(await send(path, body, mine.signal));
        if (mine.signal.aborted) return undefined;
        this.fail("");
        return found;
      } catch (error) {
        if (mine.signal.aborted) return undefined;
        if (!(error instanceof ServerError)) throw error;
        if (error.status === 401) wantKey();
        this.fail(error.message);
        return null;
      } finally {
        this.busy(-1);
      }
    };
    return Object.assign(ask, { drop });
  }
}

const noModel = ({ what, command, about }) =>
  el(
    "div",
    { class: "panel notice" },
    el("strong", {}, what),
    el("p", { class: "soft" }, about),
    el("code", {}, command),
  );

function modelChoice(page) {
  if (page.able.length < 2) return null;
  const name = page.view.does === "index" ? "Index" : "Model";
  return choice(
    name,
    page.able.map((entry) => entry.id),
    page.model,
    (model) => {
      page.save({ model });
      show();
      panel.querySelector(".head select")?.focus();
    },
  ).node;
}

function show() {
  const { view: id, values } = state.read();
  const view = VIEWS.find((entry) => entry.id === id) ?? home;
  leave.abort();
  leave = new AbortController();
  select(view.id);
  document.title = `${view.title} · bertree`;
  const page = new Page(view, view.id === id ? values : {}, leave.signal);
  const head = el(
    "div",
    { class: "head" },
    el("div", {}, el("h1", {}, view.title), el("p", {}, view.about)),
    el("div", { class: "row head-tools" }, modelChoice(page), shareButton()),
  );
  const body = view.does && !page.able.length ? noModel(missing(view.does)) : view.build(page);
  replace(page.node, head, el("div", { class: "progress" }), body, page.calls.node);
  replace(panel, page.node);
}

/** The address holds the view and all that was entered, so it is what one shares. */
const shareButton = () =>
  el(
    "button",
    {
      type: "button",
      class: "quiet",
      title: "Copy the address of this view with what you entered",
      onclick: (event) => copy(location.href, event.currentTarget),
    },
    "Copy link",
  );

/** Nothing can be shown: say why, and what to do. */
function halt(message, name, action) {
  const button = el("button", { type: "button", class: "quiet", onclick: action }, name);
  replace(panel, el("div", { class: "panel notice" }, el("p", { role: "alert" }, message), button));
}

async function wantKey() {
  if (asking) return undefined;
  asking = true;
  const message = key.get() ? "The server refused this key." : "This server wants an API key.";
  const given = await askForKey(message);
  asking = false;
  if (given) return start();
  return halt(message, "Enter the key", wantKey);
}

const SCHEMES = ["light dark", "light", "dark"];
const SCHEME_NAMES = { "light dark": "Theme: auto", light: "Theme: light", dark: "Theme: dark" };

function setScheme(scheme) {
  document.documentElement.style.colorScheme = scheme;
  document.dispatchEvent(new Event("scheme"));
}

function serverBox() {
  const scheme = () => localStorage.getItem("bertree-scheme") ?? SCHEMES[0];
  const button = el(
    "button",
    {
      type: "button",
      class: "quiet",
      title: "Colours: automatic, light or dark",
      onclick: () => {
        const next = SCHEMES[(SCHEMES.indexOf(scheme()) + 1) % SCHEMES.length];
        localStorage.setItem("bertree-scheme", next);
        button.textContent = SCHEME_NAMES[next];
        setScheme(next);
      },
    },
    SCHEME_NAMES[scheme()],
  );
  const forget = el(
    "button",
    {
      type: "button",
      class: "quiet",
      onclick: () => {
        key.set("");
        wantKey();
      },
    },
    "Key",
  );
  const models = served.entries.filter((entry) => entry.kind !== "index");
  const row = (entry) => el("li", { title: describe(entry) }, entry.id);
  const list = (name, entries) =>
    entries.length ? el("div", {}, el("h2", {}, name), el("ul", { "aria-label": name }, entries.map(row))) : null;
  replace(
    document.getElementById("server"),
    list("Models", models),
    list("Indexes", served.indexes),
    el("a", { href: "docs" }, "API: try a call"),
    el("div", { class: "row" }, button, key.get() ? forget : null),
  );
}

function describe(entry) {
  const facts = [entry.id, entry.kind === "index" ? "index" : entry.architecture];
  if (entry.passages !== undefined && entry.passages !== null) facts.push(`${entry.passages} passages`);
  if (entry.does?.length) facts.push(entry.does.join(", "));
  return facts.filter(Boolean).join(" · ");
}

async function start() {
  try {
    served = new Served((await json(await send("v1/models"))).data);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 401) return wantKey();
    return halt(error.message, "Try again", start);
  }
  serverBox();
  return show();
}

const select = tabs(
  document.getElementById("views"),
  VIEWS.map(({ id, name, title }) => ({ id, name, hint: title })),
  panel,
  (id) => {
    if (state.read().view === id) return;
    const { defaults } = VIEWS.find((view) => view.id === id);
    history.pushState(null, "", state.link(id, kept[id] ?? {}, defaults));
    show();
  },
);
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  panel.focus();
});
addEventListener("hashchange", show);
setScheme(localStorage.getItem("bertree-scheme") ?? SCHEMES[0]);
serverBox();
start();
