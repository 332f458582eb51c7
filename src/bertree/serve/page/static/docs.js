/** The page of all routes, from the OpenAPI document: fields, and a call that can be tried. */

import { callBox } from "./parts/calls.js";
import { area, line } from "./parts/controls.js";
import { el, replace } from "./parts/dom.js";
import { askForKey } from "./parts/key.js";
import { json, send, ServerError } from "./parts/server.js";

const MOST = 20_000; // characters of an answer that are shown
/** Fields with an example of their own; others follow from their type. */
const EXAMPLES = {
  text: "The capital of France is [MASK].",
  query: "music",
  question: "Which country has most of the forest?",
  passage: "Most of the forest lies in Brazil.",
  prompt: "Once upon a time",
  preset: "bert-base",
  texts: ["Somebody plays a guitar.", "Shares fell."],
  documents: ["Somebody plays a guitar.", "Shares fell."],
  ids: [101, 102],
};

function schemaOf(schema, components) {
  return schema?.$ref ? components[schema.$ref.split("/").at(-1)] : (schema ?? {});
}

/** A schema in words. */
function kind(schema) {
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  if (schema.$ref) return schema.$ref.split("/").at(-1);
  if (schema.enum) return schema.enum.map(String).join(" or ");
  if (schema.type === "array") return `list of ${kind(schema.items ?? {})}`;
  return [schema.type ?? "anything"].flat().join(" or ");
}

/** A value that a field may have. */
function example(name, schema, components) {
  if (name in EXAMPLES) return EXAMPLES[name];
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  const found = schemaOf(schema.anyOf ? schema.anyOf.find((one) => one.type !== "null") : schema, components);
  if (found.enum) return found.enum[0];
  if (found.properties) return body(found, components);
  if (found.type === "array") return [example("", found.items ?? {}, components)];
  if (found.type === "integer" || found.type === "number") return found.minimum ?? 1;
  if (found.type === "boolean") return false;
  return "A man is playing a guitar.";
}

/** The required fields of a body with examples. */
const body = (schema, components) =>
  Object.fromEntries((schema.required ?? []).map((name) => [name, example(name, schema.properties[name], components)]));

function fieldTable(rows) {
  if (!rows.length) return el("p", { class: "hint" }, "No input.");
  const row = ([name, type, remark]) =>
    el("tr", {}, el("th", { scope: "row" }, el("code", {}, name)), el("td", {}, type), el("td", {}, remark));
  return el("div", { class: "table-scroll" }, el("table", { class: "figures" }, el("tbody", {}, rows.map(row))));
}

/** Send a call and show the answer with its status and time. */
async function attempt(path, value, answer, calls) {
  calls.set(path, value);
  const began = performance.now();
  const time = () => `${(performance.now() - began).toFixed(0)} ms`;
  const say = (state, text) =>
    replace(
      answer,
      el("p", { class: "small" }, state),
      text ? el("pre", { class: "answer", tabindex: 0 }, text.slice(0, MOST)) : null,
    );
  say("Waiting for the answer…", "");
  try {
    const response = await send(path, value);
    const text = await response.text();
    let shown = text;
    try {
      shown = JSON.stringify(JSON.parse(text), null, 1);
    } catch {
      // not JSON: shown as it is
    }
    say(`${response.status} in ${time()}`, shown);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    if (error.status === 401 && (await askForKey("This server wants an API key."))) {
      await attempt(path, value, answer, calls);
      return;
    }
    say(error.status ? `${error.status} in ${time()}` : "No answer", error.message);
  }
}

function tryIt(method, path, operation, schema, components) {
  const calls = callBox();
  const answer = el("div", { class: "stack", "aria-live": "polite" });
  const problem = el("p", { class: "problem", role: "alert" });
  const parameters = (operation.parameters ?? []).map((parameter) => ({
    ...parameter,
    ...line(`${parameter.name}${parameter.required ? "" : " (may be empty)"}`, "", () => {}),
  }));
  const input = schema ? area("Body", JSON.stringify(body(schema, components), null, 1), () => {}, { rows: 3 }) : null;
  const run = () => {
    problem.textContent = "";
    let address = path.slice(1);
    const query = new URLSearchParams();
    for (const parameter of parameters) {
      const text = parameter.input.value.trim();
      if (parameter.in === "path") address = address.replace(`{${parameter.name}}`, encodeURIComponent(text));
      else if (text) query.set(parameter.name, text);
    }
    if (query.size) address += `?${query}`;
    let value;
    try {
      value = input ? JSON.parse(input.input.value) : undefined;
    } catch (error) {
      problem.textContent = `The body is not JSON: ${error.message}`;
      return;
    }
    attempt(address, value, answer, calls);
  };
  return el(
    "div",
    { class: "stack" },
    parameters.map((parameter) => parameter.node),
    input?.node ?? null,
    problem,
    el("div", { class: "row" }, el("button", { type: "button", class: "primary", onclick: run }, "Send")),
    answer,
    calls.node,
  );
}

function route(method, path, operation, components) {
  const schema = schemaOf(operation.requestBody?.content["application/json"].schema, components);
  const fields = Object.entries(schema.properties ?? {}).map(([name, field]) => [
    name,
    kind(field),
    schema.required?.includes(name) ? "required" : "",
  ]);
  const rest = (operation.parameters ?? []).map((one) => [one.name, kind(one.schema), `in the ${one.in}`]);
  const inside = el("div", { class: "stack" });
  return el(
    "details",
    {
      class: "panel route",
      ontoggle: () => {
        if (inside.childElementCount) return;
        const hasBody = operation.requestBody !== undefined;
        inside.append(
          fieldTable([...fields, ...rest]),
          tryIt(method, path, operation, hasBody ? schema : null, components),
        );
      },
    },
    el("summary", {}, el("code", {}, `${method.toUpperCase()} ${path}`), ` ${operation.summary}`),
    inside,
  );
}

async function start() {
  const place = document.getElementById("routes");
  try {
    const { paths, components } = await json(await send("openapi.json"));
    const rows = Object.entries(paths).flatMap(([path, methods]) =>
      Object.entries(methods).map(([method, operation]) => route(method, path, operation, components.schemas)),
    );
    replace(place, rows);
  } catch (error) {
    if (!(error instanceof ServerError)) throw error;
    replace(place, el("p", { class: "problem", role: "alert" }, error.message));
  }
}

document.documentElement.style.colorScheme = localStorage.getItem("bertree-scheme") ?? "light dark";
start();
