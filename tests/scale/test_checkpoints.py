"""Checkpoints that several ranks write together: read back on any mesh, refused when anything in them is wrong."""

import json
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from bertree.errors import UserError
from bertree.files.formats import file_hash
from bertree.model.network import Network
from bertree.scale.launch import Launch
from bertree.scale.shards import local, parameter_layouts, whole_tensors
from bertree.scale.world import World, join
from bertree.train import checkpoint as folder
from bertree.train import checkpoint_files
from bertree.train.checkpoint import Checkpoint, CheckpointFolder, check_optimizer_state, restore
from bertree.train.keep import KeepBestWeights
from tests.support.ranks import run_ranks, start_ranks
from tests.support.shared import suite_has
from tests.support.spread import MESHES, different, spread, state_of, trained

STEP = 2
SLOTS = 4  # of the state that all data ranks carry
SUITE = ("2 x 2, zero 3", "zero 3", "zero 2 in pairs")  # the other meshes are proofs


def carried(slots: range) -> dict[str, torch.Tensor]:
    held = {f"state/{slot}/hidden": torch.full((slot + 1, 3), float(slot)) for slot in slots}
    return held | {f"state/{slot}/empty": torch.zeros(0, 3) for slot in slots}


def save(kept: CheckpointFolder, network: Network, optimizer: torch.optim.Optimizer, slots: range) -> None:
    """Save all that a run may save."""
    best = {f"best/{name}": parameter.detach().clone() for name, parameter in network.named_parameters()}
    kept.save(STEP, network, optimizer, {"tokens": 7}, best | carried(slots))


def own_slots(world: World) -> range:
    share = SLOTS // world.data
    return range(world.data_rank * share, (world.data_rank + 1) * share)


def save_and_read(launch: Launch, out: Path, meshes: Sequence[str]) -> dict[str, Any]:
    """On every mesh: save, read what every mesh before has written, and what one process has."""
    results: dict[str, Any] = {}
    for number, mesh in enumerate(meshes):
        sizes = MESHES[mesh]
        place = launch._replace(host=f"{launch.host}-{number}")
        with join(place, **sizes) as world:
            zero = sizes.get("zero", 0)
            network, optimizer = spread(*trained(STEP), world, zero)
            kept = CheckpointFolder(out / mesh, world=world)
            save(kept, network, optimizer, own_slots(world))
            again = spread(*trained(0, seed=5), world, zero)
            restore(kept.read(STEP), *again)
            save(CheckpointFolder(out / f"{mesh}, again", world=world), *again, own_slots(world))
            kept.save(STEP + 2, *spread(*trained(STEP + 2), world, zero))
            for before in ("one process", *meshes[: number + 1]):
                results[f"{before} -> {mesh}"] = read_back(out / before, world, again, state_of(network, optimizer))
            whole = dict(trained(STEP)[0].named_parameters())
            results[f"whole on {mesh}"] = all(torch.equal(t, whole[name]) for name, t in whole_tensors(network, world))
            results[f"best on {mesh}"] = take_best_back(kept.read(STEP), again, state_of(network, optimizer))
            results[f"spoilt on {mesh}"] = read_spoilt(out, mesh, world)
    return results


def forget(network: Network, optimizer: torch.optim.Optimizer) -> None:
    """Give a network other weights, and its optimizer no state."""
    for parameter in network.parameters():
        local(parameter.detach()).add_(1.0)
    optimizer.state.clear()


def read_back(
    out: Path, world: World, into: tuple[Network, torch.optim.Optimizer], wanted: dict[str, torch.Tensor]
) -> list[str]:
    """Read weights, optimizer state, best weights and carried state; return what is not as it should be."""
    checkpoint = CheckpointFolder(out, world=world).read(STEP)
    network, optimizer = into
    forget(network, optimizer)
    check_optimizer_state(checkpoint, network, optimizer, STEP)
    restore(checkpoint, network, optimizer)
    wrong = different(state_of(network, optimizer), wanted)
    for name, whole in parameter_layouts(network).items():
        parameter = network.get_parameter(name).detach()
        copy = torch.zeros_like(parameter)
        checkpoint.fill(f"best/{name}", copy, whole)
        wrong += different({f"best/{name}": local(copy)}, {f"best/{name}": local(parameter)})
    saved = {name: tensor.read() for name, tensor in checkpoint.tensors.items() if name.startswith("state/")}
    return wrong + different(saved, carried(range(SLOTS)))


