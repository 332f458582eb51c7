/** The URL's hash holds the view and its state: #fill?text=... A link is enough to come back. */

const MOST = 8000; // characters of a value that goes into the URL

export function read() {
  const [view, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  return { view, values: Object.fromEntries(new URLSearchParams(query)) };
}

export function link(view, values, defaults = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    const text = String(value ?? "");
    if (text !== String(defaults[name] ?? "") && text.length <= MOST) query.set(name, text);
  }
  return `#${view}${query.size ? `?${query}` : ""}`;
}

/** Write the state without a new entry in the browser's history. */
export const write = (view, values, defaults) => history.replaceState(null, "", link(view, values, defaults));
