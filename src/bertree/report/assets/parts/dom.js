/** Building elements. Text only ever becomes text nodes: nothing here parses HTML. */

const SVG = "http://www.w3.org/2000/svg";

function apply(node, properties) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) node.style.setProperty(name, value);
    else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  return node;
}

function fill(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

/** el("p", {class: "small", onclick: f, "--share": 0.5}, "text", node, [nodes]) */
export const el = (tag, properties = {}, ...children) => fill(apply(document.createElement(tag), properties), children);

export const svg = (tag, properties = {}, ...children) =>
  fill(apply(document.createElementNS(SVG, tag), properties), children);

export function replace(node, ...children) {
  node.replaceChildren();
  return fill(node, children);
}

/** Words for a mouse and a keyboard, or for fingers. */
export const byHand = (mouse, fingers) => (matchMedia("(hover: none)").matches ? fingers : mouse);

let count = 0;
export const uniqueId = (name) => `${name}-${++count}`;

/** A function that runs `action` once its calls have paused for `wait` milliseconds. */
export function debounce(action, wait = 180) {
  let timer = 0;
  const later = (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), wait);
  };
  later.cancel = () => clearTimeout(timer);
  return later;
}

/** Arrow keys move the focus among `items()`; only one of them is a tab stop. `columns()`: items in a row of a grid. */
export function roving(container, items, { columns = () => 1, onmove = () => {} } = {}) {
  const steps = () => ({ ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns(), ArrowUp: -columns() });
  const stop = (chosen) => items().forEach((item) => (item.tabIndex = item === chosen ? 0 : -1));
  container.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(event.target.closest("[tabindex]"));
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    let next = at + (steps()[event.key] ?? 0);
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = all.length - 1;
    if (next === at || !all[next]) return;
    event.preventDefault();
    all[next].focus();
    onmove(all[next], next);
  });
  container.addEventListener("focusin", (event) => {
    const item = event.target.closest("[tabindex]");
    if (items().includes(item)) stop(item);
  });
  return stop;
}
