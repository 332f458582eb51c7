"""A Ray cluster gives the bytes that one process gives, also if a worker is killed in the middle."""

import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertree
from bertree.data import store_builder
from bertree.data.prepare import prepare
from bertree.engines.engine import map_in_order
from bertree.engines.ray_cluster import PATIENCE, RayCluster, compute_block
from bertree.errors import UserError
from bertree.inference import embedding
from bertree.search import writer
from bertree.text import tokenizer_training
from tests.support.blocks import add_to
from tests.support.command import Command

# It is not imported here: the engine decides how, before it does.
pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (the extra `ray`)")
BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """Two workers on this machine, started as `--engine ray` starts them; runs inside use the same."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the path of a socket may have 108 characters
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_worker_niceness", "0")  # else the other tests take the processors
        engine = RayCluster(None, 2)  # imports Ray
        for name in ("start_monitor", "start_log_monitor", "start_api_server"):  # processes that nobody asks
            patch.setattr(import_module("ray._private.node").Node, name, lambda *arguments, **named: None)
        with engine.start(add_to, 0):
            yield
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    lines = [line for line in BOOKS.read_text()[:60_000].splitlines() if line.strip()]
    (tmp_path / "texts.txt").write_text("\n\n".join(lines))
    return tmp_path / "texts.txt"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def busy_workers() -> list[int]:
    """Processes below this one that compute a block."""
    parents, busy = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::compute_block"):
                busy.append(int(folder.name))
        except OSError:
            continue

    def below(process: int) -> bool:
        return process == os.getpid() or (process in parents and below(parents[process]))

    return [process for process in busy if below(process)]


class Killer(threading.Thread):
    """Kills a worker in the middle of a block."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.killed, self.stopped = False, threading.Event()

    def run(self) -> None:
        while not self.killed and not self.stopped.wait(0.1):  # looking takes 20 ms of a core
            for process in busy_workers()[:1]:
                os.kill(process, signal.SIGKILL)
                self.killed = True

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stopped.set()
        self.join()


def test_prepare_gives_the_same_bytes_though_a_worker_is_killed(
    texts: Path, tmp_path: Path, tokenizers: dict[str, bertree.Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_builder, "CHUNK_CHARACTERS", 500)
    tokenizer_training.save(tokenizers["wordpiece"], tmp_path / "tokenizer")
    prepare(texts, tmp_path / "tokenizer", tmp_path / "here", workers=1)
    with Killer() as killer:
        prepare(texts, tmp_path / "tokenizer", tmp_path / "there", engine="ray")
    assert killer.killed
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


@pytest.mark.proof  # the build of an index embeds by the same engine
def test_embed_gives_the_same_vectors_though_a_worker_is_killed(
    texts: Path, tmp_path: Path, small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "FIRST_BLOCK", 8)
    monkeypatch.setattr(embedding, "BLOCK", 32)
    options: dict[str, Any] = {"prompt": "query: ", "max_length": 24, "normalize": True}
    with pytest.warns(bertree.BertreeWarning, match="texts cut to 24 tokens") as here:
        bertree.embed_file(small_folder, texts, tmp_path / "here.npy", **options)
    with Killer() as killer, pytest.warns(bertree.BertreeWarning, match="texts cut to 24 tokens") as warned_on_ray:
        on_ray = bertree.embed_file(small_folder, texts, tmp_path / "there.npy", **options, engine="ray")
    assert killer.killed
    assert on_ray.new_rows == on_ray.rows > 100
    mine, theirs = (np.load(tmp_path / name) for name in ("here.npy", "there.npy"))
    assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
    # Where MKL uses AVX2, another process may round differently.
    assert np.abs(mine - theirs).max() < 1e-6
    assert [str(warning.message) for warning in warned_on_ray] == [str(warning.message) for warning in here]


def test_index_build_gives_the_same_bytes_though_a_worker_is_killed(
    texts: Path, tmp_path: Path, small_folder: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.setattr(writer, "EMBED_BATCH", 16)
    monkeypatch.setattr(writer, "COMMIT_ROWS", 100)
    monkeypatch.setattr(writer, "COMMIT_SECONDS", 1e9)  # a commit after some seconds would divide the files otherwise
    build = ["index", "build", small_folder, texts, "--blocks", "--chunk", 30]
    command.well(*build, "--out", tmp_path / "here")
    with Killer() as killer:
        result = command.well(*build, "--out", tmp_path / "there", "--engine", "ray")
    assert killer.killed
    assert "passages" in result.out
    assert contents(tmp_path / "there") == contents(tmp_path / "here")


def test_work_that_ends_early_many_times_leaves_this_process_alive() -> None:
    for _ in range(40):  # cancelling tasks aborted it in about one of 50
        with RayCluster().start(add_to, 0) as workers:
            results = map_in_order(workers, range(13), lambda block: block)
            assert next(results) == (0, 0)


def test_errors_in_a_worker_are_one_line() -> None:
    engine = RayCluster()
    with engine.start(add_to, 100) as workers:
        results = map_in_order(workers, range(20), lambda block: block)
        assert [result for _, result in islice(results, 13)] == [100 + block for block in range(13)]
        with pytest.raises(UserError, match=r"^block 13: is unlucky$"):
            next(results)
    with engine.start(add_to, 404) as workers, pytest.raises(UserError) as caught:
        workers.submit(1)()
    assert str(caught.value).startswith("/models/missing: No such file or directory (on the machine ")
    assert compute_block("0.0", "", "", [], 1).mistake.endswith("this machine 0.0; install the same on all")


def test_a_block_that_kills_every_worker_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertree.engines.ray_cluster.RETRIES", 1)
    with (
        RayCluster().start(add_to, 0) as workers,
        pytest.raises(UserError, match=r"^Ray lost the same block 2 times; "),
    ):
        workers.submit(99)()


def test_a_cluster_without_a_gpu_is_refused_for_cuda() -> None:
    with pytest.raises(UserError, match="has no GPU for `device=cuda`"), RayCluster().start(add_to, 0, "cuda"):
        pass


def test_an_address_where_no_cluster_is_ends_at_once(tmp_path: Path, command: Command) -> None:
    assert PATIENCE <= 10, "seconds for an answer; Ray itself would try for minutes"
    for address in ("10.0.0.1", "ray://10.0.0.1:10001", "10.0.0.1:port"):
        with pytest.raises(UserError, match=r"^address .*: must be HOST:PORT"):
            RayCluster(address)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        threading.Thread(target=answer_once, args=(server,), daemon=True).start()
        with pytest.raises(UserError, match=f"^{address}: what answers there is not a Ray cluster"):
            RayCluster(address)
    prepare = ["prepare", BOOKS, "--tokenizer", "default", "--out", tmp_path / "s"]
    result = command(*prepare, "--engine", "ray", "--address", address)
    assert result.code == 2
    assert result.lines == [f"bertree: {address}: no Ray cluster answers there (Connection refused)"]
    assert not (tmp_path / "s").exists()


def answer_once(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
