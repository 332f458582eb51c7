/** Places in a text. The server counts characters (code points), JavaScript counts UTF-16 units. */

import { el } from "./dom.js";

/** places[i]: the UTF-16 index of code point i; one entry more, for the end. */
function unitPlaces(text) {
  const places = [];
  let at = 0;
  for (const character of text) {
    places.push(at);
    at += character.length;
  }
  places.push(at);
  return places;
}

/** Text and, for each span {start, end} in code points, what `mark(piece, span)` returns. Overlaps are left out. */
export function marked(text, spans, mark = (piece) => el("mark", {}, piece)) {
  const places = unitPlaces(text);
  const unit = (offset) => places[Math.max(0, Math.min(offset, places.length - 1))];
  const pieces = [];
  let done = 0;
  for (const span of [...spans].sort((a, b) => a.start - b.start || b.end - a.end)) {
    const [start, end] = [unit(span.start), unit(span.end)];
    if (start < done || end <= start) continue;
    pieces.push(text.slice(done, start), mark(text.slice(start, end), span));
    done = end;
  }
  pieces.push(text.slice(done));
  return pieces.filter((piece) => piece !== "");
}
