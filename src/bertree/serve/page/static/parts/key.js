/** The dialog for the API key. The key stays in this tab (sessionStorage). */

import { el } from "./dom.js";
import { key } from "./server.js";

/** Ask for the key; resolve to whether one was given. */
export function askForKey(message) {
  return new Promise((resolve) => {
    const input = el("input", { id: "api-key", type: "password", autocomplete: "off", required: true });
    const dialog = el(
      "dialog",
      { class: "key", "aria-labelledby": "key-title" },
      el(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            key.set(input.value.trim());
            dialog.close("given");
          },
        },
        el("h2", { id: "key-title" }, "API key"),
        el("p", { class: "soft", role: "status" }, message),
        el("div", { class: "field" }, el("label", { for: "api-key" }, "Key"), input),
        el("p", { class: "small" }, "Kept in this browser tab until it is closed."),
        el("button", { type: "submit", class: "primary" }, "Use this key"),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "given");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}
