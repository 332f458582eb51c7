"""Run the same commands with two source trees and compare the results: a check for refactoring.

    python benchmarks/same_commands.py BEFORE_SRC AFTER_SRC [--keep DIR] [--only NAME ...]

BEFORE_SRC and AFTER_SRC are folders that hold the package `bertree`, for example `src` of this repository and of a
`git worktree` of an older commit. COMMANDS below are run in order, first all of them with the one, then with the other,
each tree in a fresh folder at the same path, so that paths that are written or hashed are the same.

After every command its exit code, its output and every file it wrote are compared. Exit codes, numbers on standard
output, JSON and files must be equal, except for the times in TIME_FIELDS and TIMES. Other text may change: it is listed
under `wording`. --only runs the named commands and those they depend on. --keep leaves both folders in DIR, with the
output of each command in DIR/.../printed. The exit code is 1 if anything differs that must not.
"""

import argparse
import difflib
import hashlib
import html
import json
import os
import random
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

CORPUS = Path(__file__).resolve().parent.parent / "corpus" / "books.txt"
PACKAGE = "bertree"
LIMIT = 300.0  # seconds a command may take


class Command(NamedTuple):
    """A command line. What it writes is in out/NAME, or in out/WRITES."""

    name: str
    line: str
    code: int = 0  # the exit code it must have
    writes: str = ""
    removes: str = ""  # a folder that is removed first: what a stopped run would not have written
    stdin: str = ""  # a file


