"""Files of word vectors, .npy files, scores of runs; and command lines."""

import io
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.fuzz.case import OUT, Case, Change, Kind
from tests.fuzz.kinds import models
from tests.fuzz.mutations import raw, trees, values
from tests.fuzz.samples import TUNE

GLOVE: dict[str, bytes] = {
    "nothing": b"",
    "zeros": bytes(2_000_000),
    "numbers alone": b"1 2 3\n" * 100,
    "one number": b"the 1\n",
    "not finite": b"the nan inf 1 2 3 4\n",
    "words alone": b"the\nboat\n",
    "one long line": b"the " + b"0.5 " * 500_000,
    "ragged": b"the 1 2\nboat 1 2 3\n",
    "spaces": b" " * 1_000_000,
    "word2vec": b"2 3\nthe 1 2 3\nboat 4 5 6\n",
    "not UTF-8": b"\xff\xff 1 2 3\nthe 1 2 3\n",
    "huge numbers": b"the 1e38 1e38 1e38\nboat -1e38 1e38 1\n",
}
HEADERS = (
    "{'descr': '<f4', 'fortran_order': False, 'shape': (30, 99999999999)}",
    "{'descr': '|O', 'fortran_order': False, 'shape': (30, 16)}",
    "{'descr': '<f4', 'fortran_order': True, 'shape': (30, 16)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 16)}",
    "{'descr': '<f4', 'fortran_order': False, 'shape': 480}",
    "{'descr': '<i8', 'fortran_order': False, 'shape': (30, 8)}",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (480,)}",
    "__import__('os').system('id')",
    "(" * 200,
    "",
)


def _glove(random: Random) -> Case:
    draw = random.random()
    if draw < 0.4:
        name = random.choice(list(GLOVE))
        change = Change("glove.txt", name, lambda path: path.write_bytes(GLOVE[name]))
    else:
        change = (raw.bytes_change if draw < 0.85 else raw.path_change)("glove.txt", random)
    samples = {"glove.txt": "glove.txt", "data": "data"}
    return Case(
        samples, [change], ["embeddings", "evaluate", "--glove", "glove.txt", "--data", "data/pairs.csv", "--json"]
    )


def _header(text: str) -> Change:
    def make(path: Path) -> None:
        body = path.read_bytes()[128:]
        padded = text.encode().ljust(117) + b"\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded + body)

    return Change("vectors.npy", text[:80], make)


def _rows(path: Path, change: str) -> None:
    rows = np.load(path)
    changed = {"nan": rows * np.nan, "fewer": rows[1:], "wider": np.hstack((rows, rows)), "flat": rows.ravel()}[change]
    kept = io.BytesIO()
    np.save(kept, changed)
    path.write_bytes(kept.getvalue())


def _vectors(random: Random) -> Case:
    draw = random.random()
    if draw < 0.3:
        change = _header(random.choice(HEADERS))
    elif draw < 0.5:
        what = random.choice(("nan", "fewer", "wider", "flat"))
        change = Change("vectors.npy", what, lambda path: _rows(path, what))
    else:
        change = (raw.bytes_change if draw < 0.85 else raw.path_change)("vectors.npy", random)
    verb = random.choice((["pairs", "--json"], ["cluster", "--json"]))
    samples = {"vectors.npy": "vectors.npy", "lines.txt": "lines.txt", "bertree": "bertree"}
    return Case(samples, [change], [verb[0], "bertree", "lines.txt", "--vectors", "vectors.npy", *verb[1:]])


def _scores(random: Random) -> Case:
    file = "scores/metrics.json"
    if random.random() < 0.2:
        change = random.choice((raw.path_change, raw.bytes_change))(file, random)
    else:
        change = trees.json_change(file, random)
    return Case({"scores": "scores"}, [change], ["glue", "scores", *random.choice(([], ["--json"]))])


