"""Do the tiny recipes learn? Each is run as it is, on corpus/books.txt, beside what counting alone would give.

    python -m benchmarks.learning                      # three recipes, some two minutes each on two cores
    python -m benchmarks.learning --recipes bert-base-tiny

Unigram and bigram probabilities are counted on the text the model learns from and asked about the very tokens that
are masked in the held-out text. The bigram knows the true token to the left, also where the model sees a mask; it is
smoothed by absolute discounting (0.75) towards the unigram.
"""

import json
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.common import CORPUS, Results, argument_parser
from bertree.batch import PretrainingLabels
from bertree.data.prepare import prepare, train_tokenizer
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.pretraining.held_out import held_out_stream
from bertree.pretraining.pretrain import pretrain

KINDS = {"bert-base-tiny": "wordpiece", "roberta-base-tiny": "bpe", "albert-base-tiny": "unigram"}
DISCOUNT = 0.75


def baselines(train: Store, stream: Stream) -> tuple[float, float]:
    """Loss of a unigram and of a bigram model, counted on a store, at the places a held-out stream masks."""
    unigram = np.ones(train.vocab_size)
    pairs: Counter[tuple[int, int]] = Counter()
    for shard in train.shards:
        tokens = np.asarray(shard.tokens, dtype=np.int64)
        unigram += np.bincount(tokens, minlength=train.vocab_size)
        pairs.update(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))
    unigram /= unigram.sum()
    lefts: Counter[int] = Counter()
    kinds = Counter(left for left, _ in pairs)
    for (left, _), count in pairs.items():
        lefts[left] += count
    singles, doubles = [], []
    for batch in stream.one_epoch():
        masked, targets = PretrainingLabels.of(batch).predicted
        ids = batch.ids.clone()
        ids[masked] = targets
        for left, token in zip(ids[masked - 1].tolist(), targets.tolist(), strict=True):
            singles.append(np.log(unigram[token]))
            count = lefts[left]
            chance = unigram[token]
            if count:
                seen = max(pairs[left, token] - DISCOUNT, 0.0)
                chance = (seen + DISCOUNT * kinds[left] * unigram[token]) / count
            doubles.append(np.log(chance))
    return -float(np.mean(singles)), -float(np.mean(doubles))


def prepared(kind: str, folder: Path, vocabulary: int = 8000) -> Path:
    """The corpus as a token store."""
    train_tokenizer(CORPUS, folder / "tokenizer", kind=kind, vocab_size=vocabulary)
    prepare(CORPUS, folder / "tokenizer", folder / "store", workers=2)
    return folder / "store"


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--recipes", nargs="+", default=list(KINDS), choices=list(KINDS))
    options = parser.parse_args()
    results = Results("learning", options.out)
    with tempfile.TemporaryDirectory() as scratch:
        for name in options.recipes:
            store = prepared(KINDS[name], Path(scratch) / name)
            overrides = [f"data.store={json.dumps(str(store))}"]
            recipe = recipes.load(name, overrides)
            began = time.perf_counter()
            pretrain(name, out=Path(scratch) / name / "run", overrides=overrides)
            seconds = time.perf_counter() - began
            lines = [json.loads(line) for line in (Path(scratch) / name / "run" / "metrics.jsonl").open()]
            last = [line for line in lines if line["kind"] == "eval"][-1]
            pair = last.get("nsp_accuracy", last.get("sop_accuracy"))
            train, held = build.open_stores(recipe.data)
            single, double = baselines(train, held_out_stream(recipe, held, recipe.phases[-1]))
            results.add(
                name,
                unigram_loss=single,
                bigram_loss=double,
                held_out_loss=last["mlm"],
                accuracy_percent=100 * last["accuracy"],
                sentence_accuracy_percent=100 * pair if pair else None,
                seconds=round(seconds),
            )
    results.print_table()


if __name__ == "__main__":
    main()
