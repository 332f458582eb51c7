"""Small tasks that a tiny model learns in seconds, as files; such a model; and the command line in this process."""

import csv
import io
import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.text import tokenizer_training
from bertree.text.tokenizer import Tokenizer
from tests.support.command import make_tree
from tests.support.shared import make_once

_FILL = "the a of to and in on with by for at from boat tree road lamp stone river cloud garden window table"
FILL = _FILL.split(" ")
GOOD, BAD = ["fine", "happy", "bright", "sweet", "glad"], ["gloomy", "awful", "bitter", "broken", "stale"]
PEOPLE, PLACES = ["Ada", "Ida", "Otto", "Emil", "Greta"], ["Turin", "Oslo", "Lyon", "Riga", "Porto"]
COLOURS = ["red", "green", "blue", "yellow", "purple"]
WORDS = [*FILL, *GOOD, *BAD, *PEOPLE, *PLACES, *COLOURS, "which", "colour", "?", "is", "it"]
SETTINGS = ("device=cpu", "lr=3e-3", "dropout=0", "classifier_dropout=0", "warmup=0.1")


def tokenizer() -> Tokenizer:
    """Every word above is one token; capitals matter."""
    text = " ".join(WORDS)
    return tokenizer_training.train(lambda: [text] * 4, "wordpiece", len(WORDS) + 150, cased=True)


def model(path: Path, words: Tokenizer, layers: int = 2, heads: dict[str, int] | None = None, **axes: object) -> Path:
    """A folder with an untrained encoder of one thin layer or two."""
    values = {"vocab_size": words.size, "layers": layers, "width": 32, "heads": 2, "max_positions": 64}
    a = Transformer().with_values(values | {"init_std": 0.1} | axes)
    torch.manual_seed(0)
    folder.write(Contents(a, build(a, heads if heads is not None else {"mask": 0}), words), path)
    return path


@contextmanager
def one_thread() -> Iterator[None]:
    """Products this small take longer with two, and much longer beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _draw(seed: int) -> random.Random:
    return random.Random(f"learnable {seed}")


def _around(draw: random.Random, word: str, most: int = 6) -> str:
    """A word somewhere among others."""
    words = draw.choices(FILL, k=draw.randint(2, most))
    words.insert(draw.randint(0, len(words)), word)
    return " ".join(words)


Row = dict[str, Any]


def feelings(count: int, seed: int = 0) -> list[Row]:
    """A text is good or bad by one of its words."""
    draw = _draw(seed)
    kinds = [draw.choice(("good", "bad")) for _ in range(count)]
    return [{"text": _around(draw, draw.choice(GOOD if kind == "good" else BAD)), "label": kind} for kind in kinds]


def pairs(count: int, seed: int = 0) -> list[Row]:
    """The second text decides."""
    draw = _draw(seed)
    return [{"one": _around(draw, "is", 3), "two": row["text"], "kind": row["label"]} for row in feelings(count, seed)]


def scores(count: int, seed: int = 0) -> list[Row]:
    """Each good word is a point, each bad one costs one."""
    draw = _draw(seed)
    rows = []
    for _ in range(count):
        good, bad = draw.randint(0, 3), draw.randint(0, 3)
        words = draw.choices(GOOD, k=good) + draw.choices(BAD, k=bad) + draw.choices(FILL, k=2)
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "score": (good - bad) / 2})
    return rows


def tagged(count: int, seed: int = 0) -> list[Row]:
    """People and places, some of two words; the second one is never a first."""
    draw = _draw(seed)
    rows = []
    for _ in range(count):
        words, tags = list[str](), list[str]()
        for _ in range(draw.randint(2, 4)):
            some = draw.choices(FILL, k=draw.randint(1, 2))
            words, tags = words + some, tags + ["O"] * len(some)
            if draw.random() < 0.7:
                kind, names = draw.choice((("PER", PEOPLE), ("LOC", PLACES)))
                size = draw.randint(1, 2)
                name = [draw.choice(names[:3]), draw.choice(names[3:])][:size]
                words, tags = words + name, tags + [f"B-{kind}", f"I-{kind}"][:size]
        rows.append({"words": words, "tags": tags})
    return rows


def squad(count: int, seed: int = 0, impossible: bool = False) -> Row:
    """The answer is the colour in the context; if there is none, there is no answer."""
    draw = _draw(seed)
    paragraphs = []
    for number in range(count):
        none = impossible and draw.random() < 0.4
        answer = draw.choice(COLOURS)
        context = _around(draw, "it" if none else answer, 8)
        answers = [] if none else [{"text": answer, "answer_start": f" {context} ".index(f" {answer} ")}]
        asked: Row = {"id": f"q{seed}-{number}", "question": "which colour is it ?", "answers": answers}
        paragraphs.append({"context": context, "qas": [asked | ({"is_impossible": none} if impossible else {})]})
    return {"version": "2.0" if impossible else "1.1", "data": [{"title": "made up", "paragraphs": paragraphs}]}


def choices(count: int, seed: int = 0) -> list[Row]:
    """The option with a good word is right; some questions have two options, some three."""
    draw = _draw(seed)
    rows = []
    for _ in range(count):
        options = [_around(draw, draw.choice(BAD), 3) for _ in range(draw.randint(2, 3))]
        label = draw.randrange(len(options))
        options[label] = _around(draw, draw.choice(GOOD), 3)
        asked = {"context": _around(draw, "is", 3), "question": "which is it ?", "options": options}
        rows.append(asked | {"label": label})
    return rows


def race(path: Path) -> Path:
    """Passages with two questions each, in the files that RACE has."""
    for split in ("train", "dev"):
        for number in range(4):
            options = [[f"the {colour}" for colour in COLOURS[:4]]] * 2
            passage = {"id": str(number), "article": "the boat is red " * 30, "options": options, "answers": ["A", "C"]}
            passage["questions"] = ["which colour is it ?", "it is _ ?"]
            file = path / split / "middle" / f"{number}.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(passage))
    return path


def write(path: Path, rows: Sequence[Row] | Row) -> Path:
    """Rows as a file, in the kind its name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(rows, dict):
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        table = pytest.importorskip("pyarrow").Table.from_pylist(list(rows))
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="") as file:
            lines = csv.DictWriter(file, list(rows[0]), delimiter="," if path.suffix == ".csv" else "\t")
            lines.writeheader()
            lines.writerows(rows)
    else:
        both = (zip(row["words"], row["tags"], strict=True) for row in rows)
        path.write_text("\n".join("".join(f"{word} {tag}\n" for word, tag in row) for row in both))
    return path


