"""Wrong arguments of public functions are refused by their annotations, before anything is read."""

import errno
import inspect
import re
import timeit
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import bertree
from bertree.errors.arguments import checks_arguments
from bertree.inference.task_model import TaskModel
from bertree.search.searcher import Searcher
from bertree.tasks.task import Task
from bertree.text.memory import rows_of
from tests.support import learnable
from tests.support.language_models import language_model

CLASSES = (bertree.Model, TaskModel, bertree.Tokenizer, bertree.Index, bertree.PostgresIndex, bertree.TextTask)
# A wrong value, and the words of an annotation that make it a right one.
PROBES: list[tuple[Any, set[str]]] = [
    ("two", {"str", "Path"}),
    (3, {"int", "float"}),
    (2.5, {"float"}),
    (True, {"bool", "Literal"}),
    (b"two", set()),
    ("\0", {"str"}),
    (None, {"None"}),
    ({"a": 1}, {"Mapping", "dict"}),
    ([object()], {"Sequence", "Iterable", "tuple", "list", "ndarray"}),
    (object(), set()),
    (10**30, set()),
]
ANYTHING = {"Any", "object", "Example", "Rows"}


def public_functions() -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """The name of each public function and method, the function, and the instance to call it with."""
    for name in bertree.__all__:
        value = getattr(bertree, name)
        if inspect.isfunction(value):
            yield name, value, ()
    for kind in CLASSES:
        for name, member in inspect.getmembers(kind, callable):
            if name.startswith("_") and name not in ("__init__", "__call__"):
                continue
            if name not in vars(kind) and name in vars(Task):  # the tasks' own interface, which training calls
                continue
            if inspect.ismethod(member):
                yield f"{kind.__name__}.{name}", member, ()
            elif inspect.isfunction(member):
                yield f"{kind.__name__}.{name}", member, (object.__new__(kind),)


