/** What the server has: its models and indexes, and what to start where something is missing. */

const MISSING = {
  embed: ["make sentence vectors", "bertree serve default", "The bundled model does, and every encoder."],
  fill: ["fill masks", "bertree serve default", "The bundled model does, and every model pretrained on masked tokens."],
  entities: [
    "mark entities",
    "bertree finetune default --task ner --data conll2003 --out my-ner && bertree serve my-ner",
    "A model fine-tuned on a tagging task does.",
  ],
  answer: [
    "answer questions",
    "bertree finetune default --task squad2 --data squad --out my-qa && bertree serve my-qa",
    "A model fine-tuned on questions and passages does.",
  ],
  predict: [
    "classify texts",
    "bertree finetune default --task sst-2 --data SST-2 --out my-classifier && bertree serve my-classifier",
    "A model fine-tuned on a task with classes or scores does.",
  ],
  generate: [
    "continue a text",
    "bertree serve MODEL",
    "A left-to-right model does: GPT, Transformer-XL, XLNet, CTRL or Reformer.",
  ],
  layers: ["show their layers", "bertree serve default", "The bundled model does, and every transformer."],
  index: [
    "be searched",
    "bertree index build default my-documents --out my-index && bertree serve my-index",
    "An index of your documents is needed.",
  ],
};

export class Served {
  constructor(entries) {
    this.entries = entries;
  }

  models(does) {
    return this.entries.filter((entry) => entry.kind !== "index" && (entry.does ?? []).includes(does));
  }

  get indexes() {
    return this.entries.filter((entry) => entry.kind === "index");
  }

  /** The entries that a view can use. */
  able(does) {
    return does === "index" ? this.indexes : this.models(does);
  }
}

/** {what, command, about} where nothing that is served can do it. */
export function missing(does) {
  const [verb, command, about] = MISSING[does];
  const what = does === "index" ? "No index is served." : `No served model can ${verb}.`;
  return { what, command, about };
}
