"""XLNet's ablation: what the order, the memory, spans, both directions and next sentences are worth, with seeds.

    python -m benchmarks.xlnet_ablation --store STORE --out study                        # xlnet-tiny, two CPU cores
    python -m benchmarks.xlnet_ablation --store STORE --out study --recipe xlnet-base-h200-20min --steps 4000
    python -m benchmarks.xlnet_ablation --store STORE --out study --rows xlnet mlm --seeds 3 --tasks sst-2 --data GLUE

Every row is a run of `bertree pretrain` on one recipe with a few changes, for the same number of steps and tokens:

    xlnet         the recipe as it is: permutation language modelling, spans, a memory, half of the lanes backwards
    mlm           the same architecture, memory and lanes; as many tokens are masked as the others predict, and the
                  tokens are predicted from where they stood (BERT's objective; no query stream)
    no memory     each segment on its own
    no spans      targets are single tokens
    no backward   all lanes run forwards
    pairs         half of a segment continues the last step, the rest are two texts: the paper's layout
    pairs, nsp    the same, and whether the second text follows the first is predicted too

Each run's own held-out loss cannot be compared between rows that predict other tokens from other contexts. So every
model also answers the same question: 15 % of the tokens of held-out text are hidden, and each is predicted from the
rest, by a mask or by a query row that sees the rest (loss and accuracy of hidden tokens; segments without a memory).
With --tasks every model is fine-tuned too.

OUT/rows.jsonl has a line for every run that is done: those are not made again, and one that was stopped is resumed.
OUT/table.md is the table; each run has a report.html of its own.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import bertree
from benchmarks.common import environment, spread, table
from benchmarks.standings import rows_in
from bertree.batch import Batch, Permutation, PretrainingLabels
from bertree.data.masking import Masking
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.files.formats import Json
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.pretraining.pretrain import pretrain
from bertree.train.held_out import evaluate_held_out

PAIRS = ["data.format=lanes+pairs"]
ROWS: dict[str, list[str]] = {
    "xlnet": [],
    "mlm": ["data.masking=token", "model.query_stream=false"],
    "no memory": ["model.memory=0"],
    "no spans": ["data.spans=1"],
    "no backward": ["data.backward=false"],
    "pairs": PAIRS,
    "pairs, nsp": [*PAIRS, "objective.nsp=1"],
}
HIDDEN = Masking("token", rate=0.15, mask=1.0, random=0.0)


class HiddenTokens:
    """Held-out text in which some tokens are hidden from a model: by masks, or in the order of a query stream."""

    def __init__(self, store: Store, length: int, ordered: bool, seed: int = 0) -> None:
        self._stream = Stream(
            store, format="full-sentences", masking=HIDDEN, batch_tokens=8 * length, max_length=length, seed=seed
        )
        self._ordered = ordered

    def one_epoch(self) -> Iterator[Batch]:
        """Yield the batches, the same ones every time."""
        for batch in self._stream.one_epoch():
            yield in_order(batch) if self._ordered else batch


def in_order(batch: Batch) -> Batch:
    """Return a batch whose masked tokens are predicted by query rows that see all other tokens and not each other."""
    masked, targets = PretrainingLabels.of(batch).predicted
    ids, ranks = batch.ids.clone(), torch.zeros_like(batch.ids, dtype=torch.int32)
    ids[masked], ranks[masked] = targets, 1
    edges = torch.searchsorted(masked, batch.cu_seqlens.long()).int()
    order = Permutation(ranks, masked, edges, int(edges.diff().max()))
    labels = PretrainingLabels(masked=ids.numel() + torch.arange(masked.numel()), targets=targets, pairs=None)
    return replace(batch, ids=ids, permutation=order, labels=labels)


def hidden_loss(model: bertree.Model, store: Store, length: int, tokens: int) -> dict[str, float]:
    """Return loss and accuracy of hidden tokens."""
    stream: Any = HiddenTokens(store, length, bool(model.architecture.axes()["query_stream"]))
    return evaluate_held_out(model.network, pretraining_objective(mlm=1.0), stream, tokens, nullcontext)


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="token store to learn from")
    parser.add_argument("--held", default="", help="token store to measure on; none: a share of the other")
    parser.add_argument("--recipe", default="xlnet-tiny", help="recipe of the row xlnet")
    parser.add_argument("--steps", type=int, help="steps of the recipe's first phase")
    parser.add_argument("--changes", nargs="+", default=[], metavar="KEY=VALUE", help="more changes, of every row")
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tasks", nargs="*", default=[], help="fine-tune every model on these")
    parser.add_argument("--data", type=Path, help="folder of the tasks")
    parser.add_argument("--hidden-tokens", type=int, default=100_000, help="tokens of held-out text to hide some of")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.tasks and not options.data:
        parser.error("--tasks needs --data")
    return options


def overrides(options: argparse.Namespace, name: str, seed: int) -> list[str]:
    """Return the changes of a row."""
    changes = [f"data.store={json.dumps(options.store)}", f"run.seed={seed}", *options.changes]
    changes += [f"data.held_out={json.dumps(options.held)}"] if options.held else []
    changes += [f"phases.0.steps={options.steps}"] if options.steps else []
    if name == "mlm":
        changes.append(f"data.mask_rate={1 / recipes.load(options.recipe, changes).data.partial}")
    return [*changes, *ROWS[name]]


def run(options: argparse.Namespace, name: str, seed: int) -> Json:
    """Return the row of one run."""
    out, changes = run_folder(options.out, name, seed), overrides(options, name, seed)
    began = time.perf_counter()
    if not pretrain(options.recipe, out=out, overrides=changes, resume=out.exists()).complete:
        raise SystemExit(130)
    seconds = time.perf_counter() - began
    recipe = recipes.load(options.recipe, changes)
    _, held = build.open_stores(recipe.data)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "eval"][-1]
    model = bertree.load(out / "model")
    hidden = hidden_loss(model, held, recipe.phases[-1].max_length, options.hidden_tokens)
    scores = {
        task: bertree.finetune(
            out / "model", task=task, data=options.data, out=out / task, seed=seed, progress=False
        ).metrics
        for task in options.tasks
    }
    return {
        "row": name,
        "seed": seed,
        "recipe": options.recipe,
        "changes": changes,
        "seconds": round(seconds, 1),
        "tokens": sum(phase.steps * phase.batch_tokens for phase in recipe.phases),
        "own_loss": last["mlm"],
        "nsp_accuracy": last.get("nsp_accuracy"),
        "hidden_loss": hidden["mlm"],
        "hidden_accuracy": hidden["accuracy"],
        "where": environment(),
        "scores": {task: found[found["metric"]] for task, found in scores.items()},
    }


def run_folder(out: Path, name: str, seed: int) -> Path:
    """Return the folder of a run."""
    return out / f"{name.replace(', ', '-').replace(' ', '-')}-{seed}"


def summary(rows: Sequence[Json]) -> str:
    """Return the table: means over the seeds, and how far the loss of hidden tokens is from that of the row xlnet."""
    tasks = list(dict.fromkeys(task for row in rows for task in row["scores"]))
    reference_loss = {row["seed"]: row["hidden_loss"] for row in rows if row["row"] == "xlnet"}
    lines = []
    for name in ROWS:
        of_row = [row for row in rows if row["row"] == name]
        if not of_row:
            continue
        apart = [row["hidden_loss"] - reference_loss[row["seed"]] for row in of_row if row["seed"] in reference_loss]
        pairs = [row["nsp_accuracy"] for row in of_row if row["nsp_accuracy"] is not None]
        cells = [
            spread([row["hidden_loss"] for row in of_row], ".3f"),
            spread(apart, "+.3f") if name != "xlnet" else "",
        ]
        cells += [spread([100 * row["hidden_accuracy"] for row in of_row], ".1f") + " %"]
        cells += [spread([row["own_loss"] for row in of_row], ".3f"), spread([100 * x for x in pairs], ".1f")]
        cells += [
            spread([100 * row["scores"][task] for row in of_row if task in row["scores"]], ".1f") for task in tasks
        ]
        lines.append([name, len(of_row), *cells, f"{statistics.mean(row['seconds'] for row in of_row):.0f}"])
    head = ["row", "seeds", "loss of hidden tokens", "against xlnet", "accuracy", "loss of its own", "NSP, %"]
    return table([*head, *tasks, "seconds"], lines)


def main() -> None:
    """Run what is not done yet, then write the table and the report of all there is."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    done = {(row["row"], row["seed"]) for row in rows_in([path])}
    for seed in range(options.seeds):
        for name in options.rows:
            if (name, seed) not in done:
                row = run(options, name, seed)
                with path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    rows = rows_in([path])
    text = f"{rows[-1]['where']}; {rows[-1]['recipe']}, {rows[-1]['tokens']:,} tokens\n\n{summary(rows)}\n"
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
