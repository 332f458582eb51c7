"""DistilBERT's ablation: what each term of the loss and the teacher's layers are worth, with seeds.

    python -m benchmarks.distil --teacher DIR --store STORE --held STORE --data GLUE --seeds 3 --out rows.jsonl
    python -m benchmarks.distil --merge rows-*.jsonl --table result.md

Every row is a run of `bertree distill` on a half of the teacher for the same number of steps, then fine-tuned on some
tasks (all with the same settings): the whole loss; without the teacher's distribution (ce), without the direction of
its states (cos), without the true tokens (mlm); with random first weights instead of its layers; and, beyond the
paper, random without any teacher. Rows are JSON lines in --out as soon as they are done; those that are there are not
run again. --rows takes some of them, so that several processes can share the work.
"""

import argparse
import contextlib
import json
import statistics
import tempfile
from pathlib import Path

from benchmarks.common import environment
from benchmarks.default import FOLDERS, Bench
from benchmarks.standings import rows_in
from bertree.distillation.distill import distill
from bertree.files.formats import Json

ROWS: dict[str, list[str]] = {
    "whole": [],
    "no ce": ["distill.ce=0"],
    "no cos": ["distill.cos=0"],
    "no mlm": ["objective.mlm=0"],
    "random": ["distill.start=random"],
    "random, no teacher": ["distill.start=random", "distill.ce=0", "distill.cos=0"],
}


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", help="model folder with an MLM head")
    parser.add_argument("--store", help="token store to learn from")
    parser.add_argument("--held", default="", help="token store to measure on; none: a share of the other")
    parser.add_argument("--data", type=Path, help="GLUE: a folder with SST-2, MRPC, ...")
    parser.add_argument("--tasks", nargs="*", default=["sst-2", "sts-b", "mrpc", "cola"], choices=list(FOLDERS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--recipe", default="distilbert-h200-5min")
    parser.add_argument("--steps", type=int, default=600, help="batches of the recipe's size")
    parser.add_argument("--changes", nargs="+", default=[], metavar="KEY=VALUE", help="more changes of the recipe")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=10_000, help="first so many training examples of a task")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("distil.jsonl"))
    parser.add_argument("--merge", nargs="+", type=Path, default=[], help="rows made elsewhere: only the table is made")
    parser.add_argument("--table", type=Path, help="file for the table")
    return parser.parse_args()


def run(options: argparse.Namespace, name: str, seed: int) -> Json:
    """One student: its held-out loss, and its score on each task."""
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(None):
        out = Path(place) / "student"
        common = [f"phases.0.steps={options.steps}", f"run.seed={seed}", f"run.device={options.device}"]
        common += ["run.eval_every=1000000", "run.save_every=1000000", "schedule.warmup=100", "schedule.growth=1"]
        common += [f"data.held_out={json.dumps(options.held)}"] if options.held else []
        done = distill(
            options.teacher,
            student=options.recipe,
            store=options.store,
            out=out,
            seconds=0,
            overrides=[*common, *ROWS[name], *options.changes],
        )
        if not done.complete:
            raise SystemExit(1)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        held = [line["mlm"] for line in lines if line["kind"] == "eval"][-1]
        shared = argparse.Namespace(
            data=options.data,
            limit=options.limit,
            qnli_split=True,
            folders={"student": str(out / "model")},
            default="default",
            set=[],
            device=options.device,
        )
        bench = Bench(shared)
        scores = {task: bench.run(task, "student", seed)["score"] for task in options.tasks}
    return {"row": name, "seed": seed, "held_out_mlm": held, "scores": scores, "steps": options.steps}


def table(rows: list[Json]) -> str:
    """Means and deviations over the seeds, and how far each row is from the whole loss."""
    tasks = [task for task in rows[0]["scores"] if all(task in row["scores"] for row in rows)]
    lines = [
        "| student | seeds | held-out MLM loss | "
        + "".join(f"{task} | " for task in tasks)
        + ("average | " if tasks else "")
        + "against whole |"
    ]
    lines.append("| --- " * (len(tasks) + (5 if tasks else 4)) + "|")
    averages: dict[str, dict[int, float]] = {}
    for name in ROWS:
        of_row = [row for row in rows if row["row"] == name]
        # Without tasks, the held-out loss is what is compared; its sign turned, so that more is better.
        averages[name] = {
            row["seed"]: 100 * statistics.mean(row["scores"][task] for task in tasks) if tasks else -row["held_out_mlm"]
            for row in of_row
        }
        if not of_row:
            continue
        shared_seeds = sorted(set(averages[name]) & set(averages["whole"]))
        apart = [averages[name][seed] - averages["whole"][seed] for seed in shared_seeds]
        cells = [name, str(len(of_row)), _spread([row["held_out_mlm"] for row in of_row], 3)]
        cells += [_spread([100 * row["scores"][task] for row in of_row]) for task in tasks]
        cells += [_spread(list(averages[name].values()))] if tasks else []
        cells += ["" if name == "whole" else _spread(apart, 1 if tasks else 3, sign="+")]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _spread(values: list[float], digits: int = 1, sign: str = "") -> str:
    if not values:
        return ""
    mean = format(statistics.mean(values), f"{sign}.{digits}f")
    return f"{mean} ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else mean


def main() -> None:
    """Run what is not done yet, then print the table of all there is."""
    options = parsed()
    if not options.merge:
        done = {(row["row"], row["seed"]) for row in rows_in([options.out])}
        for seed in range(options.seeds):
            for name in options.rows:
                if (name, seed) in done:
                    continue
                row = run(options, name, seed) | {"where": environment()}
                print(json.dumps(row), flush=True)
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    text = table(rows_in(options.merge or [options.out]))
    print(text)
    if options.table:
        options.table.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
