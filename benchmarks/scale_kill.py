"""Is a run on several ranks, of which one after the other is killed, the same to the byte as one that is not?

    python -m benchmarks.scale_kill [--meshes zero=3 ...] [--kills 10] [--ranks 2] [--steps 60]

For each mesh a small run with dropout, two phases and a checkpoint every second step, as a user starts it: torchrun and
`bertree pretrain`. Once without interruption; then again while a random rank is killed with SIGKILL at a random moment,
every other time as soon as a half-written checkpoint is seen on the disk. torchrun starts all ranks again after each
kill. Model and last checkpoint (weights and moments of all ranks) of both must have the same bytes. Fails if not.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common import CORPUS, environment, table
from bertree.data.store_builder import build_store
from bertree.files.formats import file_hash
from bertree.text import tokenizer_training
from bertree.text.corpus import Corpus

MESHES = ("zero=0", "zero=3", "tensor=2", "zero=3 tensor=2")
# A restart may fail for its own reasons: gloo keeps an address of a process that is gone.
RESTARTS = 3  # for each kill
RECIPE = """
extends = "bert-base"
[model]
layers = 2
width = 64
heads = 2
max_positions = 128
dropout = 0.1
[optim]
lr = 1e-3
[schedule]
warmup = 10
[run]
device = "cpu"
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


class Kill(NamedTuple):
    """What a kill met."""

    rank: int
    steps: int  # done
    newest: int  # step of the newest checkpoint
    in_a_save: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), help="settings of [scale], with spaces between")
    parser.add_argument("--kills", type=int, default=10, help="of each mesh")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    print(f"{environment()}\n", flush=True)
    bad = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        store, most = make_store(place), options.steps * 2 // 3
        text = RECIPE.format(most=most, rest=options.steps - most)
        (place / "bert.toml").write_text(text)
        for mesh in options.meshes:
            command = ["pretrain", str(place / "bert.toml"), "--store", str(store)]
            command += [f"scale.{setting}" for setting in mesh.split()]
            ranks = options.ranks * (2 if "zero" in mesh and "tensor" in mesh else 1)
            if not compare(mesh, place, command, ranks, options.kills, random.Random(options.seed)):
                bad.append(mesh)
    if bad:
        sys.exit(f"not the same bytes: {', '.join(bad)}")


def compare(mesh: str, place: Path, command: list[str], ranks: int, kills: int, moments: random.Random) -> bool:
    """One mesh: both runs, what was done to the second, and whether they are equal."""
    uninterrupted, killed = place / f"{mesh}-whole", place / f"{mesh}-killed"
    assert launch(command, uninterrupted, ranks).wait() == 0
    last = steps_done(uninterrupted)
    process = launch(command, killed, ranks, RESTARTS * kills)
    steps = sorted(moments.randint(0, last * 9 // 10) for _ in range(kills))
    rows = [kill_a_rank(process, killed, step, number % 2 == 0, moments) for number, step in enumerate(steps, 1)]
    code = process.wait()
    hashes = [result_hashes(out) for out in (uninterrupted, killed)]
    files = [
        (name, *(hash_of.get(name, "-")[:12] for hash_of in hashes)) for name in sorted({*hashes[0]} | {*hashes[1]})
    ]
    print(f"## {ranks} ranks, {mesh}; {last} steps\n")
    shown = [(number, *kill[:3], "yes" if kill.in_a_save else "no") for number, kill in enumerate(rows, 1)]
    print(table(["kill", "of rank", "steps done", "newest checkpoint", "caught in a save"], shown))
    print(f"\n{table(['', 'uninterrupted', f'{len(rows)} kills'], files)}\n", flush=True)
    return code == 0 and hashes[0] == hashes[1]


def make_store(place: Path) -> Path:
    """A token store of the text in this repository."""
    documents = list(Corpus([str(CORPUS)]).documents())
    tokenizer = tokenizer_training.train(lambda: documents, "wordpiece", 4000)
    build_store(Corpus([str(CORPUS)]), tokenizer, place / "store")
    return place / "store"


def launch(command: list[str], out: Path, ranks: int, restarts: int = 0) -> "subprocess.Popen[bytes]":
    """Start the command on several ranks, quietly."""
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    if restarts:
        torchrun += ["--max-restarts", str(restarts)]
    words = [sys.executable, "-m", *torchrun, "-m", "bertree", *command, "--out", str(out)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_a_rank(
    process: "subprocess.Popen[bytes]", out: Path, step: int, in_a_save: bool, moments: random.Random
) -> Kill:
    """Kill a random rank a moment after so many steps, of which one at least was taken since the last start."""
    before, wait = started(out), moments.uniform(0, 0.3)
    while process.poll() is None and (started(out) == before or steps_done(out) < step):
        time.sleep(0.005)
    time.sleep(wait)
    while in_a_save and process.poll() is None and not list((out / "checkpoints").glob(".step-*")):
        time.sleep(0.0002)
    ranks = ranks_of(process.pid)
    if not ranks:
        sys.exit("the run was over before a rank was killed; give more --steps")
    rank = moments.choice(sorted(ranks))
    os.kill(ranks[rank], signal.SIGKILL)
    half = any((out / "checkpoints").glob(".step-*"))
    return Kill(rank, steps_done(out), int(newest(out).name.removeprefix("step-")), half)


def ranks_of(parent: int) -> dict[int, int]:
    """The process of each rank that torchrun has started."""
    processes: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            above = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            settings = (path / "environ").read_bytes().split(b"\0") if above == parent else []
        except OSError:  # it has ended meanwhile
            continue
        own = [setting for setting in settings if setting.startswith(b"RANK=")]
        processes |= {int(setting.removeprefix(b"RANK=")): int(path.name) for setting in own}
    return processes


def result_hashes(out: Path) -> dict[str, str]:
    """Hashes of the model and of the newest checkpoint's tensors."""
    checkpoint = newest(out)
    hashes = {f"{checkpoint.name}/{path.name}": file_hash(path) for path in checkpoint.glob("*.safetensors")}
    model = out / "model" / "model.safetensors"
    return hashes | ({"model": file_hash(model)} if model.is_file() else {})


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
    lines = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


def newest(out: Path) -> Path:
    """The newest checkpoint, or where the first would be."""
    return max((out / "checkpoints").glob("step-*"), default=out / "checkpoints" / "step-0")


if __name__ == "__main__":
    main()