STEPS = "schedule.warmup=5 phases.0.steps=20 run.log_every=5 run.eval_every=10 run.save_every=10 run.eval_tokens=2048"
FEW = "epochs=2 batch=16 lr=3e-3"
COMMANDS = (
    # The family, recipes, tokens
    Command("info", "info"),
    Command("info-json", "info --json"),
    Command("info-point", "info albert-base embedding_width=64 sharing=none --card 24"),
    Command("config", "config"),
    Command("config-recipe", "config bert-base-tiny optim.lr=2e-4 phases.0.steps=5 schedule.warmup=2"),
    Command("tokenizer", "tokenizer train corpus/books.txt --vocab-size 2000 --out out/tokenizer"),
    Command("bpe", "tokenizer train corpus/books.txt --kind bpe --vocab-size 1500 --out out/bpe"),
    Command("unigram", "tokenizer train data/lines.txt --kind unigram --vocab-size 300 --cased --out out/unigram"),
    Command("store", "prepare corpus/books.txt --tokenizer out/tokenizer --out out/store --workers 2"),
    Command("store-bpe", "prepare corpus/ --tokenizer out/bpe --out out/store-bpe --deduplicate --min-characters 200"),
    Command("store-stdin", "prepare - --tokenizer out/tokenizer --out out/store-stdin", stdin="data/lines.txt"),
    Command("store-again", "prepare corpus/books.txt --tokenizer out/tokenizer --out out/store", 2, "store"),
    Command("verify", "store verify out/store"),
    Command("show", "store show out/store --at 6 --format segment-pair+nsp --masking word --max-length 64"),
    Command("show-sop", "store show out/store --at 3 --format sentence-pair+sop --masking ngram+static4 --epoch 2"),
    # Pretraining
    Command("bert", f"pretrain bert-base-tiny --store out/store --out out/bert {STEPS}"),
    Command("bert-resume", "pretrain out/bert/recipe.toml --out out/bert --resume",
            writes="bert", removes="out/bert/checkpoints/step-00000020"),
    Command("roberta", f"pretrain roberta-base-tiny --store out/store-bpe --out out/roberta {STEPS}"),
    Command("albert", f"pretrain data/own.toml --store out/store --out out/albert {STEPS}"),
    Command("fill", "fill default 'He opened the [MASK] and went out.' -k 3"),
    Command("fill-json", "fill out/bert/model 'The [MASK] man was [MASK].' -k 2 --json"),
    Command("convert", "convert out/albert/model out/convert --to huggingface --dtype float16"),
    Command("convert-int8", "convert out/convert out/convert-int8 --to bertree --dtype int8"),
    # Tasks
    Command("sst", f"finetune out/bert/model --task sst-2 --data data --out out/sst {FEW}"),
    Command("sst-resume", f"finetune out/bert/model --task sst-2 --data data --out out/sst --seeds 2 --resume {FEW}",
            writes="sst"),
    Command("own", f"finetune out/albert/model --task classification --data data/mail.jsonl --text body --label folder "
            f"--out out/own {FEW} lstm=16"),
    Command("scores", "finetune out/roberta/model --task regression --data data/pairs.jsonl --text first "
            f"--pair second --label score --out out/scores {FEW}"),
    Command("ner", f"finetune out/bert/model --task ner --data data/ner --out out/ner {FEW} crf=true"),
    Command("frozen", "finetune out/bert/model --task tagging --data data/ner --features sum-all "
            f"--out out/frozen {FEW} lstm=16"),
    Command("squad", f"finetune out/bert/model --task squad2 --data data/squad --out out/squad {FEW} max_length=48 "
            "stride=16"),
    Command("choice", f"finetune out/bert/model --task choice --data data/quiz --out out/choice {FEW}"),
    Command("evaluate", "evaluate out/sst/model --task sst-2 --data data --split test --out out/evaluate "
            "--submission out/evaluate/server"),
    Command("evaluate-json", "evaluate out/squad/model --task squad2 --data data/squad --json"),
    Command("predict", "predict out/sst/model 'The river is sweet.' 'Not again.'"),
    Command("predict-json", "predict out/ner/model --file data/lines.txt --json"),
    Command("predict-stdin", "predict out/choice/model", stdin="data/quiz/dev.jsonl"),
    Command("features", "features out/albert/model data/lines.txt --layers concat-last-four --out out/features"),
    Command("glue", "glue out/sst"),
    # Smaller models
    Command("half", f"distill out/bert/model --corpus out/store --out out/half --compare 0.5 {STEPS} "
            "phases.0.max_length=32 phases.0.batch_tokens=512"),
    Command("narrow", "distill out/bert/model --student bert-tiny --corpus out/store --epochs 0.2 --compare 0 "
            "--cache out/narrow-cache --out out/narrow model.width=64 model.heads=2 distil.cos=0 distil.top_k=8"),
    Command("taught", f"distill out/sst/model --task sst-2 --data data --out out/taught --compare 0 {FEW}"),
    Command("bilstm", f"distill out/sst/model --task sst-2 --data data --student bilstm --out out/bilstm --compare 0 "
            f"{FEW} kind=mse copies=2"),
    Command("compare", "compare out/sst/model out/taught/model --task sst-2 --data data --seconds 0.5 "
            "--json --out out/compare"),
    # Sentence vectors
    Command("ranking", f"sentence train out/bert/model --data data/faq.csv --text question --pair answer "
            f"--out out/ranking {FEW} evaluations=1"),
    Command("softmax", f"sentence train out/roberta/model --data data/nli --dev data/pairs.csv --loss softmax "
            f"--out out/softmax {FEW} evaluations=1 pooling=mean+max"),
    Command("triplet", f"sentence train out/bert/model --data data/nli --loss triplet --out out/triplet {FEW} "
            "evaluations=1 normalise=true"),
    Command("cross", f"sentence train out/bert/model --data data/pairs.csv --loss cross --out out/cross {FEW}"),
    Command("judge", "sentence evaluate default out/ranking/model --pooling cls --glove data/glove.txt "
            "--data data/pairs.csv --text sentence1 --pair sentence2 --label score --out out/judge"),
    Command("embed", "embed default data/lines.txt --out out/embed/vectors.npy"),
    Command("embed-int8", "embed out/ranking/model - --format jsonl --text text --precision int8 --dtype float16 "
            "--normalise --out out/embed-int8/vectors.npy", stdin="data/docs/rows.jsonl"),
    Command("similar", "similar default 'The ship went down.' data/lines.txt -k 3"),
    Command("pairs", "pairs default data/lines.txt --vectors out/embed/vectors.npy --least 0.6 --duplicates "
            "--out out/pairs/pairs.csv"),
    Command("cluster", "cluster default data/lines.txt --vectors out/embed/vectors.npy --clusters 4 "
            "--out out/cluster/clusters.jsonl"),
    Command("cluster-json", "cluster default data/lines.txt --vectors out/embed/vectors.npy --least 0.86 --json"),
    # Search
    Command("index", "index build out/ranking/model data/docs --chunk 24 --overlap 4 --out out/index"),
    Command("index-add", "index add out/ranking/model out/index data/docs data/more.txt --blocks", writes="index"),
    Command("index-remove", "index remove out/index --where book=Emma", writes="index"),
    Command("index-info", "index info out/index --check --json"),
    Command("query", "index query out/index 'Who repaired the lighthouse?' -k 3"),
    Command("query-json", "index query out/index 'a whale' --where year=1851 --where year=1815 "
            "--rerank out/cross/model --candidates 5 --json"),
    Command("hnsw", "index build out/ranking/model data/lines.txt --blocks --kind hnsw --out out/hnsw"),
    # Mistakes
    Command("wrong-verb", "fil default x", 2),
    Command("wrong-preset", "info bert-bse", 2),
    Command("wrong-axis", "info bert-base layer=6", 2),
    Command("wrong-key", "config bert-base optim.beta=1", 2),
    Command("wrong-option", "fill default '[MASK]' -k 0", 2),
    Command("wrong-kind", "convert default out/nothing --to bertre", 2),
    Command("wrong-setting", "finetune out/bert/model --task sst-2 --data data --out out/nothing epoch=1", 2),
    Command("wrong-data", "finetune out/bert/model --task sst-2 --data data/nothing --out out/nothing", 2),
    Command("wrong-store", "pretrain bert-base-tiny --store data --out out/nothing", 2),
    Command("wrong-both", "distill out/bert/model --corpus out/store --task sst-2 --out out/nothing", 2),
)  # fmt: skip

