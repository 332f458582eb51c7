"""Held-out perplexity of masked language models, with the same masks for each, at several sequence lengths.

    python -m benchmarks.masked_perplexity new=run/model before=other/model --store HELD --lengths 128 512

The store must have been made with the models' tokenizer. Every token of it is read once; 15 % are masked.
"""

from contextlib import nullcontext
from pathlib import Path

import torch

from benchmarks.common import Results, argument_parser
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.inference.load import load
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.held_out import evaluate_held_out

BATCH = 8192


def main() -> None:
    """Print the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--store", type=Path, required=True, help="token store to measure on")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    store, results = Store.open(options.store), Results("masked-perplexity", options.out)
    for name, _, folder in (model.partition("=") for model in options.models):
        network = load(folder, device=options.device).network
        for length in options.lengths:
            stream = Stream(
                store, format="full-sentences", masking="token", batch_tokens=max(BATCH, 2 * length), max_length=length
            )
            scores = evaluate_held_out(network, pretraining_objective(mlm=1.0), stream, store.tokens * 2, nullcontext)
            results.add(
                f"{name}, sequences of {length}",
                sequence_length=length,
                tokens=store.tokens,
                held_out_loss=scores["mlm"],
                perplexity=scores["perplexity"],
                accuracy_percent=100 * scores["accuracy"],
            )
    results.print_table()


if __name__ == "__main__":
    main()
