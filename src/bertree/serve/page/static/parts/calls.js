/** The same request as a command line and as a Python program. */

import { el, uniqueId } from "./dom.js";
import { tabs } from "./tabs.js";
import { address, key } from "./server.js";

const shell = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

/** A JSON value as Python writes it. */
function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value)
      .map(([name, inner]) => `${JSON.stringify(name)}: ${python(inner)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(value); // JSON's numbers, quotes and escapes are Python's too
}

function curlCall(path, body, stream) {
  const parts = [`curl ${stream ? "-N " : ""}${shell(address(path))}`];
  if (key.get()) parts.push(`-H "Authorization: Bearer $BERTREE_API_KEY"`);
  if (body !== undefined) parts.push("-H 'Content-Type: application/json'", `-d ${shell(JSON.stringify(body))}`);
  return parts.join(" \\\n  ");
}

function pythonCall(path, body, stream) {
  const headers = [];
  if (body !== undefined) headers.push(`"Content-Type": "application/json"`);
  if (key.get()) headers.push(`"Authorization": "Bearer " + os.environ["BERTREE_API_KEY"]`);
  const options = [JSON.stringify(address(path))];
  if (body !== undefined) options.push("json.dumps(body).encode()");
  if (headers.length) options.push(`${body === undefined ? "headers=" : ""}{${headers.join(", ")}}`);
  return [
    `import json${key.get() ? ", os" : ""}`,
    "from urllib.request import Request, urlopen",
    "",
    ...(body === undefined ? [] : [`body = ${python(body)}`]),
    `request = Request(${options.join(", ")})`,
    "with urlopen(request) as response:",
    ...(stream
      ? [
          "    for line in response:",
          `        if line.startswith(b"data:"):`,
          "            print(json.loads(line[5:]))",
        ]
      : ["    print(json.load(response))"]),
  ].join("\n");
}

/** Copy a text, and say so on the button for a moment. */
export async function copy(text, button) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy";
  }
  setTimeout(() => (button.textContent = name), 1500);
}

/** {node, set(path, body, stream), clear()} */
export function callBox() {
  const panel = el("pre", { id: uniqueId("call"), role: "tabpanel", tabindex: 0 });
  const list = el("div", { class: "tabs", role: "tablist", "aria-label": "The call as" });
  let request = null;
  let language = sessionStorage.getItem("bertree-call") ?? "curl";
  const show = () => {
    if (!request) return;
    panel.textContent = language === "curl" ? curlCall(...request) : pythonCall(...request);
  };
  const select = tabs(
    list,
    [
      { id: "curl", name: "curl" },
      { id: "python", name: "Python" },
    ],
    panel,
    (id) => {
      language = id;
      sessionStorage.setItem("bertree-call", id);
      select(id);
      show();
    },
  );
  select(language);
  const button = el(
    "button",
    { type: "button", class: "quiet", onclick: () => copy(panel.textContent, button) },
    "Copy",
  );
  const node = el(
    "section",
    { class: "call", "aria-label": "The call behind this view", hidden: true },
    el("div", { class: "call-head" }, el("h2", {}, "The call"), list, button),
    panel,
  );
  const set = (...values) => {
    request = values;
    node.hidden = false;
    show();
  };
  const clear = () => {
    node.hidden = true;
  };
  return { node, set, clear };
}