# Not compared: times and speeds, by the name of their field in JSON ...
TIME_FIELDS = (
    "seconds",  # metrics.jsonl, state.json: of the run so far,
    "waited",  # and of those, for batches
    "tokens_per_s",
    "texts_per_s",
    r"(?:text_)?latency(?:_p90)?_ms",  # comparison.json, from here on
    "timed_texts",  # as many as the time allowed
    "passes",
    r"times_(?:faster|more_texts)_\w+",
)
TIME_FIELD = re.compile(rf'("(?:{"|".join(TIME_FIELDS)})": )[^,}}\]\s]+')
# ... and by what stands beside them in text.
AMOUNT = r"\d(?:[\d,.]*\d)?"
# every number in lines that begin like these
TIME_LINE = re.compile(r"(?:CPU|GPU), |90th percentile|with tokeni[sz]|tokens/s\b")
IN_TIME_LINE = re.compile(rf"{AMOUNT}(?:[kM]\b)?(?:x \w+| m?s\b)?|the same")
TIMES = re.compile(
    rf"{AMOUNT}[kM]?(?= \w+/s\b)|{AMOUNT} (?:ms|s|min|h)\b|{AMOUNT}x (?:faster|slower)|as fast|(?<=medians of ){AMOUNT}"
)
TIMED_CHART = re.compile(r">[^<]*(?:tokens/s|texts/s|\d ms)<")
KEYS_ONLY = ("environment.json",)  # versions, cores, the command
NUMBER = re.compile(r"(?:(?<![\w.])[-−])?\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?")
TEXTS = (".json", ".jsonl", ".toml", ".csv", ".tsv", ".txt", ".html", ".md")


class Content(NamedTuple):
    """The content of a file: what must be equal, and text that may change."""

    exact: str
    wording: str = ""


class Result(NamedTuple):
    """What a command did; files are those it wrote or removed."""

    code: int
    stdout: str
    stderr: str
    files: dict[str, Content]


def without_times(text: str) -> str:
    """Text for people with times and speeds as *, and without repeated spaces."""
    lines = [" ".join(line.split()) for line in TIME_FIELD.sub(r"\1*", text).splitlines() if line.strip()]
    lines = [(IN_TIME_LINE if TIME_LINE.match(line) else TIMES).sub("*", line) for line in lines]
    return re.sub(r"\*(?:\s+\*)+", "*", "\n".join(lines))


def numbers(text: str) -> str:
    """Return the numbers in a text, one per line."""
    return "\n".join(found.replace(",", "") for found in NUMBER.findall(text))


def visible(page: str) -> str:
    """Return the text of a page, about a line for each row, paragraph and figure, without charts of speed."""
    page = re.sub(r"(?s)<(style|script)\b.*?</\1>", "", page)
    page = re.sub(r"(?s)<svg\b.*?</svg>", lambda found: "" if TIMED_CHART.search(found[0]) else found[0], page)
    page = re.sub(r"(?=<dt\b)|(?<=</tr>)|(?<=</p>)|(?<=</dl>)|(?<=</text>)|(?<=</h\d>)", "\n", page)
    return html.unescape(re.sub(r"<[^>]*>", " ", page))


