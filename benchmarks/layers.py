"""The transitions from layer to layer of a BERT and of an ALBERT that differ in nothing but shared layers.

    bertree tokenizer train corpus/books.txt --vocab-size 4000 --out tok
    bertree prepare corpus/books.txt --tokenizer tok --out store
    bertree pretrain bert-base-tiny --store store --out bert $SETTINGS
    bertree pretrain bert-base-tiny --store store --out albert $SETTINGS model.sharing=all
    python -m benchmarks.layers bert albert --out rows.jsonl

with SETTINGS="model.layers=6 model.width=64 model.embedding_width=64 model.ffn_width=256 model.residual=post-norm
model.embedding_norm=true model.init_std=0.05 phases.0.steps=450 phases.0.batch_tokens=512 schedule.warmup=90
optim.lr=2e-3": both papers have post-norm. The texts are every 20th long line of corpus/books.txt.

A transition is smooth if it resembles those before and after it: `cosine_change` and `distance_change` are the mean
absolute changes from one layer to the next, of the cosine and of the distance as a share of its mean.
"""

import json
from pathlib import Path

import numpy as np

import bertree
from benchmarks.common import CORPUS, Results, argument_parser
from bertree.report.history import Floats

EVERY, SHORTEST = 20, 60  # lines, characters


def mean_change(values: Floats) -> float:
    """Return the mean absolute change from one layer to the next."""
    return float(np.abs(np.diff(values)).mean())


def main() -> None:
    """Measure models and record a row for each."""
    parser = argument_parser(__doc__)
    parser.add_argument("models", nargs="+", help="folders of runs")
    options = parser.parse_args()
    results = Results("layers", options.out, note="one seed of each; the texts are cut to the 32 tokens of training")
    texts = [line for line in CORPUS.read_text(encoding="utf-8").splitlines() if len(line) >= SHORTEST][::EVERY]
    for name in options.models:
        layers = bertree.load(name).layers(texts)
        lines = map(json.loads, (Path(name) / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        losses = [line["mlm"] for line in lines if line["kind"] == "eval"]
        figures = {f"cosine_{layer}": round(float(value), 4) for layer, value in enumerate(layers.cosine, 1)}
        figures |= {f"distance_{layer}": round(float(value), 3) for layer, value in enumerate(layers.distance, 1)}
        relative = layers.distance / layers.distance.mean()
        results.add(
            Path(name).name,
            mlm_loss=losses[-1],
            cosine_change=round(mean_change(layers.cosine), 4),
            distance_change=round(mean_change(relative), 4),
            cka_neighbours=round(float(np.diagonal(layers.cka, 1).mean()), 4),
            texts=layers.texts,
            tokens=layers.tokens,
            **figures,
        )


if __name__ == "__main__":
    main()
