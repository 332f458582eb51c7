"""Held-out perplexity of masked language models, with the same masks for each, at several sequence lengths.

    python -m benchmarks.masked_perplexity new=run/model before=other/model --store HELD --lengths 128 512

The store must have been made with the models' tokenizer. Every token of it is read once; 15 % are masked.
"""

import argparse
from contextlib import nullcontext
from pathlib import Path

import torch

from benchmarks.common import environment, table
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.inference.load import load
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.held_out import evaluate_held_out

BATCH = 8192


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--store", type=Path, required=True, help="token store to measure on")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    store, rows = Store.open(options.store), []
    for name, _, folder in (model.partition("=") for model in options.models):
        network = load(folder, device=options.device).network
        for length in options.lengths:
            stream = Stream(
                store, format="full-sentences", masking="token", batch_tokens=max(BATCH, 2 * length), max_length=length
            )
            found = evaluate_held_out(network, pretraining_objective(mlm=1.0), stream, store.tokens * 2, nullcontext)
            rows.append([name, length, f"{found['mlm']:.3f}", f"{found['perplexity']:.2f}", f"{found['accuracy']:.1%}"])
            print(rows[-1], flush=True)
    print(f"{environment()}; {store.tokens:,} tokens")
    print(table(["model", "length", "MLM loss", "perplexity", "accuracy"], rows))


if __name__ == "__main__":
    main()
