"""Faults to plant into bertree, which the fuzzer must find; and sessions in a process of their own.

A test runs in a process with threads, which cannot fork safely: a session runs in a child of the server of processes.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from tests.fuzz.case import OUT, Case, Change
from tests.fuzz.kinds import KINDS
from tests.fuzz.mutations.raw import PATHS
from tests.fuzz.mutations.trees import document
from tests.fuzz.running import Limits, MiB, Runner, import_everything
from tests.fuzz.samples import make
from tests.fuzz.session import Session, draw
from tests.support.processes import PATIENCE, PROCESSES

WORD = b"boom"
PRETRAIN = "pretrain recipe.toml --store store --out out"
PIPES = (
    ("index/vectors-*.bin", "index query index boat --model bertree"),
    ("index/vectors-*.bin", "verify index"),
    ("index/words-*.bin", "index query index boat --model bertree"),
    ("index-hnsw/graph-*", "index query index-hnsw boat --model bertree"),
    ("store/words.bin", PRETRAIN),
    ("store/tokens-*", "store verify store"),
    ("store/sentences-*", PRETRAIN),
    ("store/index/*", PRETRAIN),
    ("hf/model.safetensors", "info hf"),
    ("bertree/model.safetensors", "verify bertree"),
    ("sentences/modules.json", "similar sentences a b"),
    ("sentences/2_Dense/model.safetensors", "similar sentences a b"),
    ("vectors.npy", "pairs bertree lines.txt --vectors vectors.npy"),
    ("run-stopped/checkpoints/step-00000005/state.safetensors", "verify run-stopped"),
)


def start(target: Callable[..., None], *arguments: object) -> None:
    """Run a function to its end in a process that may fork."""
    process = PROCESSES.Process(target=target, args=arguments)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0


def session(work: Path, shrinking: bool = True, **options: Any) -> Session:
    """Return a session with samples, which are made where there are none."""
    import_everything()
    runner = Runner(work / "run", work / "samples", **options)
    if not runner.samples.exists():
        make(runner)
    return Session(runner, work / "failures", shrinking=shrinking)


def run(work: Path, cases: int, kinds: tuple[str, ...] = ()) -> None:
    """Run a session and write what was found."""
    fuzz_session = session(work)
    fuzz_session.run(kinds or tuple(KINDS), cases=cases)
    counts = {name: dict(tally.codes) for name, tally in fuzz_session.tallies.items()}
    failures = [f"{failure.folder}: {failure.violation}" for failure in fuzz_session.found]
    (work / "printed.json").write_text(json.dumps({"counts": counts, "failures": failures}))


def run_unchanged(work: Path) -> None:
    """Run one case of every kind without its changes, and write how it ended."""
    fuzz_session, printed = session(work), {}
    for name, kind in KINDS.items():
        case = kind.draw(Random(0))
        if name not in ("settings", "command"):
            if not set(case.samples) - {"bertree"}:  # a file that is only made by the changes
                continue
            case.changes, case.check = [], None
            result, broken = fuzz_session.attempt(case)
            printed[name] = [result.code, result.err, [violation.promise for violation in broken]]
    (work / "printed.json").write_text(json.dumps(printed))


def run_pipes(work: Path) -> None:
    """Put a pipe in the place of each file of a list, and write what was found."""
    fuzz_session = session(work, False, limits=Limits(wall=20, cpu=20))
    for number, (file, command) in enumerate(PIPES):
        folder = file.partition("/")[0]
        samples = {name: name for name in (folder, "bertree", "lines.txt", "recipe.toml", "store")}
        name = min(
            path.relative_to(fuzz_session.runner.samples).as_posix() for path in fuzz_session.runner.samples.glob(file)
        )
        change = Change(name, "is a pipe", PATHS["a pipe"])
        case = Case(samples, [change], command.split(), writes=(OUT, folder, "store/index"), kind="pipe", number=number)
        fuzz_session.run_case(case)
    (work / "printed.json").write_text(json.dumps([str(failure) for failure in fuzz_session.found]))


def run_planted(work: Path) -> None:
    """Run a case with each of the faults and write what was found."""
    printed = {}
    for fault, plant in FAULTS.items():
        limits = Limits(wall=2 if fault == "hang" else 60, cpu=8, memory=200 * MiB)
        fuzz_session = session(work, fault in SHRUNK, limits=limits, plant=plant)
        case = CASES.get(fault, _default)()
        case.kind, case.number = "planted", 1
        fuzz_session.run_case(case)
        assert len(fuzz_session.found) == 1, f"{fault}: {fuzz_session.found}"
        (failure,) = fuzz_session.found
        assert failure.folder is not None
        inputs = failure.folder / "case"
        files = {change.file: (inputs / change.file).read_bytes().decode("latin-1") for change in failure.case.changes}
        written = {path.name: path.read_text() for path in failure.folder.iterdir() if path.is_file()}
        printed[fault] = {"promise": failure.violation.promise, "files": files, "written": written}
    (work / "printed.json").write_text(json.dumps(printed))


def draws(seed: int) -> list[tuple[list[str], list[str]]]:
    """Return commands and changes of some cases of every kind."""
    cases = [draw(kind, seed, number) for kind in KINDS for number in range(3)]
    return [(case.command, [change.what for change in case.changes]) for case in cases]


def _default() -> Case:
    """Return a case of three changes, of which one matters, in a file of many lines, of which one matters."""
    lines = b'{"a": 1,\n' * 30 + b'"x": "boom",\n' + b'"y": 2,\n' * 30
    changes = [
        document("hf/special_tokens_map.json", b"{}"),
        document("hf/config.json", lines),
        document("hf/added_tokens.json", b"{}"),
    ]
    return Case({"hf": "hf"}, changes, ["info", "hf", "--json"])


def _store() -> Case:
    from tests.fuzz.kinds.stores import _same_or_noticed

    def rotate(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[2:200] + data[:2] + data[200:])

    nothing = Change("store/documents-00000.bin", "nothing", lambda path: None)
    text = Change("store/README.txt", "new", lambda path: path.write_text("x"))
    tokens = Change("store/tokens-00000.bin", "rotated", rotate)
    command = ["store", "show", "store", "--format", "stream", "--max-length", "16"]
    return Case({"store": "store"}, [nothing, text, tokens], command, check=_same_or_noticed, writes=("store/index",))


def _reading(deed: Callable[[], object]) -> Callable[[], None]:
    """Return a fault that does something when it reads a file with the word in it."""

    def plant() -> None:
        from bertree.files.formats import read_json
        from bertree.interop.huggingface import folder as hf_folder

        def read(path: Path) -> Any:
            if path.is_file() and WORD in path.read_bytes():
                deed()
            return read_json(path)

        hf_folder.read_json = read  # type: ignore[attr-defined]

    return plant


def _raise() -> NoReturn:
    raise RuntimeError("planted")


def _exit(code: int, *lines: str) -> Callable[[], None]:
    def leave() -> None:
        print(*lines, sep="\n", file=sys.stderr)
        sys.exit(code)

    return leave


def _leave_half() -> None:
    Path(OUT).mkdir()
    Path(OUT, ".half.x1").write_text("x")
    _exit(2, "bertree: hf: is bad")()


def _leave_temporary() -> None:
    Path(os.environ["TMPDIR"], "left").write_text("x")
    _exit(2, "bertree: hf: is bad")()


def _trust_stores() -> None:
    from bertree.data import store

    store.verify_store = store.Store.open
    store.Store.check_sample = lambda self: None


FAULTS: dict[str, Callable[[], None]] = {
    "traceback": _reading(_raise),
    "hang": _reading(lambda: time.sleep(100)),
    "signal": _reading(os.abort),
    "memory": _reading(lambda: bytearray(b"x") * (300 * MiB)),
    "exit code": _reading(_exit(3)),
    "one line": _reading(_exit(2, "bertree: hf: is bad", "and more")),
    "no name": _reading(_exit(2, "bertree: it is bad")),
    "left-over": _reading(_leave_half),
    "temporary": _reading(_leave_temporary),
    "changed input": _reading(lambda: (Path("hf/config.json").write_text("{}"), _exit(2, "bertree: hf: is bad")())),
    "wrong result": _reading(lambda: (print("no JSON"), sys.exit(0))),
    "silent difference": _trust_stores,
}
SHRUNK = ("traceback", "silent difference")  # shrinking takes a while
CASES = {"silent difference": _store}
