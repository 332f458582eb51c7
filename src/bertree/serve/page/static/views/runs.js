/** Runs and studies: curves of a training as it goes, the table of a study. */

import { figure, lineChart } from "../parts/chart.js";
import { grouped } from "../parts/colours.js";
import { el, replace, roving } from "../parts/dom.js";
import { markdown } from "../parts/markdown.js";

const EVERY = 3000; // milliseconds between questions
const ALIVE = 300; // seconds without a new line after which a run that has not ended counts as stopped
const MOST = 6; // runs in a chart
const FIRST = ["loss", "accuracy", "perplexity"];

function state(run) {
  if (run.ended) return "ended";
  return Date.now() / 1000 - run.changed < ALIVE ? "running" : "stopped";
}

const progress = (run) =>
  run.kind === "study"
    ? `${run.step} of ${run.steps} steps`
    : `step ${grouped(run.step)}${run.steps ? ` of ${grouped(run.steps)}` : ""}`;

/** The metrics of the chosen runs: a chart for each, those of most interest first. */
function charts(answers) {
  const names = new Set(answers.flatMap((answer) => answer.curves.map((curve) => curve.name)));
  const order = [...names].sort((a, b) => (FIRST.indexOf(b) + 1 ? 1 : 0) - (FIRST.indexOf(a) + 1 ? 1 : 0));
  const lines = (name) =>
    answers.flatMap((answer, hue) =>
      answer.curves
        .filter((curve) => curve.name === name)
        .map((curve) => ({
          ...curve,
          hue: answers.length > 1 ? hue : curve.kind === "training" ? 0 : 1,
          thin: answers.length > 1 && curve.kind === "training" && FIRST.includes(name),
          name: [answers.length > 1 ? answer.run.name.split("/").slice(-2).join("/") : null, curve.kind]
            .filter(Boolean)
            .join(", "),
        })),
    );
  return order.map((name) => lineChart(name.replaceAll("_", " "), lines(name)));
}

const facts = ({ run, facts: known, events }) =>
  el(
    "div",
    { class: "panel stack" },
    el("p", {}, el("b", {}, run.name), ` · ${state(run)} · ${progress(run)}`),
    known.command ? el("code", { class: "command" }, String(known.command)) : null,
    el(
      "p",
      { class: "small" },
      [known.device, known.torch ? `torch ${known.torch}` : null].filter(Boolean).join(" · "),
    ),
    events.length
      ? el(
          "details",
          {},
          el("summary", {}, `${events.length} ${events.length === 1 ? "event" : "events"}`),
          el(
            "ul",
            { class: "remarks" },
            events.map((event) => el("li", {}, `step ${grouped(event.step)}: ${event.text}`)),
          ),
        )
      : null,
  );

/** How far each cell of a study is: a row for each cell, a column for each step. */
function studyProgress(steps) {
  const cells = [...new Set(steps.map((step) => step.cell))];
  const names = [...new Set(steps.map((step) => step.step))];
  const count = (cell, name) => {
    const mine = steps.filter((step) => step.cell === cell && step.step === name);
    const done = mine.filter((step) => step.done).length;
    const text = mine.length ? `${done}/${mine.length}` : "–";
    return el("td", { class: "number", "--share": mine.length ? (done / mine.length).toFixed(2) : 0 }, text);
  };
  return el(
    "details",
    { open: steps.some((step) => !step.done) },
    el("summary", {}, `${steps.filter((step) => step.done).length} of ${steps.length} steps done, by cell and seed`),
    el(
      "div",
      { class: "table-scroll" },
      el(
        "table",
        { class: "figures" },
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", {}, "cell"),
            names.map((name) => el("th", { class: "number" }, name)),
          ),
        ),
        el(
          "tbody",
          {},
          cells.map((cell) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, cell),
              names.map((name) => count(cell, name)),
            ),
          ),
        ),
      ),
    ),
  );
}

const study = (answer) =>
  el(
    "div",
    { class: "panel stack study" },
    answer.table
      ? markdown(answer.table)
      : el("p", { class: "hint" }, "The table is written when the study has ended or was interrupted."),
    studyProgress(answer.steps),
  );

