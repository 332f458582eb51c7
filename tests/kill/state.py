"""The state of a folder as it is compared: every file and folder in it, without times and dates."""

import difflib
import hashlib
import html
import json
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bertree.inference.load import load
from bertree.inference.model import Model
from bertree.run_folder import COMPARISON, REPORT
from bertree.search.database import DATABASE
from bertree.search.index import Index
from tests.kill.cases import Case
from tests.support import killing

State = dict[str, str]  # path -> what must be equal
FOLDER = "a folder"
TEXTS = (".json", ".jsonl", ".toml", ".csv", ".tsv", ".txt", ".html", ".md")
# Times and speeds are not compared: fields of JSON, and numbers in pages, by the words next to them.
TIME_FIELDS = (
    *(
        "seconds",
        "seconds_of_steps",
        "waited",
        "(?:training_)?tokens_per_s",
        "mfu",
        "texts_per_s",
        "timed_texts",
        "passes",
        "header_sha256",  # of a checkpoint's header, which has times
    ),
    *(r"(?:text_)?latency(?:_p90)?_ms", r"times_(?:faster|more_texts)_\w+"),
)
TIME_FIELD = re.compile(rf'("(?:{"|".join(TIME_FIELDS)})": )[^,}}\]\s]+')
AMOUNT = r"\d(?:[\d,.]*\d)?"
TIME_LINE = re.compile(r"(?:CPU|GPU), |90th percentile|with tokeni[sz]|tokens/s\b")  # every number is a time
IN_TIME_LINE = re.compile(rf"{AMOUNT}(?:[kM]\b)?(?:x \w+| m?s\b)?|the same")
TIMES = re.compile(
    rf"{AMOUNT}[kM]?(?= \w+/s\b)|{AMOUNT} (?:ms|s|min|h)\b|{AMOUNT}x (?:faster|slower)|as fast|(?<=medians of ){AMOUNT}"
)
TIMED_CHART = re.compile(r">[^<]*(?:tokens/s|texts/s|\d ms)<")


def read_state(work: Path, case: Case) -> State:
    """Read everything below a folder but the files of an index: they have other names after other commits."""
    state = {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if not case.index or not name.startswith(f"{case.index}/"):
            state[name] = FOLDER if path.is_dir() else _content(path, work, case)
    return state


def _content(path: Path, work: Path, case: Case) -> str:
    """Return what is compared of a file."""
    data = path.read_bytes()
    if path.suffix not in TEXTS:
        return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"
    text = data.decode(errors="backslashreplace").replace(str(work), "WORK")
    if path.name == "metrics.jsonl":
        lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
        left_out = {"event", *(("train",) if case.coarse_log else ())}  # events tell of resuming
        text = "".join(json.dumps(line) + "\n" for line in lines if line["kind"] not in left_out)
    if path.name == "plan.json":  # its sessions tell of resuming
        return json.dumps(json.loads(text) | {"sessions": "*"}, indent=1)
    if path.name == "environment.json":  # versions, cores, the command
        return "\n".join(json.loads(text))
    # The page of a run is made from the files beside it, and shows where it was resumed.
    if (path.name == REPORT and case.trains) or (path.suffix == ".html" and case.ranks_times):
        return "a page" if text.rstrip().endswith("</html>") else "half a page"
    if path.suffix == ".html":
        return _page_text(text)
    if path.name == COMPARISON:  # which models are fast enough for their score depends on times
        text = re.sub(r'"frontier": \{[^}]*\}', '"frontier": *', text)
    if path.suffix == ".md":
        return re.sub(r"(?m)^- Cost: .*\n", "", text)
    return TIME_FIELD.sub(r"\1*", text) if path.suffix in (".json", ".jsonl") else text


def _page_text(page: str) -> str:
    """Return the text of a page, about a line for each row, paragraph and figure, without times and charts of speed."""
    page = re.sub(r"(?s)<(style|script)\b.*?</\1>", "", page)
    page = re.sub(r"(?s)<svg\b.*?</svg>", lambda chart: "" if TIMED_CHART.search(chart[0]) else chart[0], page)
    page = re.sub(r"(?=<dt\b)|(?<=</tr>)|(?<=</p>)|(?<=</dl>)|(?<=</text>)|(?<=</h\d>)", "\n", page)
    lines = [" ".join(line.split()) for line in html.unescape(re.sub(r"<[^>]*>", " ", page)).splitlines()]
    lines = [(IN_TIME_LINE if TIME_LINE.match(line) else TIMES).sub("*", line) for line in lines if line]
    return re.sub(r"\*(?:\s+\*)+", "*", "\n".join(lines))


def differences(left: State, right: State) -> list[str]:
    """Name the files that differ, with the first lines that do."""
    messages = []
    for name in sorted(left.keys() | right.keys()):
        first, second = left.get(name), right.get(name)
        if first is None or second is None:
            messages.append(f"{name}: is only in {'the second' if first is None else 'the first'}")
        elif first != second:
            lines = difflib.unified_diff(first.splitlines(), second.splitlines(), lineterm="", n=0)
            messages.append(f"{name}: {' | '.join([line[:120] for line in lines][3:7])}")
    return messages


class IndexState(NamedTuple):
    """The documents of an index with their passages, and files in its folder that it does not use."""

    documents: dict[str, Any]
    unused: tuple[str, ...]


def read_index(folder: Path, model: Path) -> IndexState:
    """Read a copy of an index, since opening one may change it; each passage must have the model's vector."""
    if not (folder / DATABASE).is_file():
        return IndexState({}, ())
    with tempfile.TemporaryDirectory() as name:
        copy = Path(shutil.copytree(folder, Path(name) / "index"))
        documents = killing.contents(copy, _load(model))
        with Index.open(copy) as index:
            used = index.state.files | {DATABASE}
    return IndexState(documents, tuple(sorted({path.name for path in folder.iterdir()} - used)))


@cache
def _load(model: Path) -> Model:
    return load(str(model), device="cpu")


def newest_steps(out: Path) -> list[tuple[str, int, int]]:
    """Return for every unfinished run below a folder the last step that is logged and the newest that is saved."""
    steps = []
    for log in out.rglob("metrics.jsonl"):
        folder = log.parent
        if (folder / "metrics.json").exists() or (folder / "model").exists():
            continue
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.endswith("}")]
        logged = max((line["step"] for line in lines if line["kind"] == "train"), default=0)
        saved = max((int(path.name[5:]) for path in (folder / "checkpoints").glob("step-*")), default=0)
        steps.append((folder.name, logged, saved))
    return steps
