"""Queries that are keys too, against queries and keys of their own: left-to-right models on the same text.

    python -m benchmarks.shared_qk --store STORE --out study                     # gpt1-tiny, equal steps
    python -m benchmarks.shared_qk --store STORE --out study --recipe gpt1-h200-10min --minutes 8    # equal time

Every row is a run of `bertree pretrain`: the recipe as it is, and with `model.shared_qk=true`, which has a third fewer
weights in the projections before attention. With --minutes each takes as many steps as it can in that time
(run.minutes); without, all have the recipe's steps or --steps. The Reformer paper says that sharing costs nothing
(Kitaev et al. 2020, figure 3).

OUT/rows.jsonl has a line for every run that is done: those are not made again, and one that was stopped is resumed.
OUT/table.md is the table of held-out perplexities.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import bertree
from benchmarks.common import environment, spread, table
from benchmarks.standings import rows_in
from bertree.files.formats import Json
from bertree.pretraining.pretrain import pretrain

ROWS: dict[str, list[str]] = {"separate": ["model.shared_qk=false"], "shared": ["model.shared_qk=true"]}


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="token store to learn from")
    parser.add_argument("--held", default="", help="token store to measure on; none: a share of the other")
    parser.add_argument("--recipe", default="gpt1-tiny", help="a left-to-right recipe of one phase")
    parser.add_argument("--steps", type=int, help="steps of every run")
    parser.add_argument("--minutes", type=float, help="time of every run, in place of --steps")
    parser.add_argument("--changes", nargs="+", default=[], metavar="KEY=VALUE", help="more changes, of every row")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--rows", nargs="+", default=list(ROWS), choices=list(ROWS), help="the others in other processes"
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.steps and options.minutes:
        parser.error("give --steps or --minutes")
    return options


def overrides(options: argparse.Namespace, name: str, seed: int) -> list[str]:
    """Return the changes of a row, without its steps or time."""
    changes = [f"data.store={json.dumps(options.store)}", f"run.seed={seed}", *options.changes, *ROWS[name]]
    return changes + ([f"data.held_out={json.dumps(options.held)}"] if options.held else [])


def lines_of(out: Path) -> list[Json]:
    """Return what a run has logged."""
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def run(options: argparse.Namespace, name: str, seed: int) -> Json:
    """Return the row of one run."""
    changes = overrides(options, name, seed)
    changes += [f"run.minutes={options.minutes}"] if options.minutes else []
    changes += [f"phases.0.steps={options.steps}"] if options.steps else []
    out = options.out / f"{name}-{seed}"
    began = time.perf_counter()
    if not pretrain(options.recipe, out=out, overrides=changes, resume=out.exists()).complete:
        raise SystemExit(130)
    seconds = time.perf_counter() - began
    last = [line for line in lines_of(out) if line["kind"] == "eval"][-1]
    end = next(line for line in lines_of(out) if line["kind"] == "end")
    return {
        "row": name,
        "seed": seed,
        "recipe": options.recipe,
        "changes": changes,
        "parameters": sum(p.numel() for p in bertree.load(out / "model").network.parameters()),
        "steps": end["step"],
        "tokens": end["tokens"],
        "loss": last["mlm"],
        "perplexity": last["perplexity"],
        "seconds": round(seconds, 1),
        "where": environment(),
    }


def summary(rows: Sequence[Json]) -> str:
    """Return the table: means over the seeds, and how far the loss is from that of separate queries and keys."""
    apart = {row["seed"]: row["loss"] for row in rows if row["row"] == "separate"}
    lines = []
    for name in ROWS:
        of_row = [row for row in rows if row["row"] == name]
        if not of_row:
            continue
        more = [row["loss"] - apart[row["seed"]] for row in of_row if row["seed"] in apart]
        cells = [f"{of_row[0]['parameters']:,}", f"{of_row[0]['steps']:,}", f"{of_row[0]['tokens']:,}"]
        cells += [spread([row["loss"] for row in of_row], ".4f"), spread(more, "+.4f") if name == "shared" else ""]
        cells += [
            spread([row["perplexity"] for row in of_row], ".2f"),
            spread([row["seconds"] for row in of_row], ".0f"),
        ]
        lines.append([name, len(of_row), *cells])
    head = ["queries and keys", "seeds", "parameters", "steps", "tokens", "held-out loss", "against separate"]
    return table([*head, "perplexity", "seconds"], lines)


def main() -> None:
    """Run what is not done yet, then write the table."""
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
    text = f"{rows[-1]['where']}; {rows[-1]['recipe']}\n\n{summary(rows)}\n"
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