export default {
  id: "runs",
  name: "Runs",
  title: "Runs and studies",
  about: "Curves of a training while it goes on, and the tables of studies.",
  does: null,
  defaults: { names: "" },

  build(page) {
    const list = el("div", { class: "run-list panel", role: "group", "aria-label": "Runs and studies" });
    const shown = el("div", { class: "stack", "aria-live": "off" });
    const [askList, channels] = [page.channel(), new Map()];
    const chosen = new Set(page.state.names.split("\n").filter(Boolean));
    let runs = [];
    let seen = "";
    let drawn = false;

    const choose = (run) => {
      const has = chosen.has(run.name);
      const study = run.kind === "study" || runs.some((other) => chosen.has(other.name) && other.kind === "study");
      if (study) chosen.clear();
      if (has) chosen.delete(run.name);
      else if (chosen.size < MOST) chosen.add(run.name);
      page.save({ names: [...chosen].join("\n") });
      seen = "";
      replace(shown);
      drawList();
      read();
    };
    const item = (run, stop) =>
      el(
        "button",
        {
          type: "button",
          "aria-pressed": String(chosen.has(run.name)),
          tabindex: run === stop ? 0 : -1,
          onclick: () => choose(run),
        },
        el("span", { class: "run-name" }, run.name),
        el(
          "span",
          { class: "small" },
          el("i", { class: `state ${state(run)}` }),
          [
            run.kind === "study" ? "study" : state(run),
            progress(run),
            run.loss === null ? null : `loss ${figure(run.loss)}`,
          ]
            .filter(Boolean)
            .join(" · "),
        ),
      );
    const drawList = () => {
      const at = [...list.children].indexOf(document.activeElement);
      const { scrollTop } = list;
      const stop = runs[at] ?? runs.find((run) => chosen.has(run.name)) ?? runs[0];
      replace(
        list,
        runs.map((run) => item(run, stop)),
      );
      list.children[at]?.focus();
      if (drawn) list.scrollTop = scrollTop;
      else list.scrollTop = list.querySelector("[aria-pressed=true]").offsetTop - 60;
      drawn = true;
    };

    roving(list, () => [...list.children]);

    /** Draw anew; the chart that has the focus and what was opened stay so. */
    const redraw = (...parts) => {
      const at = [...shown.querySelectorAll(".chart")].indexOf(document.activeElement);
      const open = shown.querySelector("details")?.open;
      replace(shown, ...parts);
      shown.querySelectorAll(".chart")[at]?.focus();
      if (open !== undefined && shown.querySelector("details")) shown.querySelector("details").open = open;
    };

    const read = async () => {
      const mine = runs.filter((run) => chosen.has(run.name));
      const asked = mine.map((run) => `${run.kind} ${run.name} ${run.changed} ${run.step} ${state(run)}`).join("\n");
      if (asked === seen || !mine.length) return;
      const answers = await Promise.all(
        mine.map((run) => {
          if (!channels.has(run.name)) channels.set(run.name, page.channel());
          return channels.get(run.name)(`${run.kind}?name=${encodeURIComponent(run.name)}`);
        }),
      );
      if (answers.some((answer) => !answer)) return;
      seen = asked;
      if (mine[0].kind === "study") redraw(study(answers[0]));
      else
        redraw(
          answers.length === 1 ? facts(answers[0]) : null,
          el("div", { class: "charts" }, charts(answers)),
          answers.every((answer) => !answer.curves.length)
            ? el("p", { class: "hint" }, "No step is logged yet.")
            : null,
        );
    };

    const poll = async () => {
      if (!document.hidden) {
        const answer = await askList("runs", undefined, { shown: !chosen.size });
        if (answer) {
          runs = answer.runs;
          if (!runs.length) return replace(place, none());
          const newest = runs.reduce((one, other) => (other.changed > one.changed ? other : one));
          const first = runs.find((run) => state(run) === "running") ?? newest;
          if (!runs.some((run) => chosen.has(run.name))) {
            chosen.clear();
            chosen.add(first.name);
          }
          drawList();
          await read();
        }
      }
      if (!page.signal.aborted) timer = setTimeout(poll, EVERY);
      return undefined;
    };
    let timer = 0;
    page.signal.addEventListener("abort", () => clearTimeout(timer));
    const none = () =>
      el(
        "div",
        { class: "panel notice" },
        el("strong", {}, "No folder of runs is served."),
        el("p", { class: "soft" }, "Give the folder that your runs and studies are in; models can be given beside it."),
        el("code", {}, "bertree serve runs default"),
      );
    const place = el("div", { class: "runs" }, list, el("div", { class: "stack" }, page.problem, shown));
    poll();
    return place;
  },
};
