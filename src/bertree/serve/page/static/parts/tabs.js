/** Tabs with the keyboard: one tab stop, arrow keys, Home and End. */

import { el, roving } from "./dom.js";

/** Fill `list` (role tablist) with tabs {id, name}; `choose(id)` is called when another one is chosen. */
export function tabs(list, entries, panel, choose) {
  const buttons = entries.map(({ id, name, hint }) =>
    el(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${id}`,
        "aria-controls": panel.id,
        "aria-selected": "false",
        tabindex: -1,
        title: hint,
        onclick: () => choose(id),
      },
      name,
    ),
  );
  list.append(...buttons);
  roving(list, () => buttons, { onmove: (button) => button.click() });
  return (id) => {
    for (const button of buttons) {
      const chosen = button.id === `tab-${id}`;
      button.setAttribute("aria-selected", String(chosen));
      button.tabIndex = chosen ? 0 : -1;
      if (chosen && list.scrollWidth > list.clientWidth) {
        list.scrollTo({ left: button.offsetLeft - (list.clientWidth - button.offsetWidth) / 2 });
      }
    }
    panel.setAttribute("aria-labelledby", `tab-${id}`);
  };
}
