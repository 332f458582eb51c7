"""Make a small general model from text and a sentence encoder by bertree's own commands, then measure it.

    python -m benchmarks.default_build TEACHER --text wiki.txt books.txt ... --data DATA --out OUT

1. texts: articles and short texts of --text and of the training files in DATA (benchmarks/short_texts.py), without
   what is measured on below;
2. held, store: two token stores, one of them held out, with the teacher's tokenizer;
3. distill: the student learns masked tokens and the teacher's vectors (recipe small-sentence-encoder; --student names
   another);
4. pack: OUT/default, as int8; and OUT/huggingface, if transformers can read it;
5. table: benchmarks/default_table.py, beside the bundled model and the teacher;
6. tasks: the six tasks of benchmarks/default.py, and the table again with them.

Every step is a process with a time limit (--limit distill=400, seconds). A step that was done is not done again; one
that was stopped, by its limit or by a kill, goes on from its last checkpoint when the command is run again, and the
seconds of each are a line in OUT/steps.jsonl. --set distill:run.minutes=1 changes the settings of a step, --only names
steps. DATA is a folder with glue/, snli/, sts/, squad/, lambada/ and agnews/.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

LIMITS = {"texts": 300, "held": 60, "store": 300, "distill": 1200, "pack": 60, "table": 150, "tasks": 300}
BERTREE = (sys.executable, "-m", "bertree")
MODULE = (sys.executable, "-m")
HEADER = "store.json"  # of a store that is finished
# Files of DATA: texts to learn from, and what is measured on.
TRAINING = ("glue/*/train*", "snli/train*", "squad/*train*", "squad/squadshifts*", "agnews/train*")
MEASURED = ("squad/*dev*", "sts", "glue/STS-B", "glue/*/dev*", "lambada", "agnews/test*")


@dataclass(frozen=True)
class Step:
    """Commands that one after the other make some files; those that are there are not made again."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    output: Path  # exists when the step is done
    needs: tuple[Path, ...] = field(default=())


def steps(options: argparse.Namespace) -> list[Step]:
    """All steps, in order."""
    out, data = options.out, options.data
    texts, store, held, packed = out / "texts", out / "store", out / "held", out / "default"
    student, rows, scores = out / "student" / "model", out / "table.jsonl", out / "tasks.jsonl"

    def settings(name: str, *usual: str) -> tuple[str, ...]:
        own = [entry.partition(":")[2] for entry in options.set if entry.partition(":")[0] == name]
        return (*usual, *own)

    measured = _files(data, MEASURED)
    training = [path for path in _files(data, TRAINING) if not Path(path).is_relative_to(data / "glue" / "STS-B")]
    write: tuple[str, ...] = (*MODULE, "benchmarks.short_texts", "--out", str(texts), "--workers", str(options.workers))
    write += ("--text", *map(str, options.text), "--tasks", *training, "--without", *measured)
    prepare = (*BERTREE, "prepare", "--tokenizer", str(options.teacher))
    distill: tuple[str, ...] = (
        *BERTREE,
        "distill",
        str(options.teacher),
        "--student",
        options.student,
        "--store",
        str(store),
    )
    distill += ("--seconds", "0", "--out", str(out / "student"), "--resume", f"data.held_out={held}")
    convert = (*BERTREE, "convert", str(student))
    models = ("--model", "today=default", "--model", f"teacher={options.teacher}", "--model", f"new={packed}")
    table: tuple[str, ...] = (*MODULE, "benchmarks.default_table", *models)
    table += ("--sts", str(data / "sts"), "--squad", str(data / "squad" / "squad-v1.1-dev.json.xz"))
    table += ("--held", str(data / "lambada" / "lambada_test.jsonl"), "--held", str(data / "agnews" / "test.tsv"))
    table += ("--out", str(rows), "--table", str(out / "table.md"), *_device())
    tasks: tuple[str, ...] = (*MODULE, "benchmarks.default", "--data", str(data / "glue"), "--qnli-split", "--models")
    tasks += ("--model", f"new={packed}", "--seeds", "3", "--out", str(scores), "--set", *settings("tasks", "epochs=5"))
    huggingface = ((*convert, str(out / "huggingface"), "--to", "huggingface"),) if options.huggingface else ()
    return [
        Step("texts", (write,), texts),
        Step("held", ((*prepare, f"{texts}/held/*.txt", "--out", str(held)),), held / HEADER, (texts,)),
        Step("store", ((*prepare, f"{texts}/*.txt", "--out", str(store)),), store / HEADER, (texts,)),
        Step("distill", ((*distill, *settings("distill")),), student, (store / HEADER, held / HEADER)),
        Step(
            "pack",
            ((*convert, str(packed), "--to", "bertree", "--precision", "int8"), *huggingface),
            packed,
            (student,),
        ),
        Step("table", (table,), out / "table.md", (packed,)),
        Step("tasks", (tasks, (*table, "--tasks", str(scores))), out / "tasks.done", (packed,)),
    ]


