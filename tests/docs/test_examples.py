"""Every example of README, docs and docstrings runs: Python, command lines, and the JSON that is shown after them.

The files that an example names are small versions of the real ones (`tests.support.documentation`), and what would
take long is made shorter by settings of the tables here. So a page may name no option, setting, function or attribute
that does not exist.
"""

import doctest
import functools
import glob
import importlib.util
import inspect
import itertools
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import bertree
from bertree.cli.main import app
from bertree.comparison import glue_protocol
from bertree.interop import onnx
from bertree.model import presets
from bertree.objectives import embedding_losses, pretraining
from bertree.pretraining import time_budget
from bertree.tasks import registry
from tests.support import asking, documentation
from tests.support.command import Command, make_tree
from tests.support.documentation import PAGES, ROOT, CodeBlock, Library
from tests.support.shared import common_folder

# What is put at the end of a command or a call, to make it short: settings and options.
PHASE = {"steps": 2, "max_length": 32, "batch_tokens": 256}
RUN = {"schedule.warmup": 1, "run.device": "cpu", "run.eval_tokens": 512}
ADAPT = {"phases.0.max_length": 32, "phases.0.batch_tokens": 256, "run.device": "cpu", "run.eval_tokens": 512}
PRETRAIN = {"phases": [PHASE]} | RUN
DISTILL = {f"phases.0.{key}": value for key, value in PHASE.items()} | RUN
FINETUNE = {"epochs": 1, "device": "cpu"}
SETTINGS: dict[str, dict[str, Any]] = {
    "adapt": ADAPT,
    "pretrain": PRETRAIN,
    "finetune": FINETUNE,
    "embeddings train": FINETUNE,
    "distill --store": DISTILL,
    "distill --task": FINETUNE,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "adapt": {"minutes": 0.02, "seeds": 2},
    "prepare": {"workers": 1},
    "distill --store": {"seconds": 0},
    "distill --task": {"seconds": 0},
    "compare": {"seconds": 0.2},
    "study run": {"steps": 2},
}
# Models of the published sizes, which are made small.
SMALL_MODEL = {"model.layers": 2, "model.width": 32, "model.heads": 2}
LARGE = {"bert-base", "bert-small", "my-recipe.toml"}
# Of an example that sets `copies`, or the width of an LSTM.
SMALLER = {"copies": 1, "lstm": 8}
# Words after `$` of lines that are not bertree's.
OTHER_PROGRAMS = {"make", "head"}
# Modules that an example may need and that the tests do not install.
OPTIONAL = {"mteb"}


def short_settings(verb: str, words: str) -> dict[str, Any]:
    """The settings that make a run short. `words` are all of the example."""
    settings = dict(SETTINGS.get(verb, {}))
    if verb == "embeddings train" and "pairs.jsonl" in words:
        settings["examples"] = 24
    large = LARGE & set(re.findall(r"[\w.-]+", words)) and "model.start" not in words
    if large and verb in ("pretrain", "distill --store"):
        settings |= SMALL_MODEL
    return settings | {name: value for name, value in SMALLER.items() if f"{name}=" in words or f"'{name}'" in words}


def as_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={as_toml(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(as_toml, value))}]" if isinstance(value, list) else str(value)


def verb_of(words: list[str]) -> str:
    """The verb of a command line, and of `distill` its kind."""
    if words[0] == "distill":
        return "distill --store" if "--store" in words else "distill --task"
    return (
        " ".join(words[:2])
        if words[0] in ("embeddings", "tokenizer", "index", "store", "recipe", "study")
        else words[0]
    )


def shortened(words: list[str]) -> list[str]:
    """A command line with what makes it short, and with the files that a shell would put in place of `*`."""
    verb = verb_of(words)
    expanded = [name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])]
    settings, more = short_settings(verb, " ".join(words)), dict(OPTIONS.get(verb, {}))
    if "--epochs" in words:
        more["epochs"] = 0.05
        settings.pop("phases.0.steps", None)
    options = [word for name, value in more.items() for word in (f"--{name}", str(value))]
    return [*expanded, *options, *(f"{key}={as_toml(value)}" for key, value in settings.items())]


