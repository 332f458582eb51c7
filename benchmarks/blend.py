"""Between a masked language model and the sentence encoder trained from it: weights in the middle do both.

    python -m benchmarks.blend MASKED SENTENCES --held STORE --sts STS-B/dev.tsv --share 0.5 --out default

For each share of the sentence encoder's weights: held-out perplexity at masked tokens, and Spearman's correlation of
cosines with the scores of STS-B. The encoder at --share is written as int8 with the masked model's head.
"""

import argparse
import math
from pathlib import Path

import torch

from benchmarks.common import table
from bertree.batch import Batch, PretrainingLabels
from bertree.data.split import split_held_out
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.inference.load import Model, load
from bertree.model.pooling import PoolingConfig
from bertree.objectives.objective import cross_entropy
from bertree.tasks.metrics import spearman
from bertree.tasks.similarity.read import ColumnNames, SentenceExample, read

SHARES = (0.0, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
BATCHES = 6


def perplexity(model: Model, batches: list[Batch]) -> float:
    """At the masked tokens of some batches."""
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in batches:
            masked, targets = PretrainingLabels.of(batch).predicted
            logits = model.network.mask_logits(model.network(batch), masked)
            total += float(cross_entropy(logits, targets).sum)
            count += targets.numel()
    return math.exp(total / count)


def correlation(model: Model, rows: list[SentenceExample]) -> float:
    """Of cosines and scores, times 100."""
    found = model.similarity_pairwise(*([row.texts[side] for row in rows] for side in (0, 1)))
    return 100 * spearman([float(row.gold or 0.0) for row in rows], found.tolist())


def main() -> None:
    """The table, and the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("masked", help="model folder with an MLM head")
    parser.add_argument("sentences", help="the model folder that was trained from it")
    parser.add_argument("--held", type=Path, required=True, help="token store to measure perplexity on")
    held_share = "the share of that store that was held out in training (recipe: data.held_out_share); 1: all of it"
    parser.add_argument("--held-share", type=float, default=1.0, help=held_share)
    parser.add_argument("--sts", type=Path, required=True, help="STS-B's dev split")
    parser.add_argument("--share", type=float, default=0.5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="folder for the model at --share")
    options = parser.parse_args()
    model = load(options.masked, device=options.device)
    before = {name: tensor.clone() for name, tensor in model.network.encoder.state_dict().items()}
    after = load(options.sentences, device=options.device).network.encoder.state_dict()
    model.vector = PoolingConfig("mean", normalise=True)
    store = Store.open(options.held)
    if options.held_share < 1:
        _, store = split_held_out(store, options.held_share)
    stream = Stream(store, format="full-sentences", masking="token", batch_tokens=16_384, max_length=128, seed=0)
    batches = [stream[number].to(options.device) for number in range(BATCHES)]
    rows = read([options.sts], ColumnNames())

    def at(share: float) -> None:
        model.network.encoder.load_state_dict({n: (1 - share) * before[n] + share * after[n] for n in before})

    lines = []
    for share in SHARES:
        at(share)
        lines.append((share, f"{perplexity(model, batches):.2f}", f"{correlation(model, rows):.1f}"))
    print(table(("share of the sentence encoder", "perplexity", "STS-B dev"), lines))
    if options.out:
        at(options.share)
        model.to("cpu").save(options.out, dtype="int8")


if __name__ == "__main__":
    main()
