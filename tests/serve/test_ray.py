"""`bertree deploy ray`: the same answers from a replica of Ray Serve, started as a user does."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertree
from tests.support.command import Command
from tests.support.processes import wait_until

if any(find_spec(name) is None for name in ("uvicorn", "ray")):
    pytest.skip("needs uvicorn and Ray", allow_module_level=True)
HAS_SERVE = find_spec("grpc") is not None and find_spec("fastapi") is not None


@pytest.mark.skipif(HAS_SERVE, reason="Ray Serve is installed")
def test_without_ray_serve_it_says_what_to_install(command: Command) -> None:
    result = command("deploy", "ray", "default")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "pip install 'ray[serve]'" in result.err


def test_other_machines_need_a_key(command: Command) -> None:
    result = command("deploy", "ray", "default", "--host", "0.0.0.0")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "give a key" in result.err


def test_no_cluster_at_the_address(command: Command) -> None:
    result = command("deploy", "ray", "default", "--address", "127.0.0.1:1")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "no Ray cluster answers there" in result.err


def ask(port: int, path: str, body: Any = None, key: str = "secret") -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@pytest.mark.skipif(not HAS_SERVE, reason="needs ray[serve], which is not installed for the tests: 70 MB more")
def test_a_local_cluster_gives_the_same_vectors(small_folder: Path, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "bertree", "deploy", "ray", str(small_folder), "--port", str(port)]
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # the path of a socket may have 108 characters
    with (tmp_path / "log").open("w") as log:
        own = os.environ | {"BERTREE_API_KEY": "secret", "RAY_TMPDIR": folder}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=own)
    try:
        log_text = (tmp_path / "log").read_text
        wait_until(lambda: "1 replica serves at" in log_text() or process.poll() is not None, pause=0.5)
        assert process.poll() is None, log_text()
        texts = ["The brig lay at anchor.", "Tea."]
        answer = ask(port, "/v1/embeddings", {"input": texts})
        mine = np.array([row["embedding"] for row in answer["data"]])
        expected = bertree.load(small_folder, device="cpu").embed(texts)
        for vectors in (mine, expected):
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.allclose(mine, expected, atol=1e-6)
        assert ask(port, "/ready")["status"] == "ready"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(port, "/v1/embeddings", {"input": texts}, key="wrong")
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(120)
        shutil.rmtree(folder, ignore_errors=True)
    assert code == 0, (tmp_path / "log").read_text()
