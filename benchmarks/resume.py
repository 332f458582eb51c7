"""Is a run that is killed again and again the same to the byte as one that is not?

    python -m benchmarks.resume [--families bert roberta albert] [--kills 10] [--steps 120] [--device cpu]

For each family a small run with dropout, two phases and a checkpoint every second step, as a user starts it:
`bertree pretrain`. Once without interruption; then again, killed with SIGKILL at random moments, every other
time as soon as a half-written checkpoint is seen on the disk, and resumed after each. The model and the last
checkpoint (weights and moments) of both must have the same bytes. Fails if they have not.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import CORPUS, environment, table
from bertree.data.prepare import prepare
from bertree.files.formats import file_hash
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus

FAMILIES = {
    "bert": "MLM + NSP, static masks, AdamW",
    "roberta": "MLM, dynamic masks, AdamW, batch growing to 4 times",
    "albert": "n-gram MLM + SOP, LAMB",
}
RECIPE = """
extends = "{family}-base"
[model]
layers = 2
width = 64
heads = 2
max_positions = 128
dropout = 0.1
{more}
[optim]
lr = 1e-3
[schedule]
warmup = 10
growth = {growth}
[run]
device = "{device}"
log_every = 1
eval_every = 10
eval_tokens = 8192
save_every = 2
micro_tokens = 1024
[[phases]]
steps = {most}
max_length = 64
batch_tokens = 2048
[[phases]]
steps = {rest}
max_length = 128
batch_tokens = 2048
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    print(f"{environment()}\n", flush=True)
    bad = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        store = make_store(place)
        for family in given.families:
            same = compare(family, place, store, given.kills, given.steps, given.device, random.Random(given.seed))
            bad += [] if same else [family]
    if bad:
        sys.exit(f"not the same bytes: {', '.join(bad)}")


def make_store(place: Path) -> Path:
    """A token store of the text in this repository."""
    documents = list(Corpus([str(CORPUS)]).documents())
    tokenizer = tokenizer_training.train(lambda: documents, "wordpiece", 4000)
    prepare(Corpus([str(CORPUS)]), tokenizer, place / "store")
    return place / "store"


def compare(family: str, place: Path, store: Path, kills: int, steps: int, device: str, moments: random.Random) -> bool:
    """One family: both runs, what was done to the second, and whether they are equal."""
    growth, more = (4 if family == "roberta" else 1), "embedding_width = 32" if family == "albert" else ""
    most = steps * 2 // 3
    text = RECIPE.format(family=family, growth=growth, more=more, device=device, most=most, rest=steps - most)
    (place / f"{family}.toml").write_text(text)
    command = [sys.executable, "-m", "bertree", "pretrain", str(place / f"{family}.toml"), "--store", str(store)]
    whole, killed = place / f"{family}-whole", place / f"{family}-killed"
    run(command, whole).wait()
    last, seconds = steps_done(whole), float(metrics(whole)[-1]["seconds"])
    rows: list[tuple[object, ...]] = []
    for number, step in enumerate(sorted(moments.randint(0, last * 9 // 10) for _ in range(kills)), 1):
        wait = moments.uniform(0, 2 * seconds / last)
        rows.append((number, *kill(command, killed, step, wait, number % 2 == 0)))
    code = run(command, killed, "--resume").wait()
    files = {"model": "model/model.safetensors", "last checkpoint": f"{newest(whole).name}/state.safetensors"}
    found = []
    for what, file in files.items():
        parent = "" if what == "model" else "checkpoints"
        hashes = [file_hash(out / parent / file)[:12] for out in (whole, killed)]
        found.append((what, *hashes, "the same" if hashes[0] == hashes[1] else "DIFFERENT"))
    print(f"## {family}: {FAMILIES[family]}; {last} steps\n")
    print(table(["kill", "steps done", "newest checkpoint", "caught in a save"], rows))
    print(f"\n{table(['', 'uninterrupted', f'{len(rows)} kills', ''], found)}\n", flush=True)
    return code == 0 and all(row[-1] == "the same" for row in found)


def run(command: list[str], out: Path, *more: str) -> "subprocess.Popen[bytes]":
    """The command, quietly."""
    return subprocess.Popen([*command, "--out", str(out), *more], stdout=subprocess.DEVNULL)


def kill(command: list[str], out: Path, step: int, wait: float, in_a_save: bool) -> tuple[int, int, str]:
    """Start or resume the run, and end it some seconds after a step."""
    process = run(command, out, *(["--resume"] if out.exists() else []))
    before = started(out)
    while process.poll() is None and (started(out) == before or steps_done(out) < step):
        time.sleep(0.002)
    time.sleep(wait)
    while in_a_save and process.poll() is None and not list((out / "checkpoints").glob(".step-*")):
        time.sleep(0.0002)
    process.kill()
    if process.wait() != -9:
        sys.exit("the run was over before it was killed; give more --steps")
    half = any((out / "checkpoints").glob(".step-*"))
    return steps_done(out), int(newest(out).name.removeprefix("step-")), "yes" if half else "no"


def started(out: Path) -> int:
    """Changes when a run begins to write: its file of metrics is made anew."""
    path = out / "metrics.jsonl"
    return path.stat().st_ino if path.is_file() else 0


def steps_done(out: Path) -> int:
    """The newest step in the metrics."""
    return max((int(line["step"]) for line in metrics(out) if line["kind"] == "train"), default=0)


def metrics(out: Path) -> list[dict[str, Any]]:
    """The lines a run has written, but for one that is cut off."""
    path = out / "metrics.jsonl"
    found = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def newest(out: Path) -> Path:
    """The newest checkpoint, or where the first would be."""
    return max((out / "checkpoints").glob("step-*"), default=out / "checkpoints" / "step-0")


if __name__ == "__main__":
    main()
