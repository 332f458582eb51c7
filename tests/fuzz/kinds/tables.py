"""Tables and texts: .csv, .tsv, .jsonl, .json, .parquet, CoNLL, SQuAD, plain text; compressed, odd, empty, endless."""

import gzip
import json
import lzma
from pathlib import Path
from random import Random

from tests.fuzz.case import OUT, Case, Change, Kind
from tests.fuzz.kinds import models
from tests.fuzz.mutations import raw, trees, values
from tests.fuzz.samples import TUNE

NAMES = ("new\nline", " ", "-x", "a b", "😀", "x" * 200, "'", "*", "[a]", "~", "%s", "\x1b[31m", "a.b.c", "C:\\x", "=1")
EXTENSIONS = ("csv", "tsv", "jsonl", "parquet", "txt", "conll", "json")
LINE = "the glad boat is on the river"


def _wide(columns: int) -> bytes:
    return ",".join(f"c{n}" for n in range(columns)).encode() + b"\n" + b",".join([b"x"] * columns) + b"\n"


CONTENTS: dict[str, bytes] = {
    "nothing": b"",
    "a line end": b"\n",
    "empty lines": b"\n" * 1000,
    "spaces": b" " * 2_000_000,
    "one long line": b"the boat " * 200_000,
    "one long word": b"a" * 1_000_000,
    "zeros": bytes(100_000),
    "a header alone": b"text,label\n",
    "other columns": b"foo,bar\n1,2\n3,4\n",
    "many columns": _wide(100_000),
    "many labels": b"text,label\n" + b"".join(b"the boat,l%d\n" % n for n in range(3000)),
    "one label": b"text,label\n" + b"the boat,a\n" * 20,
    "one row": b"text,label\nthe boat,a\n",
    "open quotes": b'text,label\n"the boat,a\nthe stone,b\n' * 20,
    "quotes within": b'text,label\na"b"c,a\n""",b\n"x""y",a\n' * 10,
    "ragged rows": b"text,label\na\nb,c,d,e\n,\n" * 10,
    "semicolons": b"text;label\nthe boat;a\n" * 10,
    "carriage returns": b"text,label\rthe boat,a\rthe stone,b\r",
    "the same column twice": b"text,text\na,b\n" * 10,
    "no name of a column": b",\na,b\n" * 10,
    "not UTF-8": b"text,label\n\xff\xfe\xfd,a\n" * 10,
    "a zero byte": b"text,label\nthe \0boat,a\n" * 10,
    "numbers not finite": b"text,score\na,nan\nb,inf\nc,1e400\n" * 10,
    "numbers as text": b"text,score\na,one\nb,\nc,1;2\n" * 10,
    "surrogates": json.dumps({"text": "\ud800", "label": "\udfff"}).encode() + b"\n",
    "lists": b"[1, 2]\n[]\n",
    "numbers": b"1\n2\n",
    "text missing": b'{"label": "a"}\n{"text": null, "label": "b"}\n{"text": "", "label": "c"}\n',
    "other types": b'{"text": 5, "label": ["a"]}\n{"text": ["a"], "label": {"b": 1}}\n{"text": {}, "label": true}\n',
    "nested": values.nested(100_000).encode(),
    "digits": b'{"text": "a", "label": ' + values.DIGITS.encode() + b"}\n",
    "words": b'{"words": ["a", "b"], "tags": ["O"]}\n{"words": [], "tags": []}\n{"words": "a", "tags": "O"}\n',
    "odd tags": b"a X-PER\nb I-\nc -\n\nd\ne B-PER I-PER\n\n",
    "tags missing": b"a\nb\n\nc\n",
    "documents of CoNLL": b"-DOCSTART- -X- -X- O\n\n" * 5,
    "no paragraphs": b'{"data": [{"paragraphs": []}]}',
    "no answers": b'{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1", "question": "b", '
    b'"answers": []}]}]}]}',
    "answers elsewhere": b'{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": 1, "question": "b", "answers": '
    b'[{"text": "zzz", "answer_start": 99}]}]}]}]}',
    "data of no type": b'{"data": {"a": 1}}',
    "choices": b'{"context": "a", "question": "b", "options": [], "label": 0}\n'
    b'{"context": "a", "question": "b", "options": ["a"], "label": 5}\n',
    "a column too few": b"sentence1,sentence2\na,b\n" * 10,
    "many empty cells": b"sentence1,sentence2,score\n,,\n" * 20,
}


def _compressed(file: str, random: Random) -> Change:
    """Compress a file, rightly or not."""
    ending = Path(file).suffix
    seed = random.random()

    def make(path: Path) -> None:
        data = path.with_suffix("").read_bytes()
        packed = (
            gzip.compress(data, mtime=0) if ending == ".gz" else lzma.compress(data) if ending == ".xz" else _zstd(data)
        )
        draw = Random(seed)
        edit = draw.choice(("none", "none", *raw.EDITS))
        path.write_bytes(raw.EDITS[edit](packed, draw) if edit != "none" else packed)

    return Change(file, f"compressed ({seed})", make)