def take_best_back(
    checkpoint: Checkpoint, into: tuple[Network, torch.optim.Optimizer], wanted: dict[str, torch.Tensor]
) -> list[str]:
    """Let a run end with the best weights of a checkpoint; return what is not as it should be."""
    network, _ = into
    forget(*into)
    loop: Any = SimpleNamespace(network=network)
    keep = KeepBestWeights(loop=loop, evaluate=dict, metric="accuracy", evaluations=(), patience=0)
    saved = replace(checkpoint, extra={"best": {"step": STEP, "score": 0.5, "waited": 0}})
    keep.check(saved)
    keep.resume(saved)
    keep.finish(STEP, CheckpointFolder(Path("nowhere")))
    names = dict(network.named_parameters())
    return different({n: local(p.detach()) for n, p in names.items()}, {n: wanted[n] for n in names})


def read_spoilt(out: Path, mesh: str, world: World) -> list[Any]:
    """The step that is taken when a shard of the newest is damaged, and what is said about it."""
    spoilt, messages = out / f"{mesh}, spoilt", []
    if world.is_first:
        shutil.copytree(out / mesh, spoilt)
        flip(spoilt / f"step-{STEP + 2:08d}" / "state-00003-of-00004.safetensors")
    torch.distributed.barrier()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder, "note", messages.append)
        checkpoint = CheckpointFolder(spoilt, world=world).read_newest()
    return [checkpoint and checkpoint.step, [line.partition(mesh)[2] for line in messages]]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> tuple[Path, list[dict[str, Any]]]:
    """Checkpoints of all meshes, and what the ranks found."""
    out = tmp_path_factory.mktemp("saved")
    save(CheckpointFolder(out / "one process"), *trained(STEP), range(SLOTS))
    meshes = list(MESHES) if pytestconfig.option.proofs else SUITE
    return out, run_ranks(4, out / "ranks", save_and_read, out, meshes)


def test_every_mesh_reads_what_another_has_written(saved: tuple[Path, list[dict[str, Any]]]) -> None:
    for rank in saved[1]:
        pairs = {name: good for name, good in rank.items() if " -> " in name}
        count = sum(name.startswith("one process -> ") for name in pairs)
        assert count >= len(SUITE)
        assert len(pairs) == count + count * (count + 1) // 2
        assert not any(pairs.values()), {name: wrong[:3] for name, wrong in pairs.items() if wrong}


@pytest.mark.parametrize("mesh", suite_has(SUITE, MESHES))
def test_one_process_reads_what_many_have_written(mesh: str, saved: tuple[Path, list[dict[str, Any]]]) -> None:
    assert read_back(saved[0] / mesh, World.alone(), trained(0, seed=5), state_of(*trained(STEP))) == []


@pytest.mark.parametrize("mesh", suite_has(SUITE, MESHES))
def test_files_of_all_meshes_hold_the_same_tensors(mesh: str, saved: tuple[Path, list[dict[str, Any]]]) -> None:
    left, right = (CheckpointFolder(saved[0] / name).read(STEP).tensors for name in ("one process", mesh))
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor.read(), right[name].read()), name


@pytest.mark.parametrize("mesh", suite_has(SUITE, MESHES))
def test_what_is_read_and_saved_again_has_the_same_bytes(mesh: str, saved: tuple[Path, list[dict[str, Any]]]) -> None:
    left, right = (sorted((saved[0] / name / f"step-{STEP:08d}").iterdir()) for name in (mesh, f"{mesh}, again"))
    assert [path.name for path in left] == [*(f"state-0000{n}-of-00004.safetensors" for n in range(1, 5)), "state.json"]
    assert [path.read_bytes() for path in left] == [path.read_bytes() for path in right]


