"""No command opens a connection: all verbs run in a network namespace without interfaces, which counts every attempt.

The kernel counts packets and connections that find no route, so that attempts of native code are seen, too.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kill import cases
from tests.support.processes import PATIENCE
from tests.support.shared import suite_has

ATTEMPTS = re.compile(r"OutNoRoutes|OutRequests|ActiveOpens|OutDatagrams")
# Commands that read; those that write are the cases of tests/kill.
READING = (
    *("info", "info default", "info start", "recipe list", "recipe show bert-base-tiny", "store verify store"),
    *("store info store", "verify index", "verify task/model", "fill base it_is_[MASK]", "similar start a b"),
    *("predict task/model good", "info task", "index info index --check", "index query index water --device cpu"),
    *("study list", "study show albert-dropout", "plan bert-base --devices 2"),
)


def attempts() -> int:
    """Return how often anything in this namespace has tried to reach another host."""
    total = 0
    lines = [line.split() for line in Path("/proc/net/snmp").read_text().splitlines()]
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        total += sum(int(value) for name, value in zip(names, values, strict=True) if ATTEMPTS.fullmatch(name))
    for line in Path("/proc/net/snmp6").read_text().splitlines():
        name, value = line.split()
        total += int(value) if name in ("Ip6OutNoRoutes", "Udp6OutDatagrams") else 0
    return total


def run_all(work: Path, every: int) -> None:
    """Run the commands that read, and every so many of those that write; print those that fail or try to connect."""
    from bertree.cli.main import main
    from tests.kill import trial, world

    world.build(work)
    os.chdir(work)
    print(f"build: {attempts()} attempts")
    commands = [command.split() for command in (*trial.MADE.values(), *READING)]
    writing = [case for case in cases.CASES if not case.slow and not case.stdin]
    commands += [line for case in writing[::every] for line in (case.first.split(), case.words)]
    for words in filter(None, commands):
        before = attempts()
        sys.argv = ["bertree", *(word.replace("_", " ") if "MASK" in word else word for word in words)]
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        print(f"ended with {code}, {attempts() - before} attempts: {' '.join(words)}", flush=True)
        for path in work.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def isolated(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a network namespace of its own."""
    return subprocess.run(["unshare", "-rn", *command], capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.fixture(scope="module", autouse=True)
def namespace() -> None:
    if shutil.which("unshare") is None or isolated("true").returncode:
        pytest.skip("this system does not let users create network namespaces (unshare -rn)")


@pytest.mark.process
def test_an_attempt_of_any_program_is_counted() -> None:
    code = "from tests.verification.test_no_connection import attempts; import socket, subprocess; print(attempts())\n"
    code += "subprocess.run(['getent', 'ahosts', '192.0.2.1.example.org'])\n" if shutil.which("getent") else ""
    code += "s = socket.socket(); s.connect_ex(('192.0.2.1', 80)); print(attempts())"
    first, last = isolated(sys.executable, "-c", code).stdout.split()
    assert first == "0"
    assert int(last) > 0


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("every", suite_has([10], [10, 1]))
def test_no_command_opens_a_connection(every: int, tmp_path: Path) -> None:
    program = (sys.executable, "-m", "tests.verification.test_no_connection")
    done = isolated(*program, str(tmp_path / "work"), str(every))
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-2000:]
    assert len([line for line in lines if "attempts" in line]) > (40 if every == 1 else 25)
    assert [line for line in lines if "attempts" in line and " 0 attempts" not in line] == []
    assert [line for line in lines if line.startswith("ended with 2")] == []


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), int(sys.argv[2]))
