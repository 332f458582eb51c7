"""The BiLSTM of Tang et al. on SST-2: by labels alone, and taught by a fine-tuned teacher, with and without copies.

    python -m benchmarks.bilstm --teacher DIR --data GLUE/SST-2 --seeds 3 --out rows.jsonl

The teacher is a model folder that was fine-tuned on SST-2 (`bertree finetune`); the BiLSTM has its tokenizer and fresh
weights. The best evaluation on the dev split counts for all. "labels" gets the epochs that suit it (ten, the best one
is kept); the taught ones read the same texts with the teacher's scores in place of labels (logits, squared error), and
`copies` altered copies of each. How much faster it is: `bertree compare TEACHER BILSTM --task sst-2 --data ...`.
"""

import argparse
import json
import shutil
import statistics
from pathlib import Path

from benchmarks.common import environment
from benchmarks.standings import rows_in
from bertree.distillation.distill import distill
from bertree.files.formats import Json, read_json
from bertree.finetuning.finetune import finetune

LABELS, TAUGHT, COPIES = "labels", "taught", "taught, copies"


def run(options: argparse.Namespace, name: str, seed: int) -> Json:
    """One BiLSTM: its accuracy."""
    out = options.keep / f"{name.replace(', ', '-')}-{seed}"
    if not (out / "metrics.json").is_file():
        shutil.rmtree(out, ignore_errors=True)
        train(options, name, seed, out)
    metrics = read_json(out / "metrics.json")
    copies = options.copies if name == COPIES else 0
    row: Json = {"row": name, "seed": seed, "copies": copies, "accuracy": metrics["accuracy"]}
    return row | ({"teacher": metrics["distillation"]["teacher"]} if name != LABELS else {})


def train(options: argparse.Namespace, name: str, seed: int, out: Path) -> None:
    """Into a folder of its own, which stays."""
    common = [f"seed={seed}", f"device={options.device}", "evaluations=2", "patience=0"]
    data = {"task": "sst-2", "data": options.data, "out": out}
    if name == LABELS:
        run = finetune("bilstm", **data, tokenizer=options.teacher, overrides=[*common, "epochs=10", "batch=64"])
    else:
        copies = options.copies if name == COPIES else 0
        size = ["epochs=4", "batch=256"] if copies else ["epochs=10", "batch=64"]
        changes = [*common, *size, "kind=mse", "alpha=0", f"copies={copies}"]
        run = distill(options.teacher, student="bilstm", **data, seconds=0, overrides=changes)
    if not run.complete:
        raise SystemExit(1)


def table(rows: list[Json]) -> str:
    """Means and deviations over the seeds."""
    lines = ["| BiLSTM on SST-2 | seeds | accuracy | against labels |", "| --- | --- | --- | --- |"]
    means = {name: [100 * row["accuracy"] for row in rows if row["row"] == name] for name in (LABELS, TAUGHT, COPIES)}
    for name, values in means.items():
        if values:
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            gain = f"{statistics.mean(values) - statistics.mean(means[LABELS]):+.1f}" if means[LABELS] else ""
            lines.append(f"| {name} | {len(values)} | {statistics.mean(values):.1f}{spread} | {gain} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is not done yet, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", help="model folder, fine-tuned on SST-2")
    parser.add_argument("--data", type=Path, help="folder of SST-2")
    parser.add_argument("--rows", nargs="+", default=[LABELS, TAUGHT, COPIES], choices=[LABELS, TAUGHT, COPIES])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--copies", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--keep", type=Path, default=Path("bilstm-runs"), help="folder for the runs")
    parser.add_argument("--out", type=Path, default=Path("bilstm.jsonl"))
    parser.add_argument("--merge", nargs="+", type=Path, default=[], help="rows made elsewhere: only the table is made")
    options = parser.parse_args()
    if not options.merge:
        done = {(row["row"], row["seed"]) for row in rows_in([options.out])}
        for seed in range(options.seeds):
            for name in [name for name in options.rows if (name, seed) not in done]:
                row = run(options, name, seed) | {"where": environment()}
                print(json.dumps(row), flush=True)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    print(table(rows_in(options.merge or [options.out])))


if __name__ == "__main__":
    main()