def _verbs(group: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _verbs(command, (*above, name))
        else:
            yield (*above, name), command


def _options(command: Any) -> list[tuple[str, bool]]:
    """Return the options of a verb, and whether each takes a value."""
    return [
        (name, not option.is_flag)
        for option in command.params
        if option.param_type_name == "option"
        for name in (*option.opts, *option.secondary_opts)
        if name not in ("--install-completion", "--show-completion")
    ]


ARGUMENTS: dict[tuple[str, ...], list[str]] = {
    ("info",): ["bertree"],
    ("fill",): ["bertree", models.MASKED],
    ("convert",): ["bertree", OUT, "--to", "bertree"],
    ("tokenizer", "train"): ["texts.txt", "--out", OUT, "--vocab-size", "150"],
    ("prepare",): ["texts.txt", "--tokenizer", "bertree", "--out", OUT, "--workers", "1"],
    ("store", "verify"): ["store"],
    ("store", "show"): ["store"],
    ("recipe", "show"): ["recipe.toml"],
    ("evaluate",): ["classifier", "--task", "classification", "--data", "data/train.csv"],
    ("predict",): ["classifier", models.TEXT],
    ("features",): ["bertree", "lines.txt", "--out", OUT],
    ("glue",): ["scores"],
    ("embeddings", "evaluate"): ["vectors", "--data", "data/pairs.csv"],
    ("embed",): ["bertree", "lines.txt", "--out", OUT],
    ("similar",): ["bertree", "a", "b"],
    ("pairs",): ["bertree", "lines.txt"],
    ("cluster",): ["bertree", "lines.txt"],
    ("index", "build"): ["bertree", "documents.jsonl", "--out", OUT],
    ("index", "add"): ["index", "more.jsonl", "--model", "bertree"],
    ("index", "remove"): ["index", "d1"],
    ("index", "query"): ["index", "a boat", "--model", "bertree"],
    ("index", "info"): ["index"],
    ("verify",): ["index"],
    ("layers",): ["bertree", "--texts", "lines.txt"],
    ("plan",): ["bertree"],
    ("compare",): [
        "classifier",
        "classifier",
        "--task",
        "classification",
        "--data",
        "data/train.csv",
        "--seconds",
        "0",
    ],
    ("finetune",): ["bertree", "--task", "classification", "--data", "data/train.csv", "--out", OUT, *TUNE],
    ("generate",): ["my-gpt", models.TEXT, "--tokens", "5"],
    ("perplexity",): ["my-gpt", "lines.txt", "--lines"],
    ("attribute",): ["my-ctrl", models.TEXT],
    ("study", "show"): ["bert-size"],
}
ALL = ("bertree", "store", "recipe.toml", "classifier", "data", "lines.txt", "texts.txt", "scores", "vectors")
ALL += ("documents.jsonl", "more.jsonl", "index", "my-gpt", "my-ctrl")
WORDS = ("bertree", "lines.txt", ".", "no-such-file", "~", "*", "default", "bert-tiny", "data", "cpu", "auto")
WORDS += ("--", "--help", "-", "mean", "flat", "cosine", "text", "1_000", "１", "0x1", "1e3", "a=b", "cuda:99")


def _word(random: Random) -> str:
    drawn = random.choice((random.choice(WORDS), str(values.value(random)), str(random.choice(values.NUMBERS))))
    drawn = drawn.replace("\0", "")[:100_000]
    # A command may write to what it is given: nothing outside of the folder of its case.
    return drawn if "/" not in drawn and ".." not in drawn else "outside"


def _command(random: Random) -> Case:
    from typer.main import get_command

    from bertree.cli.main import app

    verbs = dict(_verbs(app if hasattr(app, "commands") else get_command(app)))
    verb = random.choice([name for name in verbs if name in ARGUMENTS or random.random() < 0.2])
    arguments = list(ARGUMENTS.get(verb, []))
    names: list[str] = []
    for _ in range(models.several(random)):
        deed = random.random()
        if deed < 0.75:
            option, takes = random.choice(_options(verbs[verb]))
            value = _word(random)
            arguments += [option, value] if takes else [option]
            names += [option, value] if takes else [option]
        elif deed < 0.85:
            names.append(_word(random))
            arguments.insert(random.randrange(len(arguments) + 1), names[-1])
        elif arguments:
            names.append(_word(random))
            arguments[random.randrange(len(arguments))] = names[-1]
    command = [*verb, *arguments]
    # A wrong word can change the meaning of any other, and words that are missing have no name here.
    names += [word for word in command if word] + ["--help", "bertree"]
    # With any option, --out may be any path of the folder.
    samples = {name: name for name in ALL}
    return Case(samples, [], command, names=tuple(names), writes=(".", "store/index"), codes=(0, 1, 2), stop_after=4)


KINDS = (
    Kind("glove", "files of word vectors", _glove),
    Kind("vectors", ".npy files of vectors", _vectors),
    Kind("scores", "metrics.json of runs", _scores),
    Kind("command", "command lines: options, values, words in the wrong place", _command),
)
