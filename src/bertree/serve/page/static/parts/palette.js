/** Colours of the points of a map: by cluster, or by a value of their metadata. */

import { HUES } from "./colours.js";

const MOST_VALUES = 12;

/** Ways to colour: the cluster, metadata with few values, metadata that are numbers. */
export function colourings(points) {
  const found = [{ value: "cluster", name: "cluster", of: (point) => point.cluster }];
  const names = new Set(points.flatMap((point) => Object.keys(point.metadata ?? {})));
  for (const name of names) {
    const values = points
      .map((point) => point.metadata?.[name])
      .filter((value) => value !== undefined && value !== null && typeof value !== "object");
    const distinct = new Set(values);
    const numeric = values.length > 0 && values.every((value) => typeof value === "number");
    if (distinct.size < 2 || (!numeric && distinct.size > 200)) continue;
    found.push({
      value: `metadata ${name}`,
      name,
      of: (point) => point.metadata?.[name],
      numeric: numeric && distinct.size > MOST_VALUES,
    });
  }
  return found;
}

/** Of numbers: share(point) from 0 to 1. Of other values: the CSS variable of a point, and the rows of the legend. */
export function palette(points, colouring) {
  const grey = "--edge-strong";
  if (colouring.numeric) {
    const values = points.map(colouring.of).filter((value) => typeof value === "number");
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const share = (point) =>
      typeof colouring.of(point) === "number" ? (colouring.of(point) - low) / (high - low || 1) : null;
    return { share, rows: [], low, high };
  }
  const counts = new Map();
  for (const point of points) counts.set(colouring.of(point), (counts.get(colouring.of(point)) ?? 0) + 1);
  const order = [...counts].filter(([value]) => value !== undefined && value !== null).sort((a, b) => b[1] - a[1]);
  const hues = new Map(order.slice(0, MOST_VALUES).map(([value], index) => [value, index]));
  const variable = (value) => (hues.has(value) ? `--hue-${hues.get(value) % HUES}` : grey);
  const rows = order.slice(0, MOST_VALUES).map(([value, count], index) => ({
    value,
    count,
    variable: variable(value),
    hollow: index >= HUES,
  }));
  const rest = order.slice(MOST_VALUES);
  return {
    rows,
    others: rest.length,
    rest: rest.reduce((sum, [, count]) => sum + count, 0),
    variable: (point) => variable(colouring.of(point)),
    hollow: (point) => (hues.get(colouring.of(point)) ?? 0) >= HUES,
  };
}
