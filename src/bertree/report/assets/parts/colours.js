/** Colours of the style sheet as the canvas needs them, and numbers as people read them. */

export const HUES = 8; // --hue-0 ... --hue-7 in base.css

/** [red, green, blue] of a CSS variable under the present colour scheme. */
export function rgb(name) {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe)
    .color.match(/[\d.]+/g)
    .slice(0, 3)
    .map(Number);
  probe.remove();
  return found;
}

/** Call `action` when light turns dark or back. */
export function onScheme(action, signal) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", action, { signal });
  document.addEventListener("scheme", action, { signal });
}

export const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

/** 109482240 -> "109 M"; with a unit 1.5e9 -> "1.50 GB", without one "1.50 B", for billions */
export function short(number, unit = "") {
  const steps = [
    [1e12, "T"],
    [1e9, unit ? "G" : "B"],
    [1e6, "M"],
    [1e3, "k"],
  ];
  const [size, letter] = steps.find(([step]) => Math.abs(number) >= step) ?? [1, ""];
  const value = number / size;
  const digits = size === 1 && Number.isInteger(number) ? 0 : value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${letter}${unit}`.trim();
}

export const grouped = (number) => Math.round(number).toLocaleString("en");
