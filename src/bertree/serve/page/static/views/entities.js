/** Entities marked in the text. */

import { HUES, percent } from "../parts/colours.js";
import { area, examples } from "../parts/controls.js";
import { debounce, el, replace } from "../parts/dom.js";
import { marked } from "../parts/marks.js";

const EXAMPLES = [
  "Marie Curie was born in Warsaw and worked at the University of Paris.",
  "Angela Merkel met Tim Cook of Apple in Berlin.",
  "The river Thames flows through London to the North Sea.",
];

export default {
  id: "entities",
  name: "Entities",
  title: "Entities in a text",
  about: "Names of people, places, organizations, or whatever the model was taught to tag.",
  does: "entities",
  defaults: { text: EXAMPLES[0] },

  build(page) {
    const ask = page.channel();
    const text = el("div", { class: "reading entities" });
    const legend = el("ul", { class: "legend", "aria-live": "polite" });

    const show = (source, answer) => {
      const labels = [...new Set(answer.entities.map((entity) => entity.label))].sort();
      const hue = (label) => `var(--hue-${labels.indexOf(label) % HUES})`;
      replace(
        text,
        marked(source, answer.entities, (piece, entity) =>
          el(
            "mark",
            {
              "--hue": hue(entity.label),
              title: entity.score === null ? entity.label : `${entity.label}, ${percent(entity.score)}`,
            },
            piece,
            el("span", { class: "label" }, entity.label, entity.score === null ? "" : ` ${percent(entity.score)}`),
          ),
        ),
      );
      const count = (label) => answer.entities.filter((entity) => entity.label === label).length;
      const rows = labels.map((label) =>
        el("li", { "--hue": hue(label) }, `${label} `, el("b", {}, String(count(label)))),
      );
      replace(legend, rows.length ? rows : el("li", { class: "none" }, "No entity found."));
      if (answer.cut)
        legend.append(el("li", { class: "none" }, "A word is longer than the model reads; its end was left out."));
    };

    const query = async () => {
      const source = input.input.value;
      if (!source.trim()) {
        ask.drop();
        replace(text);
        return replace(legend, el("li", { class: "none" }, "Write or paste a text."));
      }
      const answer = await ask("entities", { text: source, model: page.model });
      if (answer === undefined) return undefined;
      if (answer) return show(source, answer);
      replace(legend);
      return replace(text);
    };
    const soon = debounce(query);
    const changed = (value) => {
      page.save({ text: value });
      soon();
    };
    const input = area("Text", page.state.text, changed, { rows: 3 });
    query();
    const use = (example) => {
      input.set(example);
      changed(example);
    };
    return [
      el("div", { class: "panel stack" }, input.node, examples(EXAMPLES, use), page.problem),
      el("div", { class: "panel stack" }, text, legend),
    ];
  },
};