def words(annotation: object) -> set[str]:
    """The outermost types of an annotation, as words: `int | Sequence[str]` has int and Sequence."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = text.replace("NoneType", "None")
    if "Union[" in text:
        text = re.sub(r"(typing\.)?Union\[(.*)\]", r"\2", text)
    while text != (text := re.sub(r"\[[^\[\]]*\]", "", text)):
        pass
    return {each.rpartition(".")[2].strip("~") for each in re.findall(r"[\w.~]+", text)}


def wrong_values(annotation: object) -> list[Any]:
    """Values that an annotation excludes."""
    accepted = words(annotation)
    if annotation is inspect.Parameter.empty or accepted & ANYTHING:
        return []
    if "Path" in accepted:
        accepted -= {"str"}  # a path has no null characters
    return [value for value, right in PROBES if not right & accepted]


def test_every_wrong_type_of_every_argument_is_refused_by_name() -> None:
    calls = 0
    for title, function, instance in public_functions():
        parameters = list(inspect.signature(function).parameters.values())[len(instance) :]
        for place, parameter in enumerate(parameters):
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            for value in wrong_values(parameter.annotation):
                with pytest.raises(bertree.UserError) as raised:
                    function(*instance, **{parameter.name: value})
                assert str(raised.value).startswith(f"{parameter.name}: "), f"{title}: {raised.value}"
                assert isinstance(raised.value, TypeError)
                assert isinstance(raised.value, ValueError)
                assert "\n" not in str(raised.value)
                calls += 1
                if place == 0 and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
                    with pytest.raises(bertree.UserError, match=f"^{parameter.name}: "):
                        function(*instance, value)
                    calls += 1
    assert calls > 4000, calls


def test_wrong_values_are_refused_by_name() -> None:
    model, tokenizer = language_model("ctrl", controls=("boat",)), learnable.tokenizer()
    calls: list[tuple[str, Callable[[], object]]] = [
        ("similarities", lambda: model.percentile(np.array(["high"]))),
        ("vectors", lambda: Searcher.nearest(object.__new__(bertree.Index), np.array([["high"]]))),
        ("similarity", lambda: model.similarity(np.array(["high"]), "low")),
        ("vectors", lambda: Searcher.nearest(object.__new__(bertree.Index), np.array(5.0))),
        ("file", lambda: bertree.write_features("default", None, "features")),
        ("k", lambda: bertree.similar("default", "a boat", "a ship", k=0)),
        ("jobs", lambda: bertree.run_study("bert-size", jobs=0)),
        ("seeds", lambda: bertree.train_embeddings("default", data=[{"one": "a", "two": "b"}] * 20, seeds=0)),
        ("corpus", lambda: bertree.prepare(None, "default", "store")),
        ("`seconds=1e", lambda: bertree.compare(["default", "default"], texts=["a boat"], seconds=1e308)),
        ("codes", lambda: model.attribute("a boat", codes=[])),
        ("beams", lambda: model.generate("a boat", beams=2**31)),
        ("tokens", lambda: model.generate("a boat", tokens=2**31)),
        ("memory", lambda: language_model("zeros").perplexity(["a boat"], memory=2**31)),
        ("k", lambda: bertree.find_pairs("default", "texts.txt", k=-1)),
        ("'.ud800'", lambda: tokenizer.save("\ud800")),
        ("seeds", lambda: bertree.run_study("bert-size", seeds=2**31, dry_run=True)),
        ("k", lambda: Searcher.nearest(object.__new__(bertree.Index), np.zeros((1, 2), np.float32), -1)),
        ("ids", lambda: tokenizer.convert_ids_to_tokens(-1)),
        ("ids", lambda: tokenizer.convert_ids_to_tokens([2**32])),
        ("decode", lambda: tokenizer.decode([{}])),
        ("decode", lambda: tokenizer.decode([1, "a"])),
        ("decode", lambda: tokenizer.decode(2**40)),
        ("data", lambda: bertree.evaluate_embeddings("default", data=None)),
        ("length", lambda: tokenizer.spelling(2)),
        ("texts", lambda: list(rows_of({"a": 1}, "texts"))),
    ]
    for name, call in calls:
        with pytest.raises(bertree.UserError, match=f"^{name}.*: "):
            call()


def test_what_the_system_refuses_is_one_line_and_an_error_of_the_system() -> None:
    for call in (bertree.info, bertree.verify, learnable.tokenizer().save):
        with pytest.raises(bertree.UserError, match=r"^a{300}(/[\w.]+)?: File name too long$") as raised:
            call("a" * 300)
        assert isinstance(raised.value, OSError)
        assert raised.value.errno == errno.ENAMETOOLONG


def test_a_tokenizer_makes_its_folder(tmp_path: Path) -> None:
    learnable.tokenizer().save(tmp_path / "new" / "folder")
    loaded = bertree.Tokenizer.load(tmp_path / "new" / "folder")
    assert loaded is not None
    assert loaded.size == learnable.tokenizer().size
    assert loaded.token(-5) == "<-5>"


@checks_arguments
def sample(
    number: int = 1,
    share: float = 1.0,
    flag: bool = False,
    path: Path = Path(),
    names: Sequence[str] = (),
    either: str | Sequence[str] = "",
    kind: Literal["a", "b"] = "a",
    function: Callable[[], None] | None = None,
    table: Mapping[str, int] | None = None,
    texts: Iterable[str] = (),
    size: tuple[int, int] = (1, 1),
    unknown: "Missing" = None,  # type: ignore[name-defined]  # noqa: F821
) -> None:
    """Take an argument of each kind."""


RIGHT: list[dict[str, Any]] = [
    {"number": np.int64(3)},
    {"share": np.float32(3)},
    {"share": 3},
    {"flag": np.True_},
    {"path": "a"},
    {"names": np.array(["a"])},
    {"names": ["a"] * 1000},
    {"either": "a"},
    {"either": ["a"]},
    {"function": print},
    {"table": {}},
    {"texts": iter(["a"])},
    {"texts": {"a", "b"}},
    {"size": (2, 3)},
    {"unknown": object()},
]
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"number": "two"}, "number: 'two' is not a whole number"),
    ({"number": True}, "number: True is not a whole number"),
    ({"number": 2.0}, "number: 2.0 is not a whole number"),
    ({"number": 10**5000}, "number: an int of more than 64 bits is too large"),
    ({"share": "0.5"}, "share: '0.5' is not a number"),
    ({"flag": 1}, "flag: 1 is not True or False"),
    ({"path": "a\0"}, r"path: 'a\x00' is not a path"),
    ({"names": "ab"}, "names: 'ab' is not a list of strings"),
    ({"names": ["a", 3]}, "names: item 2: 3 is not a string"),
    ({"either": {"a": 1}}, "either: {'a': 1} is not a string or a list of strings"),
    ({"kind": "c"}, "kind: 'c' is not 'a' or 'b'"),
    ({"function": 3}, "function: 3 is not a function or None"),
    ({"table": [("a", 1)]}, "table: [('a', 1)] is not a dict or None"),
    ({"texts": 3}, "texts: 3 is not a list of strings"),
    ({"size": (1, 2, 3)}, "size: (1, 2, 3) is not a tuple of 2 whole numbers"),
    ({"size": object()}, "size: an object is not a tuple of 2 whole numbers"),
    ({"numbr": 3}, "sample: has no argument 'numbr'; did you mean 'number'?"),
]


def test_what_is_accepted() -> None:
    for arguments in RIGHT:
        sample(**arguments)


def test_what_is_refused() -> None:
    for arguments, message in WRONG:
        with pytest.raises(bertree.UserError) as raised:
            sample(**arguments)
        assert str(raised.value) == message


def test_a_check_takes_microseconds() -> None:
    def call() -> None:
        sample(3, 0.5, path="a", names=["a", "b"], either=["c"])

    call()
    assert min(timeit.repeat(call, number=100, repeat=5)) / 100 < 50e-6