def _files(data: Path, patterns: Sequence[str]) -> list[str]:
    """The files and folders of DATA that are there."""
    return [str(path) for pattern in patterns for path in sorted(data.glob(pattern))]


def _device() -> tuple[str, ...]:
    import torch

    return ("--device", "cuda" if torch.cuda.is_available() else "cpu")


def run(step: Step, limit: float, out: Path) -> bool:
    """Run the commands of a step; return whether it is done. A process beyond the limit is asked to save and stop."""
    began = time.perf_counter()
    code = 0
    for command in step.commands:
        print("$", " ".join(command), flush=True)
        process = subprocess.Popen(command, env=os.environ)
        try:
            code = process.wait(max(1.0, limit - (time.perf_counter() - began)))
        except subprocess.TimeoutExpired:
            process.terminate()
            code = process.wait()
            print(f"{step.name}: stopped after {limit:g} s; run the same command again to go on", flush=True)
        if code:
            break
    if not code and step.output.name.endswith(".done"):
        step.output.touch()
    line = {"step": step.name, "seconds": round(time.perf_counter() - began, 1), "code": code}
    print(json.dumps(line), flush=True)
    with (out / "steps.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return not code and step.output.exists()


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="folder of a sentence encoder")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="articles: a paragraph a line")
    parser.add_argument("--data", type=Path, required=True, help="folder with glue, snli, sts, squad, lambada, agnews")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--student", default="small-sentence-encoder", help="recipe of the student")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that cut texts")
    parser.add_argument("--no-huggingface", dest="huggingface", action="store_false", help="transformers has no such")
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), help="these steps")
    parser.add_argument("--limit", nargs="+", default=[], metavar="STEP=SECONDS", help=f"instead of {LIMITS}")
    parser.add_argument("--set", nargs="+", default=[], metavar="STEP:KEY=VALUE", help="settings of a step's command")
    options = parser.parse_args()
    limits = dict(entry.partition("=")[::2] for entry in options.limit)
    if unknown := [
        name for name in (*limits, *(entry.partition(":")[0] for entry in options.set)) if name not in LIMITS
    ]:
        parser.error(f"{unknown[0]}: is no step; there are: {', '.join(LIMITS)}")
    options.limits = LIMITS | {name: float(value) for name, value in limits.items()}
    return options


def main() -> None:
    """Do what is not done yet; stop at the first step that does not come to its end."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    for step in steps(options):
        if step.output.exists() or (options.only and step.name not in options.only):
            continue
        if missing := [path for path in step.needs if not path.exists()]:
            raise SystemExit(f"{step.name}: {missing[0]} is not there yet; run the step that makes it")
        if not run(step, options.limits[step.name], options.out):
            raise SystemExit(1)
    print(f"{options.out}: done", flush=True)


if __name__ == "__main__":
    main()