def rows_of(path: Path) -> str:
    """Everything in a database, whatever its pages look like."""
    with tempfile.TemporaryDirectory() as name:
        for part in path.parent.glob(f"{path.name}*"):
            shutil.copy(part, name)
        with closing(sqlite3.connect(Path(name) / path.name)) as base:
            return "\n".join(base.iterdump())


def content(path: Path, source: Path) -> Content:
    """A file as it is compared."""
    data = path.read_bytes()
    if data.startswith(b"SQLite format 3\0"):
        return Content(rows_of(path))
    if path.suffix not in TEXTS:
        return Content(f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}")
    text = data.decode(errors="backslashreplace").replace(str(source), "SOURCE")
    if path.name in KEYS_ONLY:
        return Content("\n".join(json.loads(text)))
    if path.suffix == ".html":
        text = without_times(visible(text))
        return Content(numbers(text), text)
    return Content(TIME_FIELD.sub(r"\1*", text) if path.suffix in (".json", ".jsonl") else text)


# Running


def stamps(folder: Path) -> dict[str, tuple[int, ...]]:
    """Every file, and by what a change is noticed; of a database, its newest changes may be in a file beside it."""
    found: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.rglob("*")):
        beside = path.name.endswith("-wal")  # written by readers too, but then empty
        if path.is_file() and not path.name.endswith("-shm") and not (beside and path.stat().st_size == 0):
            name, status = str(path.relative_to(folder)).removesuffix("-wal"), path.stat()
            found[name] = (*found.get(name, ()), status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def run(command: Command, folder: Path, source: Path) -> Result:
    """A command in a folder, and what it left there."""
    if command.removes:
        shutil.rmtree(folder / command.removes, ignore_errors=True)
    before = stamps(folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_", "MKL_"))}
    environment |= {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}  # wide, so that no line is broken
    words = [sys.executable, "-P", "-m", PACKAGE, *shlex.split(command.line)]
    given = (folder / command.stdin).read_bytes() if command.stdin else b""
    try:
        done = subprocess.run(words, cwd=folder, env=environment, input=given, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(words, 124, b"", b"took too long")
    after = stamps(folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    files = {name: content(folder / name, source) if name in after else Content("removed") for name in changed}
    stdout, stderr = (
        text.decode(errors="backslashreplace").replace(str(source), "SOURCE") for text in (done.stdout, done.stderr)
    )
    return Result(done.returncode, stdout, stderr, files)


def run_all(commands: Sequence[Command], place: Path, source: Path, title: str, keep: Path | None) -> dict[str, Result]:
    """Every command with one source tree, in a folder that is then kept or removed."""
    folder = place / "work"
    for name, lines in data().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "printed").mkdir()
    results = {}
    for number, command in enumerate(commands, 1):
        began = time.monotonic()
        results[command.name] = result = run(command, folder, source)
        told = f"$ {PACKAGE} {command.line}\n{result.stdout}\nstandard error:\n{result.stderr}"
        (folder / "printed" / f"{command.name}.txt").write_text(told, encoding="utf-8")
        line = f"{title} {number}/{len(commands)}  {command.name}: {time.monotonic() - began:.1f} s"
        if result.code != command.code:
            line += f", exit code {result.code} instead of {command.code}: {result.stderr.strip()[-300:]}"
        print(line, flush=True)
    if keep:
        shutil.move(folder, keep / title)
    else:
        shutil.rmtree(folder)
    return results


# Comparing


def changes(before: str, after: str, most: int = 200) -> list[str]:
    """Lines that differ, with - and +, `most` of them."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    lines = [line if len(line) < 300 else f"{line[:300]} ..." for line in lines if not line.startswith("@@")]
    return [*lines[:most], f"... and {len(lines) - most} lines more"] if len(lines) > most else lines


def differences(command: Command, before: Result, after: Result) -> Iterator[str]:
    """What differs and must not, in lines for people."""
    for title, result in (("before", before), ("after", after)):
        if result.code != command.code:
            yield f"exit code {title}: {result.code}, expected {command.code}"
        elif result.code == 2 and not re.fullmatch(rf"{PACKAGE}: [^\n]+\n", result.stderr):
            yield f"a mistake is not told in one line {title}: {result.stderr!r}"
    as_json = "--json" in command.line.split()
    one, other = (
        TIME_FIELD.sub(r"\1*", result.stdout) if as_json else numbers(without_times(result.stdout))
        for result in (before, after)
    )
    if one != other:
        yield from ("standard output:", *changes(one, other, 10))
    for name in sorted(before.files.keys() | after.files.keys()):
        first, second = before.files.get(name), after.files.get(name)
        if first is None or second is None:
            yield f"{name}: changed only {'after' if first is None else 'before'}"
        elif first.exact != second.exact:
            yield from (f"{name}:", *changes(first.exact, second.exact, 10))


def wordings(before: Result, after: Result) -> Iterator[tuple[str, list[str]]]:
    """Where text differs, and how."""
    pairs = {
        "standard output": (without_times(before.stdout), without_times(after.stdout)),
        "standard error": (without_times(before.stderr), without_times(after.stderr)),
    }
    both = sorted(before.files.keys() & after.files.keys())
    pairs |= {name: (before.files[name].wording, after.files[name].wording) for name in both}
    for name, (one, other) in pairs.items():
        if one.split() != other.split():
            yield name, changes(one, other)


def report(commands: Sequence[Command], before: Mapping[str, Result], after: Mapping[str, Result]) -> int:
    """Print what differs, a table and the sum. How many commands differ."""
    table, bad, worded, seen = list[tuple[str, ...]](), list[str](), list[str](), set[str]()
    for command in commands:
        one, other = before[command.name], after[command.name]
        if found := list(differences(command, one, other)):
            bad += [f"{command.name}: {PACKAGE} {command.line}", *(f"  {line}" for line in found)]
        words = list(wordings(one, other))
        for place, lines in words:
            new = [line for line in lines if line not in seen]
            seen.update(new)
            worded += [f"{command.name}, {place}:", *(f"  {line}" for line in new)]
            worded += [f"  ({len(lines) - len(new)} lines that are shown above)"] if len(new) < len(lines) else []
        verdict = "DIFFERENT" if found else "wording" if words else "same"
        codes = dict.fromkeys((str(one.code), str(other.code)))
        table.append((command.name, ", ".join(codes), str(len(one.files.keys() | other.files.keys())), verdict))
    for title, lines in (("wording", worded), ("different", bad)):
        print("\n".join(["", f"== {title}", *(lines or ["nothing"])]))
    print()
    for name, code, files, verdict in (("name", "exit", "files", "verdict"), *table):
        print(f"{name:<16}{code:>6}{files:>8}  {verdict}")
    same, worded_only, different = (sum(row[-1] == name for row in table) for name in ("same", "wording", "DIFFERENT"))
    print(f"\n{len(table)} commands: {same} same, {worded_only} wording only, {different} different")
    return different


# What the commands read

FILL = ["the", "a", "of", "boat", "tree", "road", "lamp", "stone", "river", "cloud", "garden", "window"]
GOOD, BAD, COLOURS = ["fine", "happy", "sweet"], ["gloomy", "awful", "stale"], ["red", "green", "blue"]
OWN_RECIPE = ['extends = "albert-base-tiny"', "[model]", "layers = 4", 'residual = "post-norm"']
HARBOUR = ["The harbour was built in 1820. Its lighthouse burned twice, and was rebuilt both times by the same family."]
GARDEN = ["# The garden", "", "Roses need water in June. Prune the apple trees before the frost."]
ROWS = [
    {"id": "e1", "text": "Mr. Knightley walks to Hartfield every evening.", "book": "Emma", "year": 1815},
    {"id": "m1", "text": "The whale breaks the boat; the crew is in the water.", "book": "Moby Dick", "year": 1851},
    {"id": "m2", "text": "A whale is seen from the mast. " * 12, "book": "Moby Dick", "year": 1851},
]


def data() -> dict[str, list[str]]:
    """Small files of every kind, as lines, the same every time."""
    draw = random.Random(0)
    text = CORPUS.read_text(encoding="utf-8")[:300_000].rpartition("\n\n")[0]
    sentences = [sentence for sentence in re.split(r"(?<=[.!?]) |\n+", text) if 20 < len(sentence) < 90]
    lines = draw.sample(sentences, 60)

    def around(words: Sequence[str]) -> str:
        chosen = draw.choices(FILL, k=draw.randint(2, 6))
        chosen.insert(draw.randint(0, len(chosen)), draw.choice(words))
        return " ".join(chosen)

    def question(number: int) -> dict[str, object]:
        context = around(COLOURS if number % 3 else GOOD)
        colour = next((word for word in context.split() if word in COLOURS), "")
        answers = [{"text": colour, "answer_start": context.index(colour)}] if colour else []
        asked = {"id": str(number), "question": "which colour is it ?", "answers": answers, "is_impossible": not colour}
        return {"context": context, "qas": [asked]}

    def inferences(count: int) -> Iterator[str]:
        for premise in (around(GOOD) for _ in range(count)):
            for label, words in (("entailment", GOOD), ("contradiction", BAD), ("neutral", COLOURS)):
                yield json.dumps({"gold_label": label, "sentence1": premise, "sentence2": around(words)})

    made = {
        "corpus/books.txt": [text],
        "data/lines.txt": [*lines[:30], "", *lines[30:], lines[0]],
        "data/own.toml": OWN_RECIPE,
        "data/docs/harbour.txt": HARBOUR,
        "data/docs/garden.md": GARDEN,
        "data/docs/rows.jsonl": [json.dumps(row) for row in ROWS],
        "data/more.txt": [lines[1], lines[2], "", lines[3], "", lines[4]],
        "data/mail.jsonl": [
            json.dumps({"body": s, "folder": f"of {len(s) // 30}"}) for s in draw.sample(sentences, 120)
        ],
        "data/SST-2/test.tsv": ["index\tsentence", *(f"{n}\t{around(GOOD + BAD)}" for n in range(20))],
    }
    for split, count in (("train", 96), ("dev", 32)):
        classes = [draw.randint(0, 1) for _ in range(count)]
        made[f"data/SST-2/{split}.tsv"] = ["sentence\tlabel", *(f"{around((BAD, GOOD)[n])}\t{n}" for n in classes)]
        words = [word for _ in classes for word in (*around(COLOURS).split(), "")]
        made[f"data/ner/{split}.txt"] = [f"{w} {'B-COL' if w in COLOURS else 'O'}" if w else "" for w in words]
        asked = {"version": "2.0", "data": [{"title": split, "paragraphs": [question(n) for n in range(count)]}]}
        made[f"data/squad/{split}-v2.0.json"] = [json.dumps(asked)]
        options = [[around(GOOD if place == n else BAD) for place in range(2)] for n in classes]
        quiz = [
            {"context": "it is", "question": "which ?", "options": options[i], "label": n}
            for i, n in enumerate(classes)
        ]
        made[f"data/quiz/{split}.jsonl"] = [json.dumps(row) for row in quiz]
        made[f"data/nli/{split}.jsonl"] = list(inferences(count // 3))
    topics = draw.choices([GOOD, BAD, COLOURS], k=96)
    made["data/faq.csv"] = ["question,answer", *(f"{around(words)},{around(words)}" for words in topics)]
    scored = [(around(GOOD), around((GOOD, BAD)[n % 2]), 5 - n % 2 * draw.randint(1, 5)) for n in range(80)]
    made["data/pairs.csv"] = ["sentence1,sentence2,score", *(f"{a},{b},{score}" for a, b, score in scored)]
    made["data/pairs.jsonl"] = [json.dumps({"first": a, "second": b, "score": score}) for a, b, score in scored]
    vectors = [[f"{draw.gauss(0, 1):.4f}" for _ in range(8)] for _ in FILL + GOOD]
    made["data/glove.txt"] = [" ".join([word, *vector]) for word, vector in zip(FILL + GOOD, vectors, strict=True)]
    return made


def needed(names: Sequence[str]) -> list[Command]:
    """The named commands, and those that write what they read."""
    wanted = set(names)
    for place, command in reversed(list(enumerate(COMMANDS))):
        if command.name in wanted:
            read = set(re.findall(r"\bout/([\w-]+)", command.line))
            wanted |= {earlier.name for earlier in COMMANDS[:place] if (earlier.writes or earlier.name) in read}
    return [command for command in COMMANDS if command.name in wanted]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, metavar="BEFORE_SRC")
    parser.add_argument("after", type=Path, metavar="AFTER_SRC")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave what was written in DIR/before and DIR/after")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[command.name for command in COMMANDS])
    given = parser.parse_args()
    sources = {"before": given.before.resolve(), "after": given.after.resolve()}
    for source in sources.values():
        if not (source / PACKAGE / "__init__.py").is_file():
            parser.error(f"{source}: holds no package {PACKAGE}")
    if given.keep:
        given.keep.mkdir(parents=True, exist_ok=True)
        if any(given.keep.iterdir()):
            parser.error(f"{given.keep}: is not empty")
    commands = needed(given.only) if given.only else list(COMMANDS)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name).resolve()
        results = [run_all(commands, place, source, title, given.keep) for title, source in sources.items()]
    sys.exit(1 if report(commands, *results) else 0)


if __name__ == "__main__":
    main()