def shortened_call(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the API that adds what makes it short."""

    @functools.wraps(function)
    def call(*args: Any, **words: Any) -> Any:
        verb = {"train_embeddings": "embeddings train", "run_study": "study run"}.get(name, name)
        verb = f"distill --{'store' if 'store' in words else 'task'}" if name == "distill" else verb
        return function(*args, **words | short_settings(verb, f"{args} {words}") | OPTIONS.get(verb, {}))

    return call


def shorten_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("adapt", "pretrain", "finetune", "distill", "train_embeddings", "compare", "prepare", "run_study"):
        monkeypatch.setattr(bertree, name, shortened_call(name, getattr(bertree, name)), raising=False)
    # A run of so many minutes takes as many steps on a busy machine as on a quiet one.
    monkeypatch.setattr(time_budget, "measure", lambda loop, feed: [0.2] * len(feed.schedule.phases))
    for setting, value in {"RATES": (2e-4,), "SEEDS": 2, "SETTINGS": glue_protocol.SETTINGS | {"epochs": 1}}.items():
        monkeypatch.setattr(glue_protocol, setting, value)
    # What is in such a file is tested where it is read (tests/interop/test_onnx.py).
    monkeypatch.setattr(onnx, "_export", lambda module, path: path.write_bytes(b"made by PyTorch's exporter"))
    monkeypatch.setattr(onnx, "_largest_error", lambda *args: 0.0)


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What an example registers is known to that example only."""
    terms = (pretraining.TERMS, pretraining.WEIGHTS, pretraining.LABELS)
    tables: tuple[dict[str, Any], ...] = (presets.PRESETS, embedding_losses.LOSSES, registry.TASKS, *terms)
    before = [dict(names) for names in tables]
    yield
    for names, old in zip(tables, before, strict=True):
        names.clear()
        names.update(old)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    return Library(common_folder(tmp_path_factory) / "library")


@pytest.fixture
def servers() -> Iterator[list[asking.Asker]]:
    """The servers that an example has started."""
    started: list[asking.Asker] = []
    yield started
    for server in started:
        server.stop()


def run_python(block: CodeBlock, page: Path, variables: dict[str, object]) -> None:
    names = set(re.findall(r"^(?:import|from) ([\w, ]+)", block.text, re.MULTILINE))
    needed = {word.strip() for line in names for word in line.split(",")} & OPTIONAL
    if any(importlib.util.find_spec(name) is None for name in needed):
        return
    code = "\n" * (block.line - 1) + block.text
    exec(compile(code, str(page), "exec"), variables)


def run_console(block: CodeBlock, command: Command, library: Library, folder: Path, servers: list[asking.Asker]) -> str:
    """Run the commands of a block and return what the last one printed. `curl` asks the last of the page's servers."""
    printed = ""
    for words in documentation.commands(block):
        if words[0] == "curl":
            answer = asking.curl(servers[-1], words)
            assert answer.status == 200, f"$ {' '.join(words)}\n{answer.body.decode()}"
            printed = answer.body.decode()
            continue
        if words[:2] == ["bertree", "serve"]:
            library.provide(documentation.files_of_command(words[2:]), folder)
            sources = itertools.takewhile(lambda word: not word.startswith("-"), words[2:])
            servers.append(asking.start([("", Path(source)) for source in sources]))
            continue
        if words[0] != "bertree":
            assert words[0] in OTHER_PROGRAMS, words
            continue
        library.provide(documentation.files_of_command(words[2:]), folder)
        result = command.well(*shortened(words[1:]))
        assert result.out or result.err, words
        printed = result.out
    return printed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(
    page: Path,
    library: Library,
    tmp_path: Path,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
    servers: list[asking.Asker],
) -> None:
    monkeypatch.chdir(tmp_path)
    shorten_calls(monkeypatch)
    variables: dict[str, object] = {"__name__": "example"}
    printed = ""
    if page not in (ROOT / "README.md", documentation.BUNDLED):  # these run the bundled model itself
        library.provide(["default"], tmp_path)
    for block in documentation.blocks(page):
        if block.language == "console":
            printed = run_console(block, command, library, tmp_path, servers)
        elif block.language == "python":
            library.provide(documentation.files_of_python(block.text), tmp_path)
            run_python(block, page, variables)
        elif block.language == "json":
            shown = json.loads(block.text)
            for value in documentation.as_json(printed):
                documentation.same_shape(shown, value, f"{page.name}:{block.line} ")
        elif block.language == "toml":
            Path("my-recipe.toml").write_text(block.text)
            library.provide(re.findall(r'"(.*?)"', block.text), tmp_path)
        else:
            assert block.language == "text", f"{page.name}:{block.line}: what is to be done with {block.language}?"


@pytest.mark.parametrize("name", sorted(set(bertree.__all__) - {"__version__"}))
def test_examples_of_docstrings_run(
    name: str, library: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = doctest.DocTestParser().get_examples(inspect.getdoc(getattr(bertree, name)) or "")
    monkeypatch.chdir(tmp_path)
    shorten_calls(monkeypatch)
    library.provide(["default"], tmp_path)
    variables: dict[str, object] = {"bertree": bertree, name: getattr(bertree, name)}
    for example in examples:
        library.provide(documentation.files_of_python(example.source), tmp_path)
        exec(example.source, variables)


def command_named(words: list[str]) -> Any:
    """The command of a line, or of its verb alone."""
    node: Any = make_tree(app)
    while hasattr(node, "commands") and words and not words[0].startswith("-"):
        assert words[0] in node.commands, f"bertree {' '.join(words)}: no such verb"
        node, words = node.commands[words[0]], words[1:]
    return node


def options_of(command: Any) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}


def mentioned() -> list[list[str]]:
    """Commands in the prose of the pages and in the help texts."""
    commands = [words for page in PAGES for words in documentation.inline_commands(page)]
    for path in sorted((ROOT / "src" / "bertree" / "cli").glob("*.py")):
        for example in re.findall(r"\[dim\](.*?)\[/dim\]", path.read_text(), re.DOTALL):
            lines = [line.partition("bertree ")[2] for line in example.splitlines() if "bertree " in line]
            commands += [shlex.split(line.replace("\\\\[", "[")) for line in lines]
    return commands


def test_commands_that_are_mentioned_exist() -> None:
    lines = [words for words in mentioned() if words[0] not in ("VERB", "...")]
    assert len(lines) > 50
    for words in lines:
        options = options_of(command_named(words))
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in options, f"bertree {' '.join(words)}: {word}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, heading = target.partition("#")
        if not path.startswith("http"):
            file = page.parent / path if path else page
            assert file.exists(), f"{page.name}: {target}"
            assert not heading or heading in documentation.headings(file), f"{page.name}: {target}"


def test_every_verb_is_in_the_table() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        for verb in [f"{name} {other}" for other in getattr(command, "commands", ())] or [name]:
            assert f"`{verb}`" in page, f"docs/cli.md does not name `{verb}`"


def test_every_function_is_described() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    for name in set(bertree.__all__) - {"__version__"}:
        assert re.search(rf"bertree\.{name}\b", page), f"docs/python.md does not name bertree.{name}"
