"""Fine-tune several pretrained models on the same tasks with the same seeds, and write one table.

    python -m benchmarks.task_scores xlnet=run-xlnet/model bert=run-bert/model --data tasks --out scores --jobs 6
    python -m benchmarks.task_scores new=run/model --data tasks --out glue --tasks mnli qqp sst-2 cola sts-b mrpc rte \
        --from rte=mnli mrpc=mnli sts-b=mnli --one-seed mnli qqp sst-2 --metric mrpc=accuracy qqp=accuracy

--data holds the folders of the tasks (RTE, MRPC, STS-B, SST-2, CoLA, QQP, MNLI, SNLI, RACE) as `bertree finetune` reads
them.
Every run is a process of its own, `--jobs` of them at a time, the longest tasks first; on one GPU they share it.
Settings are those of `bertree finetune`, the same for every model: --set key=value for all tasks, --set task:key=value
for one. With --from a task starts from the model of another one's first seed (`bertree finetune --from-task`). A run
that is done is one line of OUT/rows.jsonl and is not made again, so after a stop the same command goes on; a run that
was stopped halfway is resumed. OUT/table.md has the mean and the range over the seeds, in percent, of each task's first
score, or of the one that --metric names.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import environment, table
from benchmarks.standings import rows_in
from bertree.files.formats import Json

# The longest first, by the names of their folders.
TASKS = {
    "snli": "SNLI",
    "mnli": "MNLI",
    "qqp": "QQP",
    "race": "RACE",
    "sst-2": "SST-2",
    "cola": "CoLA",
    "sts-b": "STS-B",
    "mrpc": "MRPC",
    "rte": "RTE",
}
OWN_SETTINGS = {"race": {"batch": "16"}}  # that differ from the verb's

RUNNING: set[subprocess.Popen[bytes]] = set()


class Job(NamedTuple):
    """One fine-tuning."""

    name: str
    model: str
    task: str
    seed: int

    @property
    def key(self) -> tuple[str, str, int]:
        """What tells it from the others."""
        return self.name, self.task, self.seed


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--data", type=Path, required=True, help="folder with the tasks' folders")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument(
        "--from", nargs="+", default=[], metavar="TASK=TASK", dest="starts", help="start from that task"
    )
    parser.add_argument("--metric", nargs="+", default=[], metavar="TASK=METRIC", help="which score the table shows")
    parser.add_argument("--average", nargs="+", choices=list(TASKS), help="tasks of the average (default: all)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--one-seed", nargs="+", default=[], choices=list(TASKS), help="tasks that get one seed only")
    parser.add_argument("--jobs", type=int, default=1, help="fine-tunings at a time")
    parser.add_argument("--set", nargs="+", default=[], metavar="[TASK:]KEY=VALUE", help="settings of the fine-tunings")
    parser.add_argument("--seconds", type=float, default=0, help="start no run after so many seconds; 0: no limit")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.models = dict(model.partition("=")[::2] for model in options.models)
    if not all(options.models.values()):
        parser.error("give each model as NAME=FOLDER")
    options.starts, options.metric = (
        dict(pair.partition("=")[::2] for pair in pairs) for pairs in (options.starts, options.metric)
    )
    order = list(TASKS)
    for task, start in options.starts.items():
        if not {task, start} <= set(options.tasks) or order.index(start) >= order.index(task):
            parser.error(f"--from {task}={start}: both must be among the tasks, in the order {', '.join(order)}")
    return options


def settings(task: str, changes: Sequence[str]) -> list[str]:
    """Return a task's settings as words of the command line."""
    values = dict(OWN_SETTINGS.get(task, {}))
    for change in changes:
        key, _, value = change.partition("=")
        only, colon, own = key.rpartition(":")
        if not colon or only == task:
            values[own] = value
    return [f"{key}={value}" for key, value in values.items()]


