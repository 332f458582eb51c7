"""`bertree pretrain` in several processes: mistakes, signals, and one process that shards."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support import runs
from tests.support.command import Command
from tests.support.rank_commands import RankOutputs, run_commands


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return runs.recipe("bert", tmp_path)


def pretrain(recipe: Path, store: Path, out: Path, *more: str) -> list[str]:
    return ["pretrain", str(recipe), "--store", str(store), "--out", str(out), *more]


def check_refused(outputs: RankOutputs, *words: str) -> None:
    """Every rank exits with 2; rank 0 says why, in one line."""
    assert outputs.codes == [2] * len(outputs.codes), outputs.texts
    (line,) = [line for line in outputs.texts[0].splitlines() if not line.startswith("bertree: note")]
    assert line.startswith("bertree: ")
    for word in words:
        assert word in line
    assert not any(outputs.texts[1:]), outputs.texts


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (("scale.tensor=3",), ("scale.tensor: 3", "2 processes were started")),
        (("scale.data=3",), ("scale.data: 3", "2 processes were started")),
        (("scale.zero=4",), ("scale.zero", "4")),
        (("scale.shard=2",), ("scale.shard", "nothing is sharded")),
        (("scale.tensor=2", "model.heads=1"), ("scale.tensor: 2 ranks cannot share 1 heads",)),
        (("phases.0.batch_tokens=64",), ("phases.0.batch_tokens: 64", "too few for 2 data ranks")),
        (("run.device=cuda",), ("CUDA",)),
        (("data.format=nonsense",), ("nonsense",)),
    ],
)
def test_a_mistake_is_one_line_of_rank_0(
    settings: tuple[str, ...], words: tuple[str, ...], recipe: Path, token_store: Path, tmp_path: Path
) -> None:
    arguments = pretrain(recipe, token_store, tmp_path / "out", *settings)
    check_refused(run_commands(tmp_path / "ranks", [arguments, arguments]), *words)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("compare", "bert-base", "distilbert-base"),
        ("info",),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_verbs_that_run_on_one_device_refuse_to_be_ranks(arguments: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    values = [*arguments, *(["--out", str(out)] if len(arguments) > 1 else [])]
    result = run_commands(tmp_path / "ranks", [values, values])
    check_refused(result, "bertree " + arguments[0], "runs on one device, but 2 processes were started")
    assert not out.exists()


def test_what_one_rank_lacks_stops_all(recipe: Path, token_store: Path, tmp_path: Path) -> None:
    stores = [token_store, tmp_path / "nothing"]
    result = run_commands(tmp_path / "ranks", [pretrain(recipe, store, tmp_path / "out") for store in stores])
    check_refused(result, "rank 1: ", str(tmp_path / "nothing"))


def test_ranks_that_see_different_stores_are_refused(
    recipe: Path, token_store: Path, tmp_path: Path, command: Command
) -> None:
    text, other = tmp_path / "text.txt", tmp_path / "other"
    text.write_text((token_store.parent / "text.txt").read_text()[:100_000])
    tokenizer = token_store.parent / "tokenizer"
    command.well("prepare", text, "--tokenizer", tokenizer, "--out", other, "--workers", 1, "--quiet")
    result = run_commands(
        tmp_path / "ranks", [pretrain(recipe, store, tmp_path / "out") for store in (token_store, other)]
    )
    check_refused(result, "text in data.store: rank 1 has a different value than rank 0")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_a_port_in_use_is_named(recipe: Path, token_store: Path, tmp_path: Path, taken_port: int) -> None:
    arguments = pretrain(recipe, token_store, tmp_path / "out")
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken_port)}
    result = run_commands(tmp_path / "ranks", [arguments, arguments], env, patience=3)
    assert result.codes == [2, 2], result.texts
    assert f"127.0.0.1:{taken_port}" in result.texts[0]
    assert "the port is in use; set MASTER_PORT to another" in result.texts[0]
    assert len(result.texts[1].splitlines()) <= 1, "a rank that cannot know why says that it waited in vain"


def test_a_signal_to_one_rank_stops_all_and_the_run_goes_on_on_any_mesh(
    recipe: Path, token_store: Path, tmp_path: Path, command: Command
) -> None:
    outs = [tmp_path / "whole", tmp_path / "stopped"]
    arguments = [pretrain(recipe, token_store, out, "scale.zero=2", "run.save_every=100") for out in outs]
    result = run_commands(tmp_path / "whole-ranks", [arguments[0]] * 2)
    assert result.codes == [0, 0], result.texts
    assert result.texts[1] == ""
    result = run_commands(tmp_path / "stopped-ranks", [arguments[1]] * 2, planted=("", "signal:15:3:0"))
    assert result.codes == [143, 143], result.texts
    assert "and saved; go on with --resume" in result.texts[0]
    shutil.copytree(outs[1], tmp_path / "elsewhere")
    again = run_commands(tmp_path / "again-ranks", [arguments[1]] * 2, {"TORCHELASTIC_RESTART_COUNT": "1"})
    assert again.codes == [0, 0], again.texts
    models = [(out / "model" / "model.safetensors").read_bytes() for out in outs]
    assert models[0] == models[1]
    elsewhere = pretrain(recipe, token_store, tmp_path / "elsewhere", "run.save_every=100", "--resume", "--quiet")
    command.well(*elsewhere, "scale.zero=0")  # in one process
    left, right = (load_file(out / "model" / "model.safetensors") for out in (outs[0], tmp_path / "elsewhere"))
    keys = [name for name in left if not name.endswith("key.bias")]  # steps of rounding
    assert max(float((left[name] - right[name]).norm() / left[name].norm()) for name in keys) < 1e-5


def test_one_process_may_shard(recipe: Path, token_store: Path, tmp_path: Path, command: Command) -> None:
    command.well(*pretrain(recipe, token_store, tmp_path / "plain", "--quiet"))
    command.well(*pretrain(recipe, token_store, tmp_path / "sharded", "--quiet", "scale.zero=3"))
    models = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("plain", "sharded")]
    assert models[0] == models[1]
    lines = [json.loads(line) for line in (tmp_path / "sharded" / "metrics.jsonl").read_text().splitlines()]
    ranks = [line["ranks"] for line in lines if line["kind"] == "train"]
    assert all(len(rank) == 1 and rank[0]["memory"] > 0 for rank in ranks)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_offloading_without_a_gpu_is_refused(recipe: Path, token_store: Path, tmp_path: Path, command: Command) -> None:
    result = command(*pretrain(recipe, token_store, tmp_path / "out", "scale.zero=3", "scale.offload=true"))
    assert result.code == 2
    (line,) = result.lines
    assert line.startswith(f"bertree: {recipe}: scale.offload=true")
    assert not (tmp_path / "out").exists()
