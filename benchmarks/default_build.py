"""Make a small general model from a teacher by bertree's own commands, then measure it: one command, which resumes.

    python -m benchmarks.default_build TEACHER --store STORE --pairs PAIRS --data DATA --out OUT

1. distill: a student on the teacher's masked tokens (recipe small-modernbert-h200-5min; --student names another);
2. sentences: the student trained by ranking on all *.jsonl* of PAIRS (benchmarks/pairs.py), the best evaluation on
   STS-B's dev split is kept;
3. blend: weights between the two, with the MLM head, as int8 (benchmarks/blend.py);
4. dense: a linear layer after the pooling, trained on the same pairs with the encoder frozen: unrelated texts come
   apart, masks are filled as before;
5. pack: OUT/default, as int8; and OUT/huggingface, if transformers can read it;
6. table: benchmarks/default_table.py, beside the bundled model;
7. tasks: the six tasks of benchmarks/default.py, and the table again with them.

Every step is a process with a time limit (--limit distill=400, seconds). A step that was done is not done again; one
that was stopped, by its limit or by a kill, goes on from its last checkpoint when the command is run again, and the
seconds of each are a line in OUT/steps.jsonl. --set distill:run.minutes=1 changes the settings of a step, --only names
steps. DATA is a folder with glue/, sts/, squad/, lambada/ and agnews/.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

LIMITS = {"distill": 480, "sentences": 300, "blend": 60, "dense": 120, "pack": 60, "table": 150, "tasks": 300}
BERTREE = (sys.executable, "-m", "bertree")
RANKING = ("--loss", "ranking", "scale=20", "max_length=256", "normalise=true")


@dataclass(frozen=True)
class Step:
    """Commands that one after the other make some files; those that are there are not made again."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    made: Path  # exists when the step is done
    needs: tuple[Path, ...] = field(default=())


def steps(given: argparse.Namespace) -> list[Step]:
    """All steps, in order."""
    out, data = given.out, given.data
    student, sentences, blended = out / "student" / "model", out / "sentences" / "model", out / "blended"
    dense, packed = out / "dense" / "model", out / "default"
    pairs = [part for path in sorted(given.pairs.glob("*.jsonl*")) for part in ("--data", str(path))]
    dev, rows, scores = str(data / "glue" / "STS-B" / "dev.tsv"), out / "table.jsonl", out / "tasks.jsonl"

    def settings(name: str, *usual: str) -> tuple[str, ...]:
        own = [entry.partition(":")[2] for entry in given.set if entry.partition(":")[0] == name]
        return (*usual, *own)

    def train(start: Path, folder: str, *more: str) -> tuple[str, ...]:
        to = ("--dev", dev, "--out", str(out / folder), "--resume")
        return (*BERTREE, "embeddings", "train", str(start), *pairs, *to, *RANKING, *settings(folder, *more))

    distill = ("distill", str(given.teacher), "--student", given.student, "--store", str(given.store), "--seconds", "0")
    blend: tuple[str, ...] = (
        "benchmarks.blend",
        str(student),
        str(sentences),
        "--held",
        str(given.store),
        "--held-share",
        "0.01",
    )
    blend += ("--sts", dev)
    convert = (*BERTREE, "convert", str(dense))
    table: tuple[str, ...] = ("benchmarks.default_table", "--model", "today=default", "--model", f"new={packed}")
    table += ("--sts", str(data / "sts"), "--squad", str(data / "squad" / "squad-v1.1-dev.json.xz"))
    table += ("--held", str(data / "lambada" / "lambada_test.jsonl"), "--held", str(data / "agnews" / "test.tsv"))
    table += ("--out", str(rows), "--table", str(out / "table.md"), *_device())
    tasks: tuple[str, ...] = (
        "benchmarks.default",
        "--data",
        str(data / "glue"),
        "--qnli-split",
        "--models",
        "--model",
        f"new={packed}",
    )
    tasks += ("--seeds", "3", "--set", *settings("tasks", "epochs=5"), "--out", str(scores))
    module = (sys.executable, "-m")
    return [
        Step(
            "distill", ((*BERTREE, *distill, "--out", str(out / "student"), "--resume", *settings("distill")),), student
        ),
        Step("sentences", (train(student, "sentences", "batch=512", "epochs=2"),), sentences, (student,)),
        Step(
            "blend",
            ((*module, *blend, *settings("blend", "--share", str(given.share), "--out", str(blended))),),
            blended,
            (student, sentences),
        ),
        Step(
            "dense",
            (train(blended, "dense", "batch=512", "epochs=1", "frozen=true", f"dense={given.dense}"),),
            dense,
            (blended,),
        ),
        Step(
            "pack",
            ((*convert, str(packed), "--to", "bertree", "--precision", "int8"),)
            + (((*convert, str(out / "huggingface"), "--to", "huggingface"),) if given.huggingface else ()),
            packed,
            (dense,),
        ),
        Step("table", ((*module, *table),), out / "table.md", (packed,)),
        Step("tasks", ((*module, *tasks), (*module, *table, "--tasks", str(scores))), out / "tasks.done", (packed,)),
    ]


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
    if not code and step.made.name.endswith(".done"):
        step.made.touch()
    line = {"step": step.name, "seconds": round(time.perf_counter() - began, 1), "code": code}
    print(json.dumps(line), flush=True)
    with (out / "steps.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return not code and step.made.exists()


def parsed() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("teacher", type=Path, help="model folder with an MLM head")
    parser.add_argument("--store", type=Path, required=True, help="token store of the teacher's tokenizer")
    parser.add_argument("--pairs", type=Path, required=True, help="folder of pairs, of benchmarks/pairs.py")
    parser.add_argument("--data", type=Path, required=True, help="folder with glue, sts, squad, lambada, agnews")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--student", default="small-modernbert-h200-5min", help="recipe of the student")
    parser.add_argument("--share", type=float, default=0.6, help="of the sentence encoder's weights in the blend")
    parser.add_argument("--dense", type=int, default=256, help="width of the vectors")
    parser.add_argument("--no-huggingface", dest="huggingface", action="store_false", help="transformers has no such")
    parser.add_argument("--only", nargs="+", choices=list(LIMITS), help="these steps")
    parser.add_argument("--limit", nargs="+", default=[], metavar="STEP=SECONDS", help=f"instead of {LIMITS}")
    parser.add_argument("--set", nargs="+", default=[], metavar="STEP:KEY=VALUE", help="settings of a step's command")
    options = parser.parse_args()
    given = dict(entry.partition("=")[::2] for entry in options.limit)
    if unknown := [
        name for name in (*given, *(entry.partition(":")[0] for entry in options.set)) if name not in LIMITS
    ]:
        parser.error(f"{unknown[0]}: is no step; there are: {', '.join(LIMITS)}")
    options.limits = LIMITS | {name: float(value) for name, value in given.items()}
    return options


def main() -> None:
    """Do what is not done yet; stop at the first step that does not come to its end."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    for step in steps(options):
        if step.made.exists() or (options.only and step.name not in options.only):
            continue
        if missing := [path for path in step.needs if not path.exists()]:
            raise SystemExit(f"{step.name}: {missing[0]} is not there yet; run the step that makes it")
        if not run(step, options.limits[step.name], options.out):
            raise SystemExit(1)
    print(f"{options.out}: done", flush=True)


if __name__ == "__main__":
    main()
