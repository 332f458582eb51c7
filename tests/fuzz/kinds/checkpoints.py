"""Runs that were stopped: checkpoints, their headers and tensors, logs, and what else lies in the folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from bertree.train.checkpoint_files import header_text
from tests.fuzz.case import Case, Change, Kind
from tests.fuzz.mutations import raw, tensors, trees
from tests.fuzz.running import Result, Runner
from tests.fuzz.samples import FINETUNE, PRETRAIN

STEP = "run/checkpoints/step-00000005"
TUNING_STEP = "tuning/seed-0/checkpoints/step-00000005"
ODD_NAMES = ("step-²", "step-00000008.old", "step-", "step--0000001", "step-99999999", "step-5", ".step-00000003.xyz")


def _forge(path: Path, edit: Callable[[bytes], bytes]) -> None:
    """Change the tensors of a checkpoint and give it the right checksum."""
    state = path / "state.safetensors"
    state.write_bytes(edit(state.read_bytes()))
    header = json.loads((path / "state.json").read_text())
    header["sha256"] = hashlib.sha256(state.read_bytes()).hexdigest()
    (path / "state.json").write_text(header_text(header))


def _forged(step: str, random: Random) -> Change:
    """Forge names and shapes, not numbers: no reader can tell those from the right ones."""
    name = random.choice([name for name in tensors.EDITS if name not in tensors.IN_BODY])
    seed = random.random()

    def make(path: Path) -> None:
        _forge(path, lambda data: tensors.EDITS[name](data, Random(seed)))

    return Change(step, f"forged with a right checksum: {name} ({seed})", make)


def _swapped(path: Path) -> None:
    other = path.with_name("step-00000004")
    path.rename(path.with_name("x"))
    other.rename(path)
    path.with_name("x").rename(other)


def _swapped_headers(path: Path) -> None:
    left, right = (folder / "state.json" for folder in (path, path.with_name("step-00000004")))
    kept = left.read_bytes()
    left.write_bytes(right.read_bytes())
    right.write_bytes(kept)


def _later(step: int) -> Callable[[Path], None]:
    """Claim another step, in the name and in the header."""

    def make(path: Path) -> None:
        target = path.with_name(f"step-{step:08d}")
        shutil.copytree(path, target)
        header = json.loads((target / "state.json").read_text())
        header["step"] = step
        (target / "state.json").write_text(header_text(header))

    return make


def _odd(name: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        target = path.with_name(name)
        if name.endswith("8.old"):
            os.symlink("nothing", target)
        else:
            target.mkdir()

    return make


FOLDER_CHANGES: dict[str, Callable[[Path], None]] = {
    "exchange two checkpoints": _swapped,
    "exchange two headers": _swapped_headers,
    **{f"a checkpoint of step {step}": _later(step) for step in (1, 6, 7, 8, 9, 99)},
    **{f"a folder {name}": _odd(name) for name in ODD_NAMES},
}


def _pretraining(random: Random) -> Case:
    draw, run = random.random(), "run"
    if draw < 0.3:
        changes = [trees.json_change(f"{STEP}/state.json", random)]
    elif draw < 0.4:
        changes = [trees.json_change(f"{STEP}/state.json", random, ("extra",))]
    elif draw < 0.5:
        changes = [random.choice((tensors.tensors_change, raw.bytes_change))(f"{STEP}/state.safetensors", random)]
    elif draw < 0.65:
        changes = [_forged(STEP, random)]
    elif draw < 0.8:
        name = random.choice(list(FOLDER_CHANGES))
        changes = [Change(STEP, name, FOLDER_CHANGES[name])]
    elif draw < 0.9:
        changes = [random.choice((raw.bytes_change, trees.json_lines_change))(f"{run}/metrics.jsonl", random)]
    else:
        file = random.choice(("checkpoints/best.json", "recipe.toml", "environment.json", "metrics.jsonl"))
        make = random.choice((raw.bytes_change, raw.path_change, _tree_change))
        changes = [make(f"{run}/{file}", random)]
    sample = random.choice(("run", "run", "run-xl"))
    recipe = "recipe-xl.toml" if sample == "run-xl" else "recipe.toml"
    samples = {"run": f"{sample}-stopped", "store": "store", "recipe.toml": recipe}
    if random.random() < 0.15:
        return Case(samples, changes, ["verify", "run", "--json"])
    writes = ("run", "store/index")
    return Case(
        samples, changes, list(PRETRAIN), check=_same_model, writes=writes, notes={"out": "run", "expected": sample}
    )


def _tree_change(file: str, random: Random) -> Change:
    if file.endswith(".toml"):
        return trees.toml_change(file, random)
    return (trees.json_lines_change if file.endswith(".jsonl") else trees.json_change)(file, random)


def _tuning(random: Random) -> Case:
    draw = random.random()
    if draw < 0.4:
        changes = [trees.json_change(f"{TUNING_STEP}/state.json", random, random.choice(((), ("extra",))))]
    elif draw < 0.5:
        changes = [
            random.choice((tensors.tensors_change, raw.bytes_change))(f"{TUNING_STEP}/state.safetensors", random)
        ]
    elif draw < 0.7:
        changes = [_forged(TUNING_STEP, random)]
    elif draw < 0.8:
        names = [name for name in FOLDER_CHANGES if not name.startswith("exchange")]
        name = random.choice(names)
        changes = [Change(TUNING_STEP, name, FOLDER_CHANGES[name])]
    else:
        file = random.choice(("seed-0/metrics.jsonl", "seed-0/recipe.toml", "seed-0/environment.json"))
        changes = [random.choice((raw.bytes_change, raw.path_change, _tree_change))(f"tuning/{file}", random)]
    samples: dict[str, Any] = {"tuning": "tuning-stopped", "bertree": "bertree", "data": "data"}
    return Case(
        samples,
        changes,
        list(FINETUNE),
        check=_same_model,
        writes=("tuning",),
        codes=(0, 1, 2),
        notes={"out": "tuning", "expected": "tuning"},
    )


def _same_model(case: Case, folder: Path, result: Result, runner: Runner) -> str:
    """Check that the resumed run ends in the model of the run that was never stopped."""
    out, expected = case.notes["out"], case.notes["expected"]
    model = Path("model", "model.safetensors")
    if (folder / out / model).read_bytes() != (runner.samples / expected / model).read_bytes():
        return "the run was accepted and ended in another model"
    left = [path.name for path in (folder / out).rglob(".*")]
    return f"left over: {left[0]}" if left else ""


KINDS = (
    Kind("checkpoint", "stopped pretraining runs: checkpoints, forged ones, logs, odd names", _pretraining),
    Kind("checkpoint-tuning", "stopped fine-tuning runs", _tuning),
)
