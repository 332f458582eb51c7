"""The reader of settings: types, bounds at the field, names of mistakes; TOML that reads back as it was."""

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest

from bertree.config import settings
from bertree.config.settings import Above, AtLeast, AtMost, Keys, OneOf, Share
from bertree.errors import UserError
from bertree.files.formats import parse_json, parse_toml, read_json, read_toml, toml_text


@dataclass(frozen=True)
class Inner:
    rate: Annotated[float, Above(0)] = 0.5
    count: Annotated[int, AtLeast(1), AtMost(100)] = 1
    shares: Annotated[tuple[float, float], Share()] = (0.1, 0.2)
    word: Annotated[str, OneOf(("short", "long"), {"brief": "short"})] = "short"
    maybe: float | None = None


@dataclass(frozen=True)
class Needed:
    size: int
    must: Annotated[int, AtLeast(1)] = 0  # a default that says: give one


@dataclass(frozen=True)
class Config:
    name: str = ""
    inner: Inner = Inner()
    several: tuple[Needed, ...] = ()
    weights: Annotated[dict[str, float], Keys({"a": 1.0, "b": 0.0}), AtLeast(0)] = field(default_factory=dict)
    free: dict[str, Any] = field(default_factory=dict)
    source: str = field(default="here", metadata=settings.NOT_A_SETTING)


def test_values_are_read_as_their_types() -> None:
    examples = settings.read(
        Config,
        {
            "inner": {"rate": 2, "word": "brief", "maybe": None},
            "several": [{"size": 3, "must": 1}],
            "weights": {"b": 3},
            "free": {"x": [1]},
        },
        "f.toml",
    )
    assert examples.inner == Inner(2.0, word="short")
    assert type(examples.inner.rate) is float
    assert examples.several == (Needed(3, 1),)
    assert examples.weights == {"a": 1.0, "b": 3.0}
    assert examples.free == {"x": [1]}


WRONG: dict[str, tuple[Any, str]] = {
    "not a table": (3, "f.toml: must be a table"),
    "unknown": ({"innr": {}}, "f.toml: innr: unknown key, did you mean 'inner'?"),
    "empty": ({"": 1}, 'f.toml: "": unknown key, known: '),
    "empty within": ({"inner": {"": 1}}, 'f.toml: inner."": unknown key, known: '),
    "unknown within": ({"inner": {"rat": 1}}, "f.toml: inner.rat: unknown key, did you mean 'rate'?"),
    "not a setting": ({"source": "x"}, "f.toml: source: unknown key"),
    "wrong type": ({"inner": {"rate": "x"}}, "f.toml: inner.rate: must be a number, not 'x'"),
    "true is no number": ({"inner": {"count": True}}, "inner.count: must be a whole number, not True"),
    "bound": ({"inner": {"rate": 0}}, "f.toml: inner.rate: must be above 0, not 0.0"),
    "two bounds": ({"inner": {"count": 101}}, "inner.count: must be at most 100, not 101"),
    "infinite": ({"inner": {"rate": float("inf")}}, "inner.rate: must be finite"),
    "each of a list": ({"inner": {"shares": [0.5, 1.0]}}, "inner.shares: must lie in [0, 1), not 1.0"),
    "length of a list": ({"inner": {"shares": [0.5]}}, "inner.shares: must be a list of 2 values, not 1"),
    "option": ({"inner": {"word": "lon"}}, "inner.word: unknown value 'lon', did you mean 'long'?"),
    "missing": ({"several": [{"size": 1, "must": 1}, {}]}, "several.1.size: is missing"),
    "a default that is refused": ({"several": [{"size": 1}]}, "several.0.must: must be at least 1, not 0"),
    "key of a table": ({"weights": {"c": 1}}, "weights.c: unknown key, known: a, b"),
    "value in a table": ({"weights": {"b": -1}}, "weights.b: must not be negative, but is -1.0"),
    "a number of many digits": ({"inner": {"count": 10**400}}, "inner.count: must be at most 9223372036854775807"),
    "the same as a fraction": ({"inner": {"rate": 10**400}}, "inner.rate: must be a number"),
    "half a character": ({"name": "\udcff"}, r"f.toml: name: must be valid Unicode text, not '\udcff'"),
    "half a character as a key": ({"free": {"\udcff": 1}}, r"f.toml: free: '\udcff': is not a key"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_named(case: str) -> None:
    values, message = WRONG[case]
    with pytest.raises(UserError) as caught:
        settings.read(Config, values, "f.toml")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 200


def test_what_is_written_is_read_again() -> None:
    inner, several = Inner(1e-7, 3, maybe=1.5), (Needed(1, 2), Needed(3, 4))
    config = Config('a "b"\n\\ 😀', inner, several, {"a": 0.0, "b": 2.0}, {"y": [True]})
    text = settings.as_toml(config)
    assert settings.read(Config, tomllib.loads(text), "f") == config
    assert "source" not in text
    assert settings.differences(config, config) == []
    assert settings.differences(config, Config("x", config.inner, (), config.weights, config.free)) == [
        "name", "several", "several.0.must", "several.0.size", "several.1.must", "several.1.size",
    ]  # fmt: skip


def test_one_writer_of_toml() -> None:
    tree = {"name": "x", "a": {"k": 1.0, "t": True}, "phases": [{"n": 1}, {"n": 2}]}
    assert toml_text(tree) == 'name = "x"\n\n[a]\nk = 1.0\nt = true\n\n[[phases]]\nn = 1\n\n[[phases]]\nn = 2\n'
    assert toml_text({"a": {"k": [1]}}) == "[a]\nk = [1]\n"


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"x = {DEEP}", "nested too deeply"),
        ("x = " + "9" * 5000, "too many digits"),
        ("x = [", "TOML"),
        ("x" * 2_000_000, "at most"),
    ],
)
def test_untrusted_toml(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text(text)
    for read in (lambda: read_toml(tmp_path / "f.toml"), lambda: parse_toml(text, "f.toml")):
        with pytest.raises(UserError, match=r"f\.toml: is not valid TOML") as caught:
            read()
        assert reason in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (DEEP, "nested too deeply"),
        ('{"a": ' + "9" * 5000 + "}", "too many digits"),
        ("{", "JSON"),
        ("\ufeff{}", "JSON"),
    ],
)
def test_untrusted_json(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "f.json").write_text(text)
    for read in (lambda: read_json(tmp_path / "f.json"), lambda: parse_json(text, "f.json")):
        with pytest.raises(UserError, match=r"f\.json: is not valid JSON") as caught:
            read()
        assert reason in str(caught.value)
