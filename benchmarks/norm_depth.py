"""Megatron's finding on norms: BERTs whose norms come after each part (post-norm) get worse with size, others do not.

    python -m benchmarks.norm_depth --store STORE --out study                 # six runs side by side on one GPU
    python -m benchmarks.norm_depth --store STORE --out study --miniature     # the same in small on a CPU, one by one
    python -m benchmarks.norm_depth --store STORE --out study --orders post-norm pre-norm megatron --lr 1e-4

Three sizes, each with the norms of BERT and with those of Megatron, are pretrained on the same tokens in the same
order: runs of `bertree pretrain` on one recipe, with masked tokens alone. The held-out loss after the last step is
compared. All have the same learning rate, warm-up and batch, as in the paper.

    post-norm    norm(x + part(x)), as in BERT
    megatron     x + part(norm(x)), one norm at the end, none on the embeddings, and smaller initial matrices that write
                 into the sum: the preset megatron-bert. The paper's figure names this order
    pre-norm     the order alone: x + part(norm(x)), all else as in BERT

A run whose gradient is not finite for long ends by itself; its row says so. OUT has a folder for each run and table.md.
What is done is not made again, and what was stopped is resumed.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import environment, table
from bertree.model import cost
from bertree.model.presets import preset

ORDERS: dict[str, list[str]] = {
    "post-norm": ["model.residual=post-norm"],
    "megatron": ["model.residual=pre-norm"],
    "pre-norm": ["model.residual=pre-norm", "model.embedding_norm=true", "model.residual_init=plain"],
}


class Size(NamedTuple):
    """A model of the study: deeper and wider from one to the next, as the paper's are."""

    layers: int
    width: int
    heads: int

    @property
    def name(self) -> str:
        return f"{self.layers} x {self.width}"

    @property
    def settings(self) -> list[str]:
        return [f"model.{key}={value}" for key, value in self._asdict().items()]

    @property
    def millions(self) -> float:
        """Parameters of the layers."""
        return cost.parameters(preset("bert-base").architecture.with_values(self._asdict())).encoder / 1e6


class Study(NamedTuple):
    """Sizes and lengths of the runs."""

    sizes: tuple[Size, ...]
    settings: list[str]
    together: int  # runs at the same time


# 20 million tokens of each run. Not compiled: six processes would compile longer than they train.
LARGE = Study(
    (Size(12, 256, 4), Size(24, 384, 6), Size(48, 512, 8)),
    [
        *("phases=[{steps=600, max_length=128, batch_tokens=32768}]", "schedule.warmup=60", "run.compile=no"),
        *("run.eval_every=200", "run.save_every=600", "run.log_every=20", "run.eval_tokens=262144"),
    ],
    6,
)
SMALL = Study(
    (Size(2, 32, 2), Size(4, 48, 3), Size(8, 64, 4)),
    [
        *("phases=[{steps=120, max_length=32, batch_tokens=1024}]", "schedule.warmup=12", "run.compile=no"),
        *("run.eval_every=60", "run.save_every=120", "run.log_every=20", "run.eval_tokens=16384", "run.device=cpu"),
    ],
    1,
)
COMMON = [
    *("data.format=full-sentences", "objective.nsp=0", "model.preset=bert-base", "model.pooler=false"),
    *("model.attention_dropout=0.0", "data.mask_rate=0.15"),
]


def run_folder(out: Path, size: Size, order: str) -> Path:
    return out / f"{order}-{size.layers}x{size.width}"


def run(options: argparse.Namespace, study: Study, size: Size, order: str) -> str:
    """Pretrain one model; return why it failed, if it did."""
    out = run_folder(options.out, size, order)
    command = [sys.executable, "-m", "bertree", "pretrain", "bert-base", "--store", options.store, "--out", str(out)]
    command += [*COMMON, *study.settings, *size.settings, *ORDERS[order], f"optim.lr={options.lr}", *options.changes]
    command += ["--resume"] if out.exists() else []
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{out}.log", "a") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT)
    if done.returncode == 0:
        return ""
    lines = Path(f"{out}.log").read_text().strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"


def result(out: Path) -> dict[str, Any]:
    """Return the last evaluation of a run, and how many steps were skipped."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "eval"][-1]
    return {"loss": last["mlm"], "skipped": sum("skipped" in str(line.get("text")) for line in lines)}


def print_results(options: argparse.Namespace, study: Study, failures: dict[tuple[Size, str], str]) -> str:
    """Return the table, and what the sizes did to each order."""
    rows, losses = [], {}
    for size in study.sizes:
        cells = []
        for order in options.orders:
            why = failures.get((size, order), "")
            outcome = None if why else result(run_folder(options.out, size, order))
            losses[size, order] = None if outcome is None else outcome["loss"]
            skipped = f", {outcome['skipped']} steps skipped" if outcome and outcome["skipped"] else ""
            cells.append(why if outcome is None else f"{outcome['loss']:.3f}{skipped}")
        rows.append((size.name, f"{size.millions:.1f}M", *cells))
    text = f"{environment()}\n\nlr {options.lr:g}; held-out loss of masked tokens after the last step\n\n"
    text += table(("layers x width", "parameters of the layers", *options.orders), rows) + "\n"
    for order in options.orders:
        first, last = losses[study.sizes[0], order], losses[study.sizes[-1], order]
        if first is not None and last is not None:
            text += f"\n{order}: from the smallest to the largest {last - first:+.3f}"
    return text + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="token store to learn from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--miniature", action="store_true", help="tiny models, on a CPU")
    parser.add_argument("--orders", nargs="+", default=["post-norm", "megatron"], choices=list(ORDERS))
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--together", type=int, help="runs at the same time")
    parser.add_argument("--changes", nargs="+", default=[], metavar="KEY=VALUE", help="more settings, of every run")
    options = parser.parse_args()
    study = SMALL if options.miniature else LARGE
    # The largest first: it takes longest.
    cases = [(size, order) for size in study.sizes[::-1] for order in options.orders]
    with ThreadPoolExecutor(options.together or study.together) as pool:
        reasons = list(pool.map(lambda case: run(options, study, *case), cases))
    failures = {case: why for case, why in zip(cases, reasons, strict=True) if why}
    text = print_results(options, study, failures)
    (options.out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
