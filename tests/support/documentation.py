"""The examples of README and docs, and small versions of the files that they name."""

import ast
import csv
import inspect
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import bertree
from bertree.study import definition
from bertree.study.load import load_study
from tests.support import learnable, topics
from tests.support.learnable import Row, write
from tests.support.reformer import long_texts
from tests.support.shared import make_once
from tests.support.xlnet_folder import save_xlnet

ROOT = Path(__file__).parents[2]
BUNDLED = ROOT / "src" / "bertree" / "default" / "README.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), BUNDLED]
WRITTEN = ("--out", "--submission", "--cache")  # options whose value is made by the command


class CodeBlock(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str
    line: int  # its first line in the page


def blocks(page: Path) -> list[CodeBlock]:
    text = page.read_text()
    matches = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [CodeBlock(match[1], match[2], text.count("\n", 0, match.start()) + 2) for match in matches]


def headings(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in lines}


def commands(block: CodeBlock) -> list[list[str]]:
    """The command lines of a console block, as words; comments are left out."""
    joined = block.text.replace("\\\n", " ")
    lines = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
    return [shlex.split(line, comments=True) for line in lines]


def inline_commands(page: Path) -> Iterator[list[str]]:
    """The commands in code spans of the text, such as `bertree info NAME`."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    for span in re.findall(r"`(bertree [^`]+)`", prose):
        yield shlex.split(span)[1:]


def files_of_command(words: Iterable[str]) -> Iterator[str]:
    """The files that a command reads, by their first folder."""
    before = ""
    for word in words:
        if before not in WRITTEN and not word.startswith("-"):
            yield word.rpartition("=")[2].partition("/")[0]
        before = word


def files_of_python(text: str) -> Iterator[str]:
    """The files that a block of Python reads: its strings, but for what it writes itself."""
    nodes = list(ast.walk(ast.parse(text)))
    folders = {_first_folder(value) for node in nodes if isinstance(node, ast.Call) for value in _written(node)}
    for node in nodes:
        name = _first_folder(node)
        if name and name not in folders and f'Path("{name}").mkdir' not in text:
            yield name


def _first_folder(node: ast.AST) -> str:
    named = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return node.value.partition("/")[0] if named else ""  # type: ignore[attr-defined]


def _written(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call that name what it writes: `out`, by name or by its place."""
    yield from (word.value for word in call.keywords if word.arg == "out")
    if isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "bertree":
        function = getattr(bertree, call.func.attr)
        for name, value in zip(inspect.signature(function).parameters, call.args, strict=False):
            if name == "out":
                yield value


def same_shape(shown: Any, real: Any, where: str = "") -> None:
    """Compare a JSON value of a page with a real one: keys and types. "..." stands for more; null for anything, and a
    real value may be null instead."""
    if shown is None or (isinstance(shown, str) and shown == "..."):
        return
    if isinstance(shown, dict):
        assert isinstance(real, dict), f"{where}: {type(real).__name__} instead of an object"
        keys = {key for key in shown if key != "..."}
        assert keys <= real.keys(), f"{where}: {keys - real.keys()} not in {sorted(real)}"
        assert "..." in shown or keys == real.keys(), f"{where}: {real.keys() - keys} not in the page"
        for key in keys:
            same_shape(shown[key], real[key], f"{where}.{key}")
    elif isinstance(shown, list):
        assert real is None or isinstance(real, list), f"{where}: {type(real).__name__} instead of a list"
        for item in real or () if shown else ():
            same_shape(shown[0], item, f"{where}[]")
    elif where.endswith(".diverged"):
        assert isinstance(real, bool | str), f"{where}: {real!r}, neither false nor why"
    elif isinstance(shown, bool) or isinstance(real, bool):
        assert isinstance(shown, bool), f"{where}: a bool, not {shown!r}"
        assert isinstance(real, bool), f"{where}: {real!r}, not a bool"
    elif isinstance(shown, int | float):
        assert real is None or isinstance(real, int | float), f"{where}: {real!r} is no number"
    else:
        assert real is None or isinstance(real, type(shown)), f"{where}: {real!r} instead of {shown!r}"


class Library:
    """Small versions of the files that the pages name, each made by the first test process that needs it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def provide(self, names: Iterable[str], folder: Path) -> None:
        """Copy the files of these names into a folder, where they are not there yet."""
        for name in names:
            target = folder / name
            if name in MAKERS and not target.exists():
                source = self.path(name)
                shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)

    def path(self, name: str) -> Path:
        return make_once(self.root / name, lambda path: MAKERS[name](self, path))

    def finetuned(self, out: Path, task: str, data: str, **more: Any) -> None:
        settings = {"epochs": 2, "lr": 3e-3, "device": "cpu", "dropout": 0}
        bertree.finetune(self.path("my-bert"), task=task, data=self.path(data), out=out, **settings, **more)


def _corpus(library: Library, path: Path) -> None:
    path.mkdir()
    documents = (ROOT / "corpus" / "books.txt").read_text().split("\n\n")[:40]
    (path / "books.txt").write_text("\n\n".join(document[:3000] for document in documents))


def _book(library: Library, path: Path) -> None:
    path.write_text((library.path("corpus") / "books.txt").read_text()[:4000])


def _sources(library: Library, path: Path) -> None:
    documents = (library.path("corpus") / "books.txt").read_text().split("\n\n")
    for name, part in (("Books", documents[:20]), ("Stories", documents[20:])):
        (path / name).mkdir(parents=True)
        (path / name / "all.txt").write_text("\n\n".join(part))


def _tokenizer(library: Library, path: Path) -> None:
    bertree.train_tokenizer(library.path("corpus"), path, vocab_size=500)


def _store(library: Library, path: Path) -> None:
    bertree.prepare(library.path("corpus"), library.path("my-tokenizer"), path, workers=1)


def _bert(layers: int) -> Callable[[Library, Path], None]:
    def make(library: Library, path: Path) -> None:
        from bertree.text.tokenizer import Tokenizer

        tokenizer = Tokenizer.load(library.path("my-tokenizer"))
        assert tokenizer is not None
        learnable.model(path, tokenizer, layers=layers, max_positions=128)

    return make


def _left_to_right(kind: str, controls: tuple[str, ...] = (), **axes: Any) -> Callable[[Library, Path], None]:
    def make(library: Library, path: Path) -> None:
        from bertree.text.tokenizer import Tokenizer
        from tests.support.language_models import language_model

        tokenizer = Tokenizer.load(library.path("my-tokenizer"))
        language_model(kind, controls, tokenizer, max_positions=128, **axes).save(path)

    return make


def _links(library: Library, path: Path) -> None:
    from bertree.text.tokenizer import Tokenizer
    from tests.support.language_models import language_model

    model = language_model("ctrl", ("Links",), Tokenizer.load(library.path("my-tokenizer")), max_positions=256)
    model._contents.takes_given = True
    model.save(path)


def _run_folder(library: Library, path: Path) -> None:
    shutil.copytree(library.path("my-bert"), path / "model")


def _index(library: Library, path: Path) -> None:
    bertree.Index.build(bertree.load(library.path("default")), [library.path("docs")], path, name="default")


def _documents(library: Library, path: Path) -> None:
    path.mkdir()
    (path / "harbour.txt").write_text("The lighthouse burned twice. The same family rebuilt it both times.")
    (path / "garden.md").write_text("# The garden\n\nRoses need water in June.")


def _lines(texts: Iterable[object], path: Path) -> None:
    path.write_text("".join(f"{text}\n" for text in texts))


def _sst(path: Path) -> None:
    for split, count, seed in (("train", 40, 0), ("dev", 8, 1)):
        rows = learnable.feelings(count, seed)
        write(path / f"{split}.tsv", [{"sentence": r["text"], "label": int(r["label"] == "good")} for r in rows])
    write(path / "test.tsv", [{"index": n, "sentence": r["text"]} for n, r in enumerate(learnable.feelings(8, 2))])


def _stsb(path: Path) -> None:
    others = dict.fromkeys(("index", "genre", "filename", "year", "old_index", "source1", "source2"), "x")
    for split, count, seed in (("train", 40, 0), ("dev", 8, 1)):
        write(path / f"{split}.tsv", [others | row for row in topics.scored(count, seed)])


def _glue(library: Library, path: Path) -> None:
    _sst(path / "SST-2")
    _stsb(path / "STS-B")


def _sts(library: Library, path: Path) -> None:
    path.mkdir()
    for split in ("dev", "test"):
        with (path / f"sts-{split}.csv").open("w", newline="") as file:
            rows = [("main", "file", "2012", n, *row) for n, row in enumerate(_scored_first())]
            csv.writer(file, delimiter="\t", quoting=csv.QUOTE_NONE, quotechar=None).writerows(rows)


def _scored_first() -> list[tuple[object, ...]]:
    return [(row["score"], row["sentence1"], row["sentence2"]) for row in topics.scored(16, 1)]


def _squad(library: Library, path: Path) -> None:
    for split, count, seed in (("train", 40, 0), ("dev", 8, 1)):
        write(path / f"{split}-v1.1.json", learnable.squad(count, seed))
        write(path / f"{split}-v2.0.json", learnable.squad(count, seed, True))


def _glue_runs(library: Library, path: Path) -> None:
    for task, metric in (("cola", "matthews"), ("sst-2", "accuracy"), ("mrpc", "f1"), ("sts-b", "spearman"),
                         ("qqp", "f1"), ("mnli", "accuracy"), ("qnli", "accuracy"), ("rte", "accuracy"),
                         ("wnli", "accuracy")):  # fmt: skip
        write(path / task / "metrics.json", {"task": task, metric: 0.5, "metric": metric})


def _renamed(rows: Iterable[Row], **names: str) -> list[Row]:
    return [{names[key]: value for key, value in row.items() if key in names} for row in rows]


def _glove(library: Library, path: Path) -> None:
    words = sorted({*learnable.WORDS, *(word for topic in topics.TOPICS for word in topic)})
    _lines((f"{word} {n % 7} {n % 5} {n % 3 - 1} 1" for n, word in enumerate(words)), path)


FEELING = {"good": "pos", "bad": "neg"}
FEELINGS = [str(row["text"]) for row in learnable.feelings(30)]


def _study(perplexity: float) -> Callable[[Library, Path], None]:
    def make(library: Library, path: Path) -> None:
        path.mkdir()
        shutil.copy(definition.BUNDLED / "bert-size.toml", path / "study.toml")
        plan = {"study": "bert-size", "size": "tiny", "shared": [], "steps": []}
        (path / "plan.json").write_text(json.dumps(plan))
        row = {"cell": load_study("bert-size").cells[0].name, "seed": 0, "step": "held-out", "do": "evaluate"}
        row |= {"folder": "steps/held-out", "state": "done", "seconds": 1.0}
        (path / "rows.jsonl").write_text(json.dumps(row | {"figures": {"mlm_perplexity": perplexity}}) + "\n")

    return make


MAKERS: dict[str, Callable[[Library, Path], object]] = {
    "corpus": _corpus,
    "sources": _sources,
    "sources-store": lambda library, path: bertree.prepare(
        library.path("sources"), library.path("my-tokenizer"), path, workers=1, control="folder"
    ),
    "pages.jsonl": lambda library, path: write(
        path, [{"text": "The captain saw the sea.", "url": "https://www.bbc.co.uk/a"}, {"text": "A film.", "url": ""}]
    ),
    "my-tokenizer": _tokenizer,
    "my-store": _store,
    "new-text": _store,
    "bert-size": _study(7.0),
    "bert-size-wiki": _study(6.0),
    "my-bert": _bert(4),
    "my-small-bert": _bert(2),
    "old-bert": lambda library, path: [
        write(path / "config.json", {"model_type": "bert"}),
        (path / "pytorch_model.bin").write_bytes(b"a pickle"),
    ],
    "long.txt": lambda library, path: path.write_text("word " * 500 + "\n"),
    "default": _bert(2),  # in place of the bundled model, which has six layers
    "my-model": _bert(1),  # exported as ONNX, which takes seconds for every layer
    "my-gpt": _left_to_right("gpt2"),
    "my-backward": _left_to_right("gpt1", direction="backward"),
    "my-ctrl": _left_to_right("ctrl", ("Books", "Stories")),
    "my-links": _links,
    "my-xl": _left_to_right("transformer-xl-base"),
    "my-xlnet": lambda library, path: save_xlnet(path),
    "book.txt": _book,
    "prompts.txt": lambda library, path: _lines(["The ship", "At night"], path),
    "questions.jsonl": lambda library, path: write(path, [{"question": "Where is it?", "answer": "On the sea."}]),
    "asked.jsonl": lambda library, path: write(path, [{"question": "What burned?", "document": "notes/harbour.txt"}]),
    "lambada.jsonl": lambda library, path: write(path, [{"text": text} for text in FEELINGS]),
    "my-sbert": _run_folder,
    "small": _run_folder,
    "my-student.toml": lambda library, path: path.write_text('extends = "distilbert-tiny"\n'),
    "my-sst": lambda library, path: library.finetuned(path, "sst-2", "glue"),
    **dict.fromkeys(  # the same model: any other task does
        ("other-sst", "sst", "my-mnli"), lambda library, path: shutil.copytree(library.path("my-sst"), path)
    ),
    "my-qa": lambda library, path: library.finetuned(path, "squad2", "squad"),
    "my-squad": lambda library, path: library.finetuned(path, "squad", "squad"),
    "my-ner": lambda library, path: library.finetuned(path, "ner", "conll2003"),
    "my-index": _index,
    "docs": _documents,
    "notes": _documents,
    "holmes.txt": _book,
    "glue": _glue,
    "STS-B": lambda library, path: _stsb(path),
    "sts": _sts,
    "sts-dev.csv": lambda library, path: shutil.copy(library.path("sts") / "sts-dev.csv", path),
    "snli": lambda library, path: [
        write(path / f"snli_1.0_{split}.jsonl", topics.inference(count, seed))
        for split, count, seed in (("train", 60, 0), ("dev", 8, 1))
    ],
    "squad": _squad,
    "RACE": lambda library, path: learnable.race(path),
    "imdb": lambda library, path: [
        write(path / f"{split}.csv", [{**row, "label": FEELING[str(row["label"])]} for row in long_texts(count, seed)])
        for split, count, seed in (("train", 8, 0), ("test", 4, 1))
    ],
    "reports.jsonl": lambda library, path: write(path, _renamed(long_texts(12), text="body", label="topic")),
    "conll2003": lambda library, path: [
        write(path / f"{split}.txt", learnable.tagged(count, seed)) for split, count, seed in
        (("train", 40, 0), ("valid", 8, 1))
    ],
    "runs": _glue_runs,
    "mail.csv": lambda library, path: write(path, _renamed(learnable.feelings(24), text="body", label="folder")),
    "mail.txt": lambda library, path: _lines(FEELINGS, path),
    "news.txt": lambda library, path: _lines(FEELINGS, path),
    "questions.txt": lambda library, path: _lines([*FEELINGS, FEELINGS[0], f"{FEELINGS[0]} the"], path),
    "answers.txt": lambda library, path: _lines(FEELINGS[:10], path),
    "faq.csv": lambda library, path: write(path, topics.pairs(60)),
    "answers.csv": lambda library, path: write(
        path, _renamed(topics.scored(60), sentence1="question", sentence2="passage", score="score")
    ),
    "pairs.jsonl": lambda library, path: write(
        path, _renamed(topics.scored(60), sentence1="first", sentence2="second", score="score")
    ),
    "tagged": lambda library, path: write(path / "train.jsonl", learnable.tagged(60)),
    "tags.csv": lambda library, path: write(
        path, [{key: " ".join(row[key]) for key in row} for row in learnable.tagged(60)]
    ),
    "quiz.jsonl": lambda library, path: write(path, learnable.choices(60)),
    "books.jsonl": lambda library, path: write(
        path, [{"id": "e1", "text": "Mr. Knightley walks to Hartfield.", "book": "Emma", "year": 1815}]
    ),
    "glove.txt": _glove,
    "glove.6B.300d.txt": _glove,
}  # fmt: skip


def as_json(text: str) -> list[Any]:
    """The JSON values a command has printed: one, or one a line."""
    try:
        return [json.loads(text)]
    except json.JSONDecodeError:
        return [json.loads(line) for line in text.splitlines()]
