"""The verb in processes of its own: where it listens, signals, several workers."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from bertree.errors import UserError
from bertree.serve.launch import THREADS
from bertree.serve.settings import ServerSettings, read_keys
from tests.support import learnable
from tests.support.command import Command
from tests.support.processes import PATIENCE, wait_until
from tests.support.shared import suite_has

KEY = "test-key"
LOAD = 12  # clients that ask without pause
# The same program, which waits longer for requests on their way: a busy machine may hold the clients up for a while.
PATIENT = "from bertree.serve import worker; worker.LINGER = 2.0; from bertree.cli.main import main; main()"


@contextmanager
def server(
    *arguments: str, program: tuple[str, str] = ("-m", "bertree"), **more: str
) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A server on a free port, when it is ready. `program`: what Python runs; `more`: variables of its environment."""
    environment = os.environ | {"BERTREE_API_KEY": KEY} | more
    command = [sys.executable, *program, "serve", *arguments, "--port", "0", "--log", "errors"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    try:
        first = json.loads(process.stderr.readline())
        assert first["event"] == "ready"
        yield process, int(first["address"].rpartition(":")[2].strip("/"))
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stderr.close()


def ask(port: int, path: str, body: Any = None) -> Any:
    """Ask a server and return its answer."""
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}{path}", data, {"Authorization": f"Bearer {KEY}"})
    with urlopen(request, timeout=PATIENCE) as answer:
        return json.loads(answer.read())


async def ask_until_closed(port: int, counts: dict[str, int]) -> None:
    """Ask on a connection until the server says that it closes it, then try once more on a new one."""
    body = json.dumps({"inputs": ["the boat is fine and bright"] * 3}).encode()
    head = (
        f"POST /embed HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            counts["refused"] += 1
            return
        closing = False
        while not closing:
            try:
                writer.write(head.encode() + body)
                header = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(header.split(b"content-length: ")[1].split(b"\r\n")[0])
                vectors = json.loads(await reader.readexactly(length))
            except (OSError, asyncio.IncompleteReadError):
                counts["lost"] += 1
                return
            assert b" 200 " in header.splitlines()[0], header
            assert len(vectors) == 3
            counts["answered"] += 1
            closing = b"connection: close" in header
        counts["closed"] += 1
        writer.close()


@pytest.mark.parametrize("loop", suite_has(["uvloop"], ["uvloop", "asyncio"]))
def test_under_load_a_model_is_swapped_and_sigterm_loses_no_request(tmp_path: Path, loop: str) -> None:
    folder = learnable.model(tmp_path / "words", learnable.tokenizer())
    variables = dict(THREADS)  # else it would start again, as another program
    if loop == "asyncio":  # as where uvloop is not installed
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden" / "uvloop.py").write_text("raise ImportError")
        variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path / "hidden"), *sys.path])
    patient = ("-c", PATIENT)
    with server(str(folder), "--watch", "0", "--drain", "600", program=patient, **variables) as (process, port):
        counts = {"answered": 0, "refused": 0, "lost": 0, "closed": 0}

        async def load() -> None:
            clients = [asyncio.create_task(ask_until_closed(port, counts)) for _ in range(LOAD)]
            while counts["answered"] < 50:
                assert not any(client.done() for client in clients), [client for client in clients if client.done()]
                await asyncio.sleep(0.01)
            before = await asyncio.to_thread(ask, port, "/v1/models")
            process.send_signal(signal.SIGHUP)
            line = await asyncio.to_thread(process.stderr.readline)
            assert json.loads(line)["event"] == "swapped"
            after = await asyncio.to_thread(ask, port, "/v1/models")
            assert after["data"][0]["id"] == before["data"][0]["id"]
            process.send_signal(signal.SIGTERM)
            await asyncio.gather(*clients)

        asyncio.run(load())
        assert process.wait(PATIENCE) == 0
        assert counts["lost"] == 0, counts
        assert counts["refused"] == LOAD, "each client was told that the connection is closed, then found nobody"
        assert counts["answered"] >= 50 + LOAD


def test_several_workers_serve_one_socket_and_end_together(tmp_path: Path) -> None:
    folder = learnable.model(tmp_path / "words", learnable.tokenizer())
    with server(str(folder), "--workers", "2", "--watch", "0") as (process, port):
        assert process.stderr is not None
        assert json.loads(process.stderr.readline())["event"] == "ready", "the second one"
        for _ in range(8):
            assert len(ask(port, "/embed", {"inputs": "the boat"})[0]) == 32
        request = Request(f"http://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {KEY}"})

        def all_are_counted() -> bool:  # by both workers together; a request is counted after its answer
            with urlopen(request, timeout=PATIENCE) as answer:
                return b'bertree_requests_total{route="/embed",status="200"} 8.0' in answer.read()

        wait_until(all_are_counted)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        while "ready" not in (line := process.stderr.readline()):
            assert line
        assert ask(port, "/health") == {"status": "ok"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


SUPERVISED = """
import signal, socket, sys, types
worker = types.ModuleType("bertree.serve.worker")  # without models
worker.run_worker = lambda serving, listener: [print("ready", flush=True), signal.pause()]
sys.modules["bertree.serve.worker"] = worker
from bertree.serve.settings import ServerSettings
from bertree.serve.launch import supervise
supervise(ServerSettings(sources=("default",), workers=2), socket.socket())
"""


def test_workers_end_when_the_process_above_them_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", SUPERVISED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        process.kill()
        process.communicate(timeout=PATIENCE)  # until the last worker has gone: they hold its standard output


def test_it_listens_to_other_machines_only_with_a_key(command: Command) -> None:
    with pytest.raises(UserError, match="`no_auth=True`"):
        ServerSettings(sources=("default",), host="0.0.0.0")
    ServerSettings(sources=("default",), host="0.0.0.0", keys=("secret",))
    ServerSettings(sources=("default",), host="0.0.0.0", no_auth=True)
    assert "secret" not in repr(ServerSettings(sources=("default",), keys=("secret",)))


def test_keys_come_from_an_option_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BERTREE_API_KEY", raising=False)
    file = tmp_path / "keys"
    assert read_keys(None, None) == ()
    file.write_text("# two keys\none\n\n two \n")
    assert read_keys(None, file) == ("one", "two")
    monkeypatch.setenv("BERTREE_API_KEY", "three")
    assert read_keys(None, None) == ("three",)
    assert read_keys("four", None) == ("four",)
    file.write_text("\n")
    for option in ((None, file), (None, tmp_path / "none"), ("a", file)):
        with pytest.raises(UserError):
            read_keys(*option)


def test_a_mistake_is_one_line(
    command: Command, tmp_path: Path, small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in THREADS.items():  # else it would start this process again
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = command("serve", small_folder, "--port", port)
        assert f"127.0.0.1:{port}: cannot be listened on" in result.err
        assert result.err.endswith("give another --port\n")
    for wrong, message in (
        ((tmp_path / "none",), "no such folder"),
        ((small_folder, small_folder), "another model is named"),
        ((small_folder, "--name", "a", "--name", "b"), "--name: give one for each model and index, in their order (2"),
        ((small_folder, "--host", "192.0.2.1", "--no-auth"), "give another --host"),
        ((small_folder, "--cors", "*"), "--cors *: must be an origin"),
        ((small_folder, "--api-key-file", tmp_path / "none"), "--api-key-file"),
        ((small_folder, "--host", "0.0.0.0"), "--no-auth"),
        ((small_folder, "--log", "all"), "--log all"),
    ):
        result = command("serve", *wrong, "--port", "0")
        assert result.code == 2
        assert len(result.lines) == 1
        assert message in result.err
