"""Features for NER: a small ELMo beside a BERT of the same size, pretrained on the same number of tokens.

    python -m benchmarks.elmo_ner corpus/books.txt CONLL2003 WORK --seeds 3 --out rows.jsonl
    python -m benchmarks.elmo_ner corpus/books.txt CONLL2003 WORK --seeds 1 --steps 200 --sentences 500 --device cpu

CONLL2003 is a folder with train.txt, valid.txt and test.txt. Both encoders stay frozen; a weighted sum of all layers
and a BiLSTM on it learn the tags (`--frozen sum-all lstm=...`), as in BERT's comparison with features. WORK keeps every
run: one that is complete is not repeated. `--jobs` of them are computed at a time.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

from benchmarks.common import Results, argument_parser
from bertree.data.prepare import prepare, train_tokenizer
from bertree.files.formats import Json, read_json
from bertree.finetuning.finetune import finetune
from bertree.model import cost
from bertree.model.presets import preset
from bertree.pretraining.pretrain import pretrain

VOCABULARY = 8000
BERT = {"width": 64, "ffn_width": 256}
# Recipe, kind of tokenizer, and axes that give both models the same number of parameters.
MODELS = {
    "elmo": ("elmo-tiny", "words", "elmo-tiny", {}),
    "bert": ("bert-base-tiny", "wordpiece", "bert-tiny", BERT | {"heads": 4}),
}
TITLES = {"elmo": "ELMo", "bert": "BERT"}


def make_store(name: str, options: Json) -> Path:
    """Train the tokenizer of a model and prepare its store."""
    folder = options["work"] / name
    if not (folder / "store" / "store.json").is_file():
        kind = MODELS[name][1]
        train_tokenizer(options["corpus"], folder / "tokenizer", kind=kind, vocab_size=VOCABULARY, cased=True)
        prepare(options["corpus"], folder / "tokenizer", folder / "store", workers=1)
    return folder / "store"


def encoder(name: str, seed: int, options: Json) -> Path:
    """Pretrain a model; return its folder."""
    recipe, _, _, axes = MODELS[name]
    store, out = make_store(name, options), options["work"] / f"{name}-{seed}"
    if not (out / "model" / "bertree.toml").is_file():
        changes = [f"model.{axis}={value}" for axis, value in axes.items()]
        plain = ["data.format=full-sentences", "objective.nsp=0"] if name == "bert" else []
        run = [f"run.device={options['device']}", f"run.seed={seed}", f"phases.0.steps={options['steps']}"]
        length = ["phases.0.max_length=64", "phases.0.batch_tokens=2048"]
        pretrain(recipe, store=store, out=out, resume=out.exists(), overrides=[*changes, *plain, *run, *length])
    return out / "model"


def tag(name: str, seed: int, options: Json) -> Json:
    """Learn NER on a frozen encoder; return its scores."""
    model = encoder(name, seed, options)
    out = options["work"] / f"ner-{name}-{seed}"
    if not (out / "metrics.json").is_file():
        settings = [f"device={options['device']}", f"seed={seed}", f"epochs={options['epochs']}", "lstm=128"]
        finetune(
            model, task="ner", data=options["data"], out=out, frozen="sum-all", resume=out.exists(), overrides=settings
        )
    return read_json(out / "metrics.json")


def first_sentences(data: Path, count: int, work: Path) -> Path:
    """Return a folder with the first sentences of each split; all: the folder itself."""
    if not count:
        return data
    folder = work / f"first-{count}"
    folder.mkdir(parents=True, exist_ok=True)
    for path in data.glob("*.txt"):
        (folder / path.name).write_text("\n\n".join(path.read_text().split("\n\n")[: count + 1]) + "\n")
    return folder


def main() -> None:
    parser = argument_parser(__doc__)
    for name in ("corpus", "data", "work"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5000, help="of pretraining, 2,048 tokens each")
    parser.add_argument("--epochs", type=int, default=10, help="of NER")
    parser.add_argument("--sentences", type=int, default=0, help="of each split of NER; 0: all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = vars(parser.parse_args())
    options["data"] = first_sentences(options["data"], options["sentences"], options["work"])
    results = Results("elmo-ner", options["out"])
    for name in MODELS:
        make_store(name, options)
    cells = list(product(range(options["seeds"]), MODELS))
    with ProcessPoolExecutor(options["jobs"], mp_context=multiprocessing.get_context("spawn")) as pool:
        scores = pool.map(tag, *zip(*((name, seed, options) for seed, name in cells), strict=True))
        for (seed, name), score in zip(cells, scores, strict=True):
            _, _, start, axes = MODELS[name]
            a = preset(start).architecture.with_values({"vocab_size": VOCABULARY} | axes)
            figures = {
                "parameters": cost.parameters(a).total,
                "pretraining_tokens": 2048 * options["steps"],
                "seed": seed,
            }
            results.add(f"{name} {seed}", model=TITLES[name], **figures, dev_f1_percent=round(100 * score["f1"], 2))
    results.print_table()


if __name__ == "__main__":
    main()