# Steps of models this small take as long with more examples.
BATCH_24, BATCH_32 = ("batch=24", "lr=8e-3"), ("batch=32", "lr=6e-3")


class Kind(NamedTuple):
    """A task, its files and what must be reached."""

    files: dict[str, Sequence[Row] | Row]
    options: tuple[str, ...]
    settings: tuple[str, ...]
    metric: str
    bar: float


KINDS = {
    "classification": Kind(
        {"train.csv": feelings(240), "dev.csv": feelings(60, 1)},
        ("--task", "classification"), ("epochs=5", *BATCH_24), "accuracy", 0.95,
    ),
    "pair": Kind(
        {"train.jsonl": pairs(240), "dev.jsonl": pairs(60, 1)},
        ("--task", "classification", "--text", "one", "--pair", "two", "--label", "kind"),
        ("epochs=5", *BATCH_24), "accuracy", 0.95,
    ),
    "regression": Kind(
        {"train.parquet": scores(320), "dev.parquet": scores(60, 1)},
        ("--task", "regression", "--label", "score"), ("epochs=4", *BATCH_24), "spearman", 0.85,
    ),
    "ner": Kind(
        {"train.txt": tagged(160), "valid.txt": tagged(50, 1)}, ("--task", "ner"), ("epochs=4", *BATCH_32), "f1", 0.95
    ),
    "crf": Kind(
        {"train.jsonl": tagged(160), "dev.jsonl": tagged(50, 1)},
        ("--task", "tagging"), ("crf=true", "epochs=4", *BATCH_32), "f1", 0.95,
    ),
    "squad": Kind(
        {"train-v1.1.json": squad(240), "dev-v1.1.json": squad(60, 1)},
        ("--task", "squad"), ("epochs=2", *BATCH_32), "f1", 0.95,
    ),
    "squad2": Kind(
        {"train-v2.0.json": squad(240, 0, True), "dev-v2.0.json": squad(60, 1, True)},
        ("--task", "squad2"), ("epochs=3", *BATCH_32), "best_f1", 0.9,
    ),
    "beam": Kind(
        {"train-v2.0.json": squad(240, 0, True), "dev-v2.0.json": squad(60, 1, True)},
        ("--task", "squad2"), ("head=beam", "epochs=3", *BATCH_32), "best_f1", 0.9,
    ),
    "choice": Kind(
        {"train.jsonl": choices(200), "dev.jsonl": choices(60, 1)},
        ("--task", "choice"), ("epochs=2", *BATCH_32), "accuracy", 0.95,
    ),
}  # fmt: skip


def prepared(kind: Kind, path: Path) -> Path:
    """Its files in a folder."""
    for name, rows in kind.files.items():
        write(path / name, rows)
    return path


class Trained:
    """A model for each kind, fine-tuned when a test process first asks for it. Nobody may change what is in `root`."""

    def __init__(self, root: Path, start: Path | None = None) -> None:
        self.root = root
        self.words = tokenizer()
        self.start = start or make_once(root / "start", lambda folder: model(folder, self.words))

    def __call__(self, name: str) -> Path:
        """The folder of its run; beside it lies `data`."""
        return make_once(self.root / name, lambda folder: self._train(name, folder)) / "out"

    def _train(self, name: str, folder: Path) -> None:
        prepared(KINDS[name], folder / "data")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            from bertree.cli.main import app

            make_tree(app)(list(map(str, self.command(name, folder / "out"))), standalone_mode=False)

    def command(self, name: str, out: Path) -> list[object]:
        """The arguments that fine-tune it."""
        kind = KINDS[name]
        arguments = ["finetune", self.start, *kind.options, "--data", self.root / name / "data", "--out", out]
        return [*arguments, *SETTINGS, *kind.settings]
