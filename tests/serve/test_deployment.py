"""The files in deploy/ name commands, options, paths and times that fit the server."""

import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer.main

from bertree.cli.main import app
from bertree.serve.http.handlers import ROUTES

yaml = pytest.importorskip("yaml")
pytest.importorskip("bertree.serve.http.app")
ROOT = Path(__file__).parents[2]
FILES = ROOT / "deploy"
DOCKERFILE = (FILES / "Dockerfile").read_text()
UNIT = (FILES / "bertree.service").read_text()


def parse(words: list[str]) -> dict[str, Any]:
    """What `bertree serve` is told; an unknown option is an error."""
    assert words[0] == "serve"
    verb = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return dict(verb.make_context("serve", words[1:]).params)


def json_line(instruction: str) -> list[str]:
    """The words of an instruction of the Dockerfile."""
    (lines,) = re.findall(rf"^{instruction} (\[.*\])$", DOCKERFILE.replace("\\\n ", ""), re.MULTILINE)
    return list(yaml.safe_load(lines))


@pytest.fixture
def pod() -> Any:
    deployment = next(iter(yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())))
    return deployment["spec"]["template"]["spec"]


def test_the_container_serves_as_a_user_without_rights() -> None:
    assert json_line("ENTRYPOINT") == ["bertree"]
    assert parse(json_line("CMD"))["host"] == "0.0.0.0"
    last_stage = DOCKERFILE.rpartition("FROM ")[2]
    assert re.search(r"^USER [1-9]\d*$", last_stage, re.MULTILINE)
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) ", DOCKERFILE, re.MULTILINE) for name in line.split()]
    kept = (FILES / "Dockerfile.dockerignore").read_text().split()
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in kept, "it would not be sent to the build"
    (extras,) = re.findall(r"/build\[(.*?)\]", DOCKERFILE)
    extra_names = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert set(extras.split(",")) <= set(extra_names)


class Answers(BaseHTTPRequestHandler):
    """A server of which only `/ready` is asked."""

    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False)])
def test_the_health_check_of_the_container(
    status: int, healthy: bool, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (words,) = re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)
    program, *rest = yaml.safe_load(words)
    assert program == "python"
    assert ":8080/ready" in rest[-1]
    monkeypatch.setattr(Answers, "status", status)
    command = [sys.executable, *(word.replace("8080", str(port)) for word in rest)]
    assert (subprocess.run(command, capture_output=True, check=False).returncode == 0) is healthy


def test_every_route_that_is_probed_exists_and_needs_no_key(pod: Any) -> None:
    (container,) = pod["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert [spec.open for spec in ROUTES if spec.path == path] == [True]


def test_copies_have_the_time_to_drain(pod: Any) -> None:
    (container,) = pod["containers"]
    drain = parse(container["args"])["drain"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] > drain + pause
    (line,) = re.findall(r"^ExecStart=\S+/bertree (.*)$", UNIT, re.MULTILINE)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)
    assert int(stop) > parse(shlex.split(line))["drain"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "bertree.service"
    unit.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", UNIT, flags=re.MULTILINE))
    result = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert [line for line in result.stderr.splitlines() if "bertree.service" in line] == []
