"""Small runs of seven families, and the command in processes of their own that cost next to nothing to start.

The processes are forked from a server that has imported everything: what they run is `bertree`'s main function,
and a SIGKILL is as final there as anywhere.
"""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random

from safetensors.torch import load_file

from tests.support import faults
from tests.support.command import make_tree
from tests.support.processes import PATIENCE, PROCESSES

context = PROCESSES

MODEL = """
[model]
preset = "{preset}"
layers = 2
width = 32
heads = 2
max_positions = 64
dropout = 0.1
attention_dropout = 0.0
"""
RUN = """
[run]
device = "cpu"
micro_tokens = 256
log_every = 1
eval_every = 5
eval_tokens = 512
save_every = 1

[[phases]]
steps = 6
max_length = 32
batch_tokens = 512

[[phases]]
steps = 4
max_length = 64
batch_tokens = 512
"""
RECIPES = {
    "bert": """
extends = "bert-base"
[data]
held_out_share = 0.1
masking = "token+static2"
[schedule]
warmup = 3
""",
    "roberta": """
extends = "roberta-base"
[data]
held_out_share = 0.1
[schedule]
warmup = 3
growth = 4
""",
    "albert": """
extends = "albert-base"
[data]
held_out_share = 0.1
[schedule]
warmup = 3
""",
    "transformer-xl": """
extends = "transformer-xl-base"
[data]
held_out_share = 0.1
[schedule]
warmup = 3
growth = 4
""",
    "xlnet": """
extends = "xlnet-base"
[data]
held_out_share = 0.1
[schedule]
warmup = 3
growth = 4
""",
}
RECIPES["reformer"] = """
extends = "reformer-tiny"
[data]
held_out_share = 0.1
[schedule]
warmup = 3
"""
RECIPES["elmo"] = """
extends = "elmo-tiny"
[data]
held_out_share = 0.1
[schedule]
warmup = 3
"""
REMEMBERING = ("transformer-xl", "xlnet")  # families that read in lanes and mask nothing
UNMASKED = (*REMEMBERING, "reformer", "elmo")
PRESETS = {"elmo": "elmo-tiny"}
MORE_AXES = {
    "albert": "embedding_width = 16\n",
    "transformer-xl": 'ffn_width = 64\nmemory = 40\ncutoffs = "100,300"\nembedding_divisor = 2\n',
    "xlnet": "ffn_width = 64\nmemory = 40\n",
    "reformer": 'axial_shape = "8,8"\nchunk_length = 16\nlsh_chunk_length = 16\nffn_chunk = 64\n',
    "elmo": 'ffn_width = 16\nfilters = "1:4,3:8"\ncutoffs = "100,300"\n',
}


def recipe(family: str, folder: Path) -> Path:
    """The recipe of a small run, as a file."""
    path = folder / f"{family}.toml"
    path.write_text(
        RECIPES[family] + MODEL.format(preset=PRESETS.get(family, f"{family}-base")) + MORE_AXES.get(family, "") + RUN
    )
    return path


def start(*arguments: str, log: Path | None = None, fault: str = "") -> BaseProcess:
    """`bertree` with these arguments; what it says goes to a file; faults as in tests/support/faults.py."""
    process = context.Process(target=_command, args=(arguments, log, fault, os.getcwd()))
    process.start()
    return process


def finish(*arguments: str, log: Path | None = None, fault: str = "") -> int:
    """The same to its end; the exit code."""
    process = start(*arguments, log=log, fault=fault)
    process.join(PATIENCE)
    assert process.exitcode is not None, "the command hangs"
    return process.exitcode


def kill(*arguments: str, log: Path, after: Iterable[int], moments: Random, fault: str = "") -> None:
    """Run it once for each number, and each time kill it a moment after it took so many steps."""
    for steps in after:
        moment = f"kill:{steps}:{moments.uniform(0, 20):.3f}"
        assert finish(*arguments, log=log, fault=",".join(filter(None, (moment, fault)))) == -9, log.read_text()


def results(out: Path) -> dict[str, bytes]:
    """What must not depend on how often a run was stopped: the model, and the newest checkpoint's tensors."""
    newest = max((out / "checkpoints").glob("step-*"))
    load_file(newest / "state.safetensors")
    return {
        "model": (out / "model" / "model.safetensors").read_bytes(),
        newest.name: (newest / "state.safetensors").read_bytes(),
    }


def _command(arguments: tuple[str, ...], log: Path | None, fault: str, where: str) -> None:
    os.chdir(where)
    faults.plant(fault)
    run_command(arguments, log)


def run_command(arguments: Sequence[str], log: Path | None) -> None:
    """Become `bertree` with these arguments; what it says goes to a file."""
    import torch
    import typer.main

    from bertree.cli.main import main

    typer.main.get_command = make_tree
    torch.set_num_threads(1)  # products this small take longer with two, and much longer beside other work
    with open(log or os.devnull, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["bertree", *arguments]
    main()


def newest_step(out: Path, seed: int = 0) -> int:
    """Return the step of the newest checkpoint of a fine-tuning run."""
    return max((int(path.name[5:]) for path in (out / f"seed-{seed}" / "checkpoints").glob("step-*")), default=0)


def assert_same_run(left: Path, right: Path) -> None:
    """Check that two fine-tuning runs ended in the same bytes, and that nothing is left over."""
    for name in ("model/model.safetensors", "model/bertree.toml", "metrics.json", "predictions.jsonl"):
        assert (left / name).read_bytes() == (right / name).read_bytes(), name
    histories = []
    for out in (left, right):
        lines = [json.loads(line) for line in (out / "seed-0" / "metrics.jsonl").read_text().splitlines()]
        timed = ("seconds", "waited", "tokens_per_s")
        kept = [line for line in lines if line["kind"] == "eval"]
        histories.append([{key: value for key, value in line.items() if key not in timed} for line in kept])
    assert histories[0] == histories[1]
    assert not list(left.rglob(".*")), "nothing half written is left"
    assert not list(left.rglob("checkpoints"))