def test_no_number_is_written_twice(saved: tuple[Path, list[dict[str, Any]]]) -> None:
    whole = sum(
        t.numel() for t in load_file(saved[0] / "one process" / f"step-{STEP:08d}" / "state.safetensors").values()
    )
    for mesh in SUITE:
        shards = (saved[0] / mesh / f"step-{STEP:08d}").glob("*.safetensors")
        assert sum(t.numel() for shard in shards for t in load_file(shard).values()) == whole


@pytest.mark.parametrize("mesh", suite_has(SUITE, MESHES))
def test_whole_tensors_are_those_of_one_device(mesh: str, saved: tuple[Path, list[dict[str, Any]]]) -> None:
    assert all(rank[f"whole on {mesh}"] for rank in saved[1])


@pytest.mark.parametrize("mesh", suite_has(SUITE, MESHES))
def test_a_run_ends_with_the_best_weights_on_all_ranks(mesh: str, saved: tuple[Path, list[dict[str, Any]]]) -> None:
    assert [rank[f"best on {mesh}"] for rank in saved[1]] == [[]] * 4


@pytest.mark.parametrize("mesh", suite_has(SUITE, MESHES))
def test_a_shard_that_one_rank_finds_damaged_is_damaged_for_all(
    mesh: str, saved: tuple[Path, list[dict[str, Any]]]
) -> None:
    for rank in saved[1]:
        step, messages = rank[f"spoilt on {mesh}"]
        assert step == STEP
        assert len(messages) == 1
        assert "state-00003-of-00004.safetensors: is damaged" in messages[0]


