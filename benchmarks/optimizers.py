"""AdamW, LAMB and Muon on one recipe for the same time, each at several learning rates.

    python -m benchmarks.optimizers --store STORE --out study                                  # modernbert-tiny, a CPU
    python -m benchmarks.optimizers --store STORE --out study --recipe best-30min --minutes 4  # a GPU
    python -m benchmarks.optimizers --store STORE --out study --rates muon=1e-3,2e-3 --set optim.matrix_rate=2

Every row is a run of `bertree pretrain`. With --minutes each takes as many steps as it can in that time (run.minutes).
With --steps AdamW takes so many and the others as many as take the same time: a step of each is timed in turn with
those of the others, which works beside other load too. All read the same batches in the same order.

OUT/rows.jsonl has a line for every run that is done: those are not made again, and one that was stopped is resumed, so
on a machine that is lent for a while the command is given again until it says nothing more. OUT/table.md is the table.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

import bertree
from benchmarks.common import environment, medians, table
from benchmarks.standings import rows_in
from bertree.files.formats import Json
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining import build
from bertree.pretraining import recipe as recipes
from bertree.train.device_setup import DeviceSetup
from bertree.train.loop import Loop
from bertree.train.optimizer import build_optimizer
from bertree.train.schedule import TrainingSchedule

RATES = {"adamw": (5e-4, 1e-3, 2e-3, 4e-3), "lamb": (5e-3, 1e-2, 2e-2), "muon": (1e-3, 2e-3, 4e-3, 8e-3)}
TIMED = 25  # steps of each optimizer
KEY = ("recipe", "optimizer", "lr", "set", "minutes", "steps_asked", "seed")  # what makes a run that run


def main() -> None:
    """Make the runs that are missing, and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--recipe", default="modernbert-tiny")
    parser.add_argument("--steps", type=int, default=0, help="of AdamW; 0: the recipe's")
    parser.add_argument("--minutes", type=float, default=0.0, help="of each run, in place of --steps")
    parser.add_argument(
        "--rates", nargs="*", default=[], metavar="NAME=RATE,RATE", help="for some optimizers, in place of"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="settings of all runs")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    chosen = dict(text.split("=", 1) for text in given.rates)
    rates = {name: [float(rate) for rate in text.split(",")] for name, text in chosen.items()} or RATES
    always = [*given.set, f"run.seed={given.seed}"]
    costs = {} if given.minutes else _costs(given, list(dict.fromkeys(["adamw", *rates])), always)
    path = given.out / "rows.jsonl"
    for name, some in rates.items():
        for lr in some:
            row = {"recipe": given.recipe, "optimizer": name, "lr": lr, "set": given.set, "minutes": given.minutes}
            row |= {"steps_asked": given.steps, "seed": given.seed}
            if any(all(done.get(key) == row[key] for key in KEY) for done in rows_in([path])):
                continue
            found = _run(given, row, always, costs)
            if found is None:
                return  # stopped by a signal: the same command goes on with it
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row | found) + "\n")
            _write_table(given.out, rows_in([path]))


def _costs(given: argparse.Namespace, names: Sequence[str], always: Sequence[str]) -> dict[str, float]:
    """Return how long a step of each optimizer takes, as a multiple of AdamW's; measured once."""
    path = given.out / "costs.json"
    known: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}
    if not set(names) <= set(known):
        loops = {name: _steps(given, name, always) for name in names}
        seconds = medians(loops, TIMED)
        known |= {name: seconds[name] / seconds["adamw"] for name in names}
        path.write_text(json.dumps(known))
    return known


def _steps(given: argparse.Namespace, name: str, always: Sequence[str]):  # type: ignore[no-untyped-def]
    """Return a function that takes the next step of a run."""
    recipe = recipes.load(given.recipe, [*always, f"optim.name={name}", f"data.store={json.dumps(str(given.store))}"])
    train, _ = build.open_stores(recipe.data)
    machine = DeviceSetup.from_settings(recipe.run)
    contents = build.build_model(recipe, train)
    contents.network.to(machine.device)
    schedule = TrainingSchedule(recipe.phases, recipe.schedule, recipe.optim.lr)
    feed = build.build_feed(recipe, schedule, train, machine, contents.architecture)
    loop = Loop(
        contents.network,
        pretraining_objective(**recipe.objective),
        build_optimizer(contents.network, recipe.optim),
        clip=recipe.optim.clip,
        bf16=machine.bf16,
        compiled=machine.compiled,
    )
    numbers = iter(range(len(schedule)))
    return lambda: loop.step(feed[next(numbers)]).norm


def _run(given: argparse.Namespace, row: Json, always: Sequence[str], costs: dict[str, float]) -> Json | None:
    """Make one run, or go on with it; return its figures, or nothing if it was stopped."""
    name, lr = row["optimizer"], row["lr"]
    changes = [*always, f"optim.name={name}", f"optim.lr={lr}"]
    if given.minutes:
        changes.append(f"run.minutes={given.minutes}")
    else:
        recipe = recipes.load(given.recipe, always)
        total = sum(phase.steps for phase in recipe.phases)
        factor = (given.steps or total) / total / costs[name]
        steps = [max(1, round(phase.steps * factor)) for phase in recipe.phases]
        changes += [f"phases.{number}.steps={count}" for number, count in enumerate(steps)]
        changes += [f"schedule.warmup={round(recipe.schedule.warmup * factor)}", "run.minutes=0"]
    out = given.out / "-".join([name, f"{lr:g}", *(text.replace("=", "") for text in given.set), f"seed{given.seed}"])
    print(f"{out.name}: {' '.join(changes)}", flush=True)
    run = bertree.pretrain(given.recipe, store=given.store, out=out, resume=True, overrides=changes)
    if run.signal is not None:
        return None
    lines = rows_in([out / "metrics.jsonl"])
    last = [line for line in lines if line["kind"] == "eval"][-1]
    end = next(line for line in lines if line["kind"] == "end")
    found: Json = {key: last[key] for key in ("mlm", "perplexity", "accuracy")}
    return found | {"steps": end["step"], "tokens": end["tokens"], "seconds": end["seconds"], "cost": costs.get(name)}


def _write_table(out: Path, rows: Sequence[Json]) -> None:
    """Write all rows, the best of each optimizer in bold."""
    best = {name: min(row["perplexity"] for row in rows if row["optimizer"] == name) for name in _names(rows)}
    common = [text for text in rows[0]["set"] if all(text in row["set"] for row in rows)]
    lines = []
    for row in sorted(rows, key=lambda row: (row["optimizer"], row["set"], row["lr"])):
        mark = "**" if row["perplexity"] == best[row["optimizer"]] else ""
        settings = " ".join(text for text in row["set"] if text not in common)
        cost = "" if row["cost"] is None else f"{row['cost']:.2f}"
        size = [f"{row['steps']:,}", f"{row['tokens']:,}"]
        scores = [f"{mark}{row['perplexity']:.2f}{mark}", f"{row['accuracy']:.1%}"]
        lines.append([row["optimizer"], f"{row['lr']:g}", settings, cost, *size, *scores])
    head = ["optimizer", "rate", "settings", "time of a step", "steps", "tokens", "held-out perplexity", "accuracy"]
    always = f"All runs: {' '.join([rows[0]['recipe'], *common])}"
    text = f"{environment()}\n\n{always}\n\n{table(head, lines)}\n"
    (out / "table.md").write_text(text, encoding="utf-8")


def _names(rows: Sequence[Json]) -> list[str]:
    return list(dict.fromkeys(row["optimizer"] for row in rows))


if __name__ == "__main__":
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    main()