def _zstd(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def _input(random: Random, sources: tuple[str, ...]) -> tuple[str, dict[str, str], list[Change]]:
    """Draw the file of a case: its name, the samples it needs, and the changes that make it."""
    draw, source = random.random(), random.choice(sources)
    ending = source.rpartition(".")[2]
    if draw < 0.4:
        content = random.choice(list(CONTENTS))
        file = f"odd.{random.choice((ending, ending, random.choice(EXTENSIONS)))}"
        return file, {}, [Change(file, content, lambda path: path.write_bytes(CONTENTS[content]))]
    if draw < 0.5:
        file = f"{random.choice(NAMES)}.{ending}"
        return file, {file: source}, []
    if draw < 0.6:
        file = f"table.{ending}.{random.choice(('gz', 'xz', 'zst'))}"
        return file, {f"table.{ending}": source}, [_compressed(file, random)]
    file = f"table.{ending}"
    if draw < 0.7:
        return file, {file: source}, [raw.path_change(file, random)]
    if ending == "jsonl" and draw < 0.85:
        return file, {file: source}, [trees.json_lines_change(file, random) for _ in range(models.several(random))]
    if ending == "json" and draw < 0.85:
        return file, {file: source}, [trees.json_change(file, random) for _ in range(models.several(random))]
    return file, {file: source}, [raw.bytes_change(file, random) for _ in range(models.several(random))]


TABLES = tuple(f"data/train.{suffix}" for suffix in ("csv", "tsv", "jsonl", "parquet"))
SCORES = tuple(f"data/scores.{suffix}" for suffix in ("csv", "tsv", "jsonl", "parquet"))
PAIRS = ("data/pairs.csv", "data/pairs.jsonl")
TEXTS = ("texts.txt", "lines.txt", *TABLES)
LABELLED = ("data/train.conll", "data/tagged.jsonl")


def _tune(task: str, *options: str) -> tuple[str, ...]:
    return ("finetune", "bertree", "--task", task, *options, "--data", "FILE", "--out", OUT, *TUNE)


def _score(model: str, task: str, *options: str) -> tuple[str, ...]:
    return ("evaluate", model, "--task", task, "--data", "FILE", *options)


# Verb -> the samples it reads, the model, and the arguments around the file.
READERS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "embed": (TEXTS, "bertree", ("embed", "bertree", "FILE", "--out", OUT)),
    "pairs": (TEXTS, "bertree", ("pairs", "bertree", "FILE", "--json")),
    "cluster": (TEXTS, "bertree", ("cluster", "bertree", "FILE", "--clusters", "3", "--json")),
    "cluster alike": (TEXTS, "bertree", ("cluster", "bertree", "FILE", "--out", "out.csv")),
    "similar": (TEXTS, "bertree", ("similar", "bertree", "a boat", "FILE", "--json")),
    "features": (
        ("lines.txt", *LABELLED),
        "bertree",
        ("features", "bertree", "FILE", "--out", OUT, "--layers", "last"),
    ),
    "predict": (TEXTS, "classifier", ("predict", "classifier", "--file", "FILE", "--json")),
    "tags": (("lines.txt", *LABELLED), "ner", ("predict", "ner", "--file", "FILE")),
    "answer": (("data/train.json",), "qa", ("predict", "qa", "--file", "FILE", "--json")),
    "choose": (("data/choices.jsonl",), "choice", ("predict", "choice", "--file", "FILE", "--json")),
    "evaluate": (TABLES, "classifier", _score("classifier", "classification", "--json")),
    "evaluate tags": (("data/train.conll",), "ner", _score("ner", "ner", "--json")),
    "evaluate qa": (("data/train.json",), "qa", _score("qa", "squad", "--out", OUT)),
    "tokenizer train": (TEXTS, "", ("tokenizer", "train", "FILE", "--out", OUT, "--vocab-size", "150")),
    "prepare": (TEXTS, "bertree", ("prepare", "FILE", "--tokenizer", "bertree", "--out", OUT, "--workers", "1")),
    "index build": (TEXTS, "bertree", ("index", "build", "bertree", "FILE", "--out", OUT)),
    "correlate": (PAIRS, "vectors", ("embeddings", "evaluate", "vectors", "--data", "FILE", "--json")),
    "finetune": (TABLES, "bertree", _tune("classification")),
    "regression": (SCORES, "bertree", _tune("regression", "--label", "score")),
    "tagging": (LABELLED, "bertree", _tune("tagging")),
    "squad": (("data/train.json",), "bertree", _tune("squad")),
    "choice": (("data/choices.jsonl",), "bertree", _tune("choice")),
    "embeddings": (PAIRS, "bertree", ("embeddings", "train", "bertree", "--data", "FILE", "--out", OUT, *TUNE)),
}
TRAINING = ("finetune", "regression", "tagging", "squad", "choice", "embeddings")


def _case(readers: tuple[str, ...], random: Random) -> Case:
    sources, model, arguments = READERS[random.choice(readers)]
    file, samples, changes = _input(random, sources)
    samples = samples | ({model: model} if model else {})
    path = file if not file.startswith("-") else f"./{file}"
    command = [path if word == "FILE" else word for word in arguments]
    codes = (0, 1, 2) if arguments[0] in ("finetune", "embeddings") else (0, 2)
    shown = " ".join(file.split())  # a message stays on one line
    return Case(
        samples, changes, command, names=(shown, file), codes=codes, writes=(OUT, "out.csv"), stop_after=8,
    )  # fmt: skip


def _reading(random: Random) -> Case:
    return _case(tuple(name for name in READERS if name not in TRAINING), random)


def _training(random: Random) -> Case:
    return _case(TRAINING, random)


KINDS = (
    Kind("table", "tables and texts that are read to embed, predict, evaluate, index, prepare", _reading),
    Kind("training-table", "labeled files that models are fine-tuned on", _training),
)
