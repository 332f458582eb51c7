"""The work behind `bertree predict` and `features`: new texts through a trained model."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from bertree.api import load
from bertree.errors import UserError
from bertree.files import Json, new_folder
from bertree.model.network import build
from bertree.model.top import Top
from bertree.pipelines_tasks import as_text, device_of, encoded, note
from bertree.tasks.answering import fitting, half, states
from bertree.tasks.records import json_object, kind_of, lines
from bertree.tasks.records import records as rows_of
from bertree.tasks.tagging import TaggingTask

CHUNK = 1024  # lines taken at once
OBJECT = re.compile(r"\s*\{\s*[\"}]")
FEATURES, WORDS = "features.npy", "words.jsonl"
TABLES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".json")


def records(texts: Sequence[str], file: Path | None, question: str | None) -> Iterator[str | Json]:
    """What is to be predicted: texts of the command line, a file's rows or lines, or standard input."""
    if file is not None and texts:
        raise UserError("give texts or --file, not both")
    given: Iterable[str | Json]
    if file is not None:
        given = read(file)
    elif texts and list(texts) != ["-"]:
        given = (_parsed(text, f"text {number}") for number, text in enumerate(texts, 1))
    else:
        if sys.stdin.isatty():
            note("reading standard input, a text a line; end with Ctrl-D")
        given = (_parsed(line.rstrip("\r\n"), f"line {number}") for number, line in enumerate(sys.stdin, 1))
    blank = 0
    for record in given:
        if isinstance(record, str) and not record.strip():
            blank += 1
            continue
        if question is not None:
            record = {"question": question} | ({"context": record} if isinstance(record, str) else record)
        yield record
    if blank:
        note(f"{blank:,} empty lines were left out")


def read(path: Path) -> Iterator[str | Json]:
    """A file's records, or its lines."""
    if kind_of(path) in TABLES:
        yield from (row for _, row in rows_of(path))
    else:
        yield from (_parsed(text, f"{path}: line {number}") for number, text in lines(path))


def _parsed(text: str, where: str) -> str | Json:
    """A line as it is; one that begins like a JSON object as that object."""
    return json_object(text, where) if OBJECT.match(text) else text


def predict(
    model: str,
    records: Iterable[str | Json],
    *,
    as_json: bool = False,
    max_length: int = 0,
    device: str = "auto",
    tokenizer: Path | None = None,
) -> None:
    """`bertree predict`: what a fine-tuned model says about lines, a thousand at a time."""
    loaded = load(model, device=device_of(device), tokenizer=tokenizer)
    head = loaded.task_named().head
    rest, done = iter(records), 0
    while some := list(islice(rest, CHUNK)):
        for line in loaded.predict(some, max_length, done + 1):
            print(as_text(line) if as_json else readable(head, line))
        done += len(some)
    if not done:
        raise UserError("nothing to predict: the input is empty")


def readable(head: str, line: Json) -> str:
    """A prediction as one or more lines for people, columns between tabs."""
    if head == "token":
        if "entities" not in line:
            return " ".join(f"{word}/{tag}" for word, tag in zip(line["words"], line["predicted"], strict=True))
        found = [f"  {e['type']}\t{e['text']}\t{e['start']}-{e['end']}{_sure(e['score'])}" for e in line["entities"]]
        return "\n".join([str(line["text"]), *(found or ["  no entity"])])
    if head == "span":
        place = f"{line['start']}-{line['end']}" if line.get("start") is not None else "-"
        return f"{' '.join(line['predicted'].split()) or 'no answer'}\t{line['score']:.3f}\t{place}\t{line['question']}"
    if head == "choice":
        return f"{line['predicted']}\t{line['answer']}\t{line['score']:.3f}"
    said = line["predicted"]
    text = "\t".join(" ".join(str(line[key]).split()) for key in ("text", "pair") if line.get(key) is not None)
    return f"{said:.3f}\t{text}" if isinstance(said, float) else f"{said}\t{line['score']:.3f}\t{text}"


def _sure(score: float | None) -> str:
    return "" if score is None else f"\t{score:.3f}"


def features(
    model: str, file: Path, out: Path, layers: str, max_length: int, device: str, tokenizer: Path | None
) -> None:
    """`bertree features`: the states of every word of a file."""
    loaded = load(model, device=device_of(device), tokenizer=tokenizer)
    network = loaded.network
    if network.top.layers != layers or network.top.lstm:
        network = build(loaded.architecture, {}, Top(layers=layers, frozen=True))
        # Weights of a sum are learned for its own layers and say nothing about others.
        kept = ("encoder.", "features.join.") if loaded.network.top.layers == layers else ("encoder.",)
        known = {name: tensor for name, tensor in loaded.network.state_dict().items() if name.startswith(kept)}
        network.load_state_dict(known, strict=False)
        network.to(loaded.device)
    task = TaggingTask("tagging")
    longest = fitting(max_length, loaded.max_length, loaded.architecture.max_positions)
    rest = read(file)
    count = words = 0
    with (
        new_folder(out, (FEATURES, WORDS)) as work,
        (work / FEATURES).open("w+b") as rows,
        (work / WORDS).open("w", encoding="utf-8") as index,
    ):
        rows.write(_header(0, 0))
        width = 0
        while some := list(islice(rest, CHUNK)):
            examples = [task.parse(record) for record in some]
            part, cut = encoded(task, examples, loaded, longest)
            if cut.examples:
                note(cut.line(str(file), len(some), longest))
            for block in states(network, part.units, lambda: half(loaded.device)):
                width = block.shape[1]
                rows.write(np.ascontiguousarray(block, "<f4").tobytes())
            for example in examples:
                text, places = example.placed()
                line = {"text": text, "words": list(example.words), "offsets": places, "row": words}
                index.write(json.dumps(line, ensure_ascii=False) + "\n")
                words += len(example.words)
            count += len(some)
        if not words:
            raise UserError(f"{file}: holds no words")
        rows.seek(0)
        rows.write(_header(words, width))
    print(f"{out}: {FEATURES} ({words:,} words x {width}), {WORDS} ({count:,} texts)")


def _header(words: int, width: int) -> bytes:
    """The beginning of a .npy file, of one length whatever the numbers: rows are written before they are counted."""
    description = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({words}, {width}), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + description.ljust(117).encode() + b"\n"