def run(job: Job, options: argparse.Namespace) -> Json | None:
    """Fine-tune, and return the row; None if it failed, which its log tells."""
    out, start = _folder(job, options), options.starts.get(job.task)
    out.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "bertree", "finetune", job.model, "--task", job.task, "--quiet"]
    command += ["--data", str(options.data / TASKS[job.task]), "--out", str(out), f"seed={job.seed}"]
    command += settings(job.task, options.set)
    command += ["--from-task", str(_folder(job._replace(task=start, seed=0), options))] if start else []
    command += ["--resume"] if out.exists() else []
    threads = str(max(1, (os.cpu_count() or 1) // options.jobs))
    began = time.perf_counter()
    with out.with_suffix(".log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | {"OMP_NUM_THREADS": threads})
        RUNNING.add(process)
        code = process.wait()
        RUNNING.discard(process)
    if code not in (0, 1):  # 1: it has not learned, and says so
        print(f"{job.key}: exit code {code}, see {out.with_suffix('.log')}", flush=True)
        return None
    scores = json.loads((out / "metrics.json").read_text())
    (seed,) = scores["seeds"]
    return {
        "model": job.name,
        "task": job.task,
        "seed": job.seed,
        "metric": scores["metric"],
        "score": scores.get(scores["metric"]) or 0.0,
        "diverged": seed["diverged"],
        "seconds": round(time.perf_counter() - began, 1),
        "settings": settings(job.task, options.set) + ([f"from={start}"] if start else []),
        "scores": {key: value for key, value in seed.items() if isinstance(value, float)},
    }


def _folder(job: Job, options: argparse.Namespace) -> Path:
    """Return where a fine-tuning is written."""
    return Path(options.out / job.name / job.task / f"seed-{job.seed}")


def stop(number: int, frame: object) -> None:
    """Stop all fine-tunings, which save what they have, and end."""
    for process in list(RUNNING):
        process.terminate()
    for process in list(RUNNING):
        process.wait()
    os._exit(128 + number)


def summary(rows: Sequence[Json], options: argparse.Namespace) -> str:
    """Return the table: the mean of each task and model, and the lowest and highest score."""
    lines, tasks = [], options.tasks
    metrics = {row["task"]: row["metric"] for row in rows} | options.metric
    for name in options.models:
        cells: list[str] = []
        means: dict[str, float] = {}
        for task in tasks:
            own = [row for row in rows if (row["model"], row["task"]) == (name, task)]
            scores = [100 * row["scores"].get(metrics[task], row["score"]) for row in own]
            means |= {task: statistics.mean(scores)} if scores else {}
            cells.append(f"{means[task]:.1f} ({min(scores):.1f} to {max(scores):.1f})" if scores else "")
        counted = [means[task] for task in options.average or tasks if task in means]
        average = f"{statistics.mean(counted):.1f}" if len(counted) == len(options.average or tasks) else ""
        diverged = sum(bool(row["diverged"]) for row in rows if row["model"] == name)
        lines.append([name, *cells, average, diverged])
    head = ["model", *(f"{task}, {metrics.get(task, '')}" for task in tasks), "average", "runs that did not learn"]
    return table(head, lines)


def main() -> None:
    """Run what is not done yet, then write the table of all there is."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, stop)
    path, lock, began = options.out / "rows.jsonl", threading.Lock(), time.perf_counter()
    done = {(row["model"], row["task"], row["seed"]) for row in rows_in([path])}
    jobs = [
        Job(name, model, task, seed)
        for task in sorted(options.tasks, key=list(TASKS).index)
        for seed in range(1 if task in options.one_seed else options.seeds)
        for name, model in options.models.items()
    ]
    ended = {job.key: threading.Event() for job in jobs}
    for key in done & set(ended):
        ended[key].set()

    def work(job: Job) -> None:
        if start := options.starts.get(job.task):
            ended[job.name, start, 0].wait()  # it was begun before, as tasks are in order
        try:
            measure(job)
        finally:
            ended[job.key].set()

    def measure(job: Job) -> None:
        if options.seconds and time.perf_counter() - began > options.seconds:
            return
        if (row := run(job, options)) is not None:
            with lock, path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{time.perf_counter() - began:5.0f} s  {job.key}  {row['score']:.4f}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(work, (job for job in jobs if job.key not in done)))
    rows = rows_in([path])
    missing = len({job.key for job in jobs} - {(row["model"], row["task"], row["seed"]) for row in rows})
    text = summary(rows, options)
    note = f"{environment()}; {options.seeds} seeds: mean (lowest to highest)" + (
        f"; {missing} missing" if missing else ""
    )
    (options.out / "table.md").write_text(f"{note}\n\n{text}\n", encoding="utf-8")
    print(f"{note}\n\n{text}")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
