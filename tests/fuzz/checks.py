"""The promises: which of them a result breaks."""

import hashlib
import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.case import Case, walk
from tests.fuzz.running import MiB, Result, Runner

NOTE = "bertree: note: "
HALF_WRITTEN = re.compile(r"(^\..+|.*\.(part|tmp|old|partial))$")


@dataclass(frozen=True)
class Violation:
    """A broken promise: which, and what was seen."""

    promise: str
    detail: str

    @property
    def signature(self) -> tuple[str, str]:
        """What two failures of the same cause have in common: numbers and names in the detail vary."""
        return self.promise, re.sub(r"'[^']*'|\"[^\"]*\"|[\d.,]+", "N", self.detail)[:80]


class Snapshot:
    """The files of a case before the command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = self._read()

    def _read(self) -> dict[str, str]:
        contents = {}
        for path in walk(self.folder):
            name = path.relative_to(self.folder).as_posix()
            plain = path.is_file() and not path.is_symlink()
            contents[name] = hashlib.sha256(path.read_bytes()).hexdigest() if plain else ""
        return contents

    def differences(self, allowed: tuple[str, ...]) -> tuple[list[str], list[str]]:
        """Return what is new, and what is changed or gone outside of what the command may write."""
        now = self._read()
        changed = [n for n, digest in self.files.items() if now.get(n) != digest and not _within(n, allowed)]
        return sorted(set(now) - set(self.files)), changed


def _within(name: str, allowed: tuple[str, ...]) -> bool:
    return any(path == "." or name == path or name.startswith(f"{path}/") for path in allowed)


def violations(case: Case, folder: Path, result: Result, before: Snapshot, runner: Runner) -> list[Violation]:
    """Return every promise that is broken."""
    messages = _ending(case, result, runner.limits.memory)
    if result.code == 2 and not messages:
        messages += _error_line(case, result)
    messages += _files(case, result, before)
    if result.code == 0 and not messages:
        messages += _noise(result)
        if "--json" in case.command and (wrong := _not_json(result.out)):
            messages.append(Violation("wrong result", f"--json printed no JSON: {wrong}"))
        elif case.check and (wrong := case.check(case, folder, result, runner)):
            messages.append(Violation("silent difference", wrong))
    return messages


def _ending(case: Case, result: Result, memory: int) -> list[Violation]:
    if result.hung:
        return [Violation("hang", f"after {result.seconds:.0f} s: {' '.join(case.command[:2])}")]
    if "Traceback (most recent call last)" in result.err or "panicked at" in result.err:
        return [Violation("traceback", _where(result.err))]
    if result.code < 0:
        return [Violation("signal", f"{-result.code}: {result.err[-200:]}")]
    stopped = case.stop_after and result.code == 128 + signal.SIGTERM
    if result.code not in case.codes and not stopped:
        return [Violation("exit code", f"{result.code}: {result.err[-200:]}")]
    if result.peak > memory:
        return [Violation("memory", f"{result.peak // MiB} MiB: {' '.join(case.command[:2])}")]
    return []


def _where(err: str) -> str:
    """Return the exception of a traceback and the place in our code that is nearest to it."""
    lines = err.strip().splitlines()
    places = re.findall(r'File "[^"]*/bertree/([^"]+)", line (\d+)', err)
    panics = [line for line in lines if "panicked at" in line]
    last = panics[0] if panics and "Error" not in lines[-1] else lines[-1]
    return f"{last[:160]} @ {':'.join(places[-1]) if places else '?'}"


def _error_line(case: Case, result: Result) -> list[Violation]:
    lines = [line for line in result.err.splitlines() if line.strip()]
    errors = [line for line in lines if not line.startswith(NOTE)]
    if len(errors) != 1 or not errors[0].startswith("bertree: "):
        return [Violation("one line", f"{len(errors)} lines: {' | '.join(errors)[:200]}")]
    culprits = case.culprits()
    if culprits and not any(word in errors[0] for word in culprits):
        return [Violation("no name", errors[0][:200])]
    return []


def _noise(result: Result) -> list[Violation]:
    """Check that what a successful command says beside its result are lines of ours."""
    bad = [line for line in result.err.splitlines() if line and not line.startswith("bertree: ")]
    return [Violation("one line", f"beside the result: {bad[0][:200]}")] if bad else []


def _files(case: Case, result: Result, before: Snapshot) -> list[Violation]:
    messages = []
    if result.left and not result.hung and result.code >= 0:
        messages.append(Violation("left-over", f"in the temporary folder: {result.left[0]}"))
    new, changed = before.differences(case.writes)
    if changed:
        messages.append(Violation("changed input", changed[0]))
    if result.hung or result.code < 0:
        return messages  # what a killed command leaves is tested elsewhere
    # After an error nothing new may be there, except in what was there before (an index that is changed, say), and
    # the log of a run that says why it stopped.
    allowed = tuple(
        name for name in case.writes if result.code != 2 or name in before.files or _says_why(before.folder / name)
    )
    bad = [name for name in new if not _within(name, allowed) or HALF_WRITTEN.match(Path(name).name)]
    if bad:
        messages.append(Violation("left-over", f"exit code {result.code}: {bad[0]}"))
    return messages


def _says_why(run: Path) -> bool:
    logs = [run / "metrics.jsonl", run / "seed-0" / "metrics.jsonl"]
    return any(log.is_file() and '"stopped: ' in log.read_text() for log in logs)


def _not_json(out: str) -> str:
    """Return what is wrong with the output of --json: one document, or one object per line."""
    try:
        json.loads(out, parse_constant=_refuse)
    except ValueError as error:
        try:
            for line in out.splitlines():
                json.loads(line, parse_constant=_refuse)
        except ValueError:
            return str(error)
    return ""


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")