def forge(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the boxes in the header of a shard, and make its checksum right."""

    def spoil(path: Path) -> None:
        shard = path / "state-00002-of-00004.safetensors"
        with safe_open(shard, "pt") as file:
            boxes = json.loads(file.metadata()["boxes"])
        change(boxes)
        save_file(load_file(shard), shard, {"boxes": json.dumps(boxes)})
        make_right(path, shard)

    return spoil


def make_right(path: Path, shard: Path) -> None:
    header = json.loads((path / "state.json").read_text())
    header["sha256"][shard.name] = file_hash(shard)
    (path / "state.json").write_text(checkpoint_files.header_text(header))


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        state = json.loads((path / "state.json").read_text())
        change(state)
        (path / "state.json").write_text(checkpoint_files.header_text(state))

    return spoil


def other_dtype(path: Path) -> None:
    shard = path / "state-00002-of-00004.safetensors"
    with safe_open(shard, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(shard)
    save_file(tensors | {QKV: tensors[QKV].half()}, shard, metadata)
    make_right(path, shard)


QKV = "weights/encoder.stack.attention.0.part.qkv.weight"
SECOND = "state-00002-of-00004.safetensors"
SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda path: (path / SECOND).unlink(), f"{SECOND}: cannot be read"),
    "a bit": (lambda path: flip(path / SECOND), f"{SECOND}: is damaged"),
    "cut off": (lambda path: os.truncate(path / SECOND, 1000), f"{SECOND}: is damaged"),
    "of another step": (
        lambda path: shutil.copy(path.with_name(f"step-{STEP:08d}") / SECOND, path / SECOND),
        f"{SECOND}: is damaged",
    ),
    "a name of its own": (
        header(lambda h: h["sha256"].update({"../../x.safetensors": h["sha256"].pop(SECOND)})),
        "does not name the files",
    ),
    "one file fewer": (header(lambda h: h["sha256"].pop(SECOND)), "does not name the files"),
    "no files": (header(lambda h: h.update(sha256={})), "is not the header"),
    "no sums": (header(lambda h: h.update(sha256=7)), "is not the header"),
    "another step in the header": (header(lambda h: h.update(step=7)), "is not the header"),
    "a version to come": (header(lambda h: h.update(version=3)), "is not the header"),
    "another type": (other_dtype, "has another shape or type than in the files before it"),
    "outside": (forge(lambda b: b[QKV]["boxes"][0][0].__setitem__(0, 10**6)), "the boxes of"),
    "before the first row": (forge(lambda b: b[QKV]["boxes"][0][0].__setitem__(0, -1)), "the boxes of"),
    "not a number": (forge(lambda b: b[QKV]["boxes"][0][0].__setitem__(0, "0")), "the boxes of"),
    "true": (forge(lambda b: b[QKV]["boxes"][0].__setitem__(2, False)), "the boxes of"),
    "larger than it is": (forge(lambda b: b[QKV]["boxes"][0][1].__setitem__(1, 8)), "the boxes of"),
    "rows that are not there": (forge(lambda b: b[QKV]["boxes"][0].__setitem__(2, 3)), "the boxes of"),
    "no boxes": (forge(lambda b: b[QKV].update(boxes=[])), "the boxes of"),
    "another whole": (forge(lambda b: b[QKV].update(shape=[96, 16])), "has another shape or type"),
    "no shape": (forge(lambda b: b[QKV].pop("shape")), "the boxes of"),
    "other names": (forge(lambda b: b.update(more=b.pop(QKV))), "are not those of its tensors"),
    "twice the same": (forge(lambda b: b[QKV]["boxes"][0][0].__setitem__(0, 0)), "overlap"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_one_is_named_and_the_one_before_taken(
    name: str, saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    monkeypatch.setattr(folder, "note", messages.append)
    shutil.copytree(saved[0] / "zero 3", tmp_path / "run")
    kept, (spoil, reason) = CheckpointFolder(tmp_path / "run"), SPOILT[name]
    assert kept.read(STEP + 2).step == STEP + 2
    spoil(kept.path(STEP + 2))
    checkpoint = kept.read_newest()
    assert checkpoint is not None
    assert checkpoint.step == STEP
    assert len(messages) == 1
    assert reason in messages[0]
    assert f"step-{STEP + 2:08d}" in messages[0]


def test_half_of_a_tensor_is_refused(saved: tuple[Path, list[dict[str, Any]]], tmp_path: Path) -> None:
    """A shard without one of its tensors, its checksum right."""
    shutil.copytree(saved[0] / "zero 3" / f"step-{STEP:08d}", tmp_path / f"step-{STEP:08d}")
    shard = tmp_path / f"step-{STEP:08d}" / SECOND
    with safe_open(shard, "pt") as file:
        boxes = json.loads(file.metadata()["boxes"])
    tensors = load_file(shard)
    del tensors[QKV], boxes[QKV]
    save_file(tensors, shard, {"boxes": json.dumps(boxes)})
    make_right(shard.parent, shard)
    with pytest.raises(UserError, match="do not make up all of it"):
        CheckpointFolder(tmp_path).read(STEP)


MOMENTS = {
    "before the second writes": (1, "_write_shard", False),
    "after the second has written": (1, "_write_shard", True),
    "before the header": (0, "_write_header", False),
    "after the header": (0, "_write_header", True),
}


def die(launch: Launch, out: Path, moment: str) -> None:
    """Save once; while the second checkpoint is written, one rank is killed."""
    with join(launch) as world:
        kept = CheckpointFolder(out, world=world)
        kept.save(1, *spread(*trained(1), world))
        rank, name, after = MOMENTS[moment]
        inner = getattr(checkpoint_files, name)

        def call(*arguments: Any) -> Any:
            result = inner(*arguments) if after else None
            os.kill(os.getpid(), signal.SIGKILL)
            return result

        if world.rank == rank:
            setattr(checkpoint_files, name, call)
        kept.save(2, *spread(*trained(2), world))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rank_that_dies_leaves_the_checkpoint_before(moment: str, tmp_path: Path) -> None:
    codes = start_ranks(2, tmp_path / "ranks", die, tmp_path / "run", moment)
    assert codes[MOMENTS[moment][0]] == -signal.SIGKILL
    assert codes[1 - MOMENTS[moment][0]] != 0
    kept = CheckpointFolder(tmp_path / "run")
    checkpoint = kept.read_newest()
    assert isinstance(checkpoint, Checkpoint)
    assert checkpoint.step == 1
    assert kept.steps() == [1]
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["step-00000001"]
    network, optimizer = trained(0, seed=5)
    restore(checkpoint, network, optimizer)
    assert different(state_of(network, optimizer), state_of(*trained(1))) == []
