"""Check the arguments of public functions by their annotations.

A call with an argument of another type, with one that the function does not have, or without one that it needs is a
`WrongArgument` that names it. The annotations are read once, at the first call. Of a list, the first `MOST_ITEMS` items
are checked. The function itself checks lists in lists, and arguments whose annotation says nothing (`Any`, names that
cannot be resolved).
"""

import functools
import inspect
import operator
import os
import reprlib
import sys
import traceback
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ForwardRef, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from bertree.errors import LONGEST_NAME, Inaccessible, UserError, WrongArgument, suggest

P = ParamSpec("P")
R = TypeVar("R")
Class = TypeVar("Class", bound=type)

MOST_ITEMS = 100  # items of a list that are checked
CHECKED_METHODS = ("__init__", "__call__")  # in addition to public ones
SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxlong = SHORT.maxother = LONGEST_NAME


@dataclass(frozen=True)
class _Kind:
    """What an annotation accepts. `noun`: of one value; `plural`: of several.

    `exact`: types whose values need no further check. `items`: what a list's items are. `flat`: it holds no lists.
    """

    noun: str
    plural: str
    accepts: Callable[[Any], bool]
    exact: frozenset[type] = frozenset()
    items: "_Kind | None" = None
    flat: bool = True


def checks_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Let a call of a function with wrong arguments be a `WrongArgument`, before the function runs, and an error of the
    system about a file an `Inaccessible`."""
    names: tuple[str, ...] = ()
    kinds: dict[str, _Kind] | None = None

    @functools.wraps(function)
    def run(*args: P.args, **keywords: P.kwargs) -> R:
        nonlocal names, kinds
        if kinds is None:
            names, kinds = _annotated(function)
        for name, value in chain(zip(names, args, strict=False), keywords.items()):
            kind = kinds.get(name)
            if kind is not None and type(value) not in kind.exact and not kind.accepts(value):
                raise WrongArgument(f"{name}: {_problem(value, kind)}")
        try:
            return function(*args, **keywords)
        except TypeError:  # looked into only now: a call that is right costs nothing
            if problem := _call_problem(function, args, keywords):
                raise WrongArgument(problem) from None
            raise
        except OSError as error:
            if error.filename is None or isinstance(error, UserError) or _is_of_caller(error):
                raise
            raise Inaccessible(error.errno, error.strerror, error.filename) from error
        except UnicodeEncodeError as error:
            if _is_of_caller(error):
                raise
            raise WrongArgument(f"{SHORT.repr(error.object)}: is not valid Unicode, half of a pair") from error

    return run


def _is_of_caller(error: Exception) -> bool:
    """Return whether the code of the caller raised an error, such as an iterator or a callback: it is not changed."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    installed = ("site-packages", "dist-packages")
    return any(
        frame.f_globals.get("__name__", "").partition(".")[0] not in {"bertree", *sys.stdlib_module_names}
        and not any(name in frame.f_code.co_filename for name in installed)
        for frame in frames
    )


def methods_check_arguments(decorated: Class) -> Class:
    """Do so for the constructor and the public methods of a class."""
    for name, member in list(vars(decorated).items()):
        if name.startswith("_") and name not in CHECKED_METHODS:
            continue
        if isinstance(member, classmethod | staticmethod):
            setattr(decorated, name, type(member)(checks_arguments(member.__func__)))
        elif inspect.isfunction(member):
            setattr(decorated, name, checks_arguments(member))
    return decorated


def _call_problem(function: Callable[..., Any], args: Sequence[object], keywords: Mapping[str, object]) -> str:
    signature = inspect.signature(function)
    name = type(args[0]).__name__ if function.__name__ in CHECKED_METHODS else function.__name__
    parameters = [each for each in signature.parameters.values() if each.name != "self"]
    named = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    if all(each.kind is not each.VAR_KEYWORD for each in parameters):
        for keyword in keywords:
            if keyword not in named:
                return f"{name}: has no argument '{keyword}'; {suggest(keyword, named)}"
    try:
        signature.bind(*args, **keywords)
    except TypeError as error:
        return f"{name}: {error}"
    return ""


def _annotated(function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, _Kind]]:
    """Return the names of a function's positional parameters, and what those accept that do not accept everything."""
    parameters = inspect.signature(function).parameters.values()
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    kinds = {}
    for each in parameters:
        if each.annotation is not each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            kind = _kind(each.annotation, namespace)
            if kind is not None:
                kinds[each.name] = kind
    return tuple(each.name for each in parameters if each.kind <= each.POSITIONAL_OR_KEYWORD), kinds


class _PublicNames(dict[str, Any]):
    """The public names of bertree, for annotations with names that their module imports only for the type checker."""

    def __missing__(self, name: str) -> Any:
        package = sys.modules["bertree"]
        if name in package.__all__:
            return getattr(package, name)
        raise KeyError(name)


def _kind(hint: Any, namespace: dict[str, Any]) -> _Kind | None:
    """Return what an annotation accepts; None: everything, as far as can be told."""
    if isinstance(hint, ForwardRef):
        hint = hint.__forward_arg__
    if isinstance(hint, str):
        try:
            hint = eval(hint, namespace, _PublicNames())
        except (NameError, TypeError, AttributeError, SyntaxError):
            return None
    if isinstance(hint, TypeVar):
        return _kind(hint.__bound__ or Any, vars(sys.modules[hint.__module__]))
    if hint is None:
        hint = type(None)
    if hint in SIMPLE:
        return SIMPLE[hint]
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin in (Union, types.UnionType):
        return _union([_kind(each, namespace) for each in arguments])
    if origin is Literal:
        noun = _either([repr(each) for each in arguments])
        return _Kind(noun, noun, lambda value: any(type(value) is type(each) and value == each for each in arguments))
    if origin is Callable:
        return _Kind("a function", "functions", callable)
    if origin is type and arguments:
        return _subclass(arguments[0])
    if hint in (Any, object) or not isinstance(origin, type):
        return None
    if origin is tuple or origin in LISTS:
        different = set(arguments) - {Ellipsis}
        items = _kind(different.pop(), namespace) if len(different) == 1 else None
        if origin is tuple and arguments and Ellipsis not in arguments:
            return _tuple_of(items, len(arguments))
        return _list_of(items, LISTS.get(origin, _is_sequence))
    if issubclass(origin, Mapping) or typing.is_typeddict(origin):
        return _Kind("a dict", "dicts", lambda value: isinstance(value, Mapping), frozenset({dict}))
    if origin.__module__ == "numpy":
        return _Kind("an array of numbers", "arrays of numbers", _is_array)
    return _class(origin)


def _union(kinds: Sequence[_Kind | None]) -> _Kind | None:
    options = [each for each in kinds if each is not None and not (each is TEXT and PATH in kinds)]
    if None in kinds:
        return None
    accepting = [each.accepts for each in options]
    exact = frozenset[type]().union(*(each.exact for each in options))
    with_items = [each for each in options if each.items is not None]
    return _Kind(
        _either([each.noun for each in options]),
        _either([each.plural for each in options]),
        lambda value: any(accepts(value) for accepts in accepting),
        exact,
        with_items[0].items if len(with_items) == 1 else None,
        all(each.flat for each in options),
    )


def _subclass(parent: Any) -> _Kind | None:
    if not isinstance(parent, type):
        return None
    noun, plural = f"a subclass of {parent.__name__}", f"subclasses of {parent.__name__}"
    return _Kind(noun, plural, lambda value: isinstance(value, type) and issubclass(value, parent))


def _list_of(items: _Kind | None, is_list: Callable[[Any], bool]) -> _Kind:
    if items is None:
        return _Kind("a list", "lists", is_list, flat=False)

    def accepts(value: Any) -> bool:
        if not items.flat or not isinstance(value, list | tuple):
            return is_list(value)  # an iterator is not consumed
        return all(map(items.accepts, value[:MOST_ITEMS]))

    return _Kind(f"a list of {items.plural}", f"lists of {items.plural}", accepts, items=items, flat=False)


def _tuple_of(items: _Kind | None, size: int) -> _Kind:
    def accepts(value: Any) -> bool:
        return isinstance(value, tuple) and len(value) == size and (items is None or all(map(items.accepts, value)))

    plural = "values" if items is None else items.plural
    return _Kind(f"a tuple of {size} {plural}", f"tuples of {size} {plural}", accepts, flat=False)


def _class(kind: type) -> _Kind:
    noun, plural = f"{_article(kind.__name__)} {kind.__name__}", f"{kind.__name__}s"
    if not getattr(kind, "_is_protocol", False):
        return _Kind(noun, plural, lambda value: isinstance(value, kind))
    members = [name for name in dir(kind) if not name.startswith("_")]
    return _Kind(noun, plural, lambda value: all(_has(value, name) for name in members))


def _has(value: object, name: str) -> bool:
    """Whether an object has a member, which is not read: a property may compute for long."""
    return any(hasattr(type(value), each) for each in (name, "__getattr__")) or name in getattr(value, "__dict__", ())


def _is_number(value: Any, convert: Callable[[Any], Any]) -> bool:
    if type(value) is int:
        return not _is_huge(value)
    if isinstance(value, NO_LISTS) or _is_truth_value(value):
        return False
    try:
        convert(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False
    return True


def _is_huge(value: object) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**63


def _is_truth_value(value: object) -> bool:
    return isinstance(value, bool) or (type(value).__module__ == "numpy" and type(value).__name__ in ("bool", "bool_"))


def _is_array(value: object) -> bool:
    return _is_sequence(value) and getattr(getattr(value, "dtype", None), "kind", "f") in "biuf"


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and "\0" not in str(value)


def _is_sequence(value: object) -> bool:
    return _is_iterable(value) and hasattr(value, "__len__") and hasattr(value, "__getitem__")


def _is_iterable(value: object) -> bool:
    return hasattr(type(value), "__iter__") and not isinstance(value, NO_LISTS)


def _problem(value: object, kind: _Kind) -> str:
    """Say what is wrong with an argument; of a list, with which of its items."""
    if kind.items is not None and kind.items.flat and isinstance(value, list | tuple):
        for number, item in enumerate(value[:MOST_ITEMS], 1):
            if not kind.items.accepts(item):
                return f"item {number}: {_problem(item, kind.items)}"
    if _is_huge(value):
        return "an int of more than 64 bits is too large"
    return f"{_shown(value)} is not {kind.noun}"


def _shown(value: object) -> str:
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | dict):
        try:
            return " ".join(SHORT.repr(value).split())
        except ValueError:  # an int of thousands of digits
            pass
    return f"{_article(type(value).__name__)} {type(value).__name__}"


def _article(noun: str) -> str:
    return "an" if noun[0] in "AEIOUaeiou" else "a"


def _either(nouns: Sequence[str]) -> str:
    nouns = sorted(dict.fromkeys(nouns), key=lambda noun: (noun == "None", noun.startswith(("a list", "lists"))))
    return nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} or {nouns[-1]}"


NO_LISTS = (str, bytes, bytearray, Mapping)  # can be iterated over, and are no lists
TEXT = _Kind("a string", "strings", lambda value: isinstance(value, str), frozenset({str}))
PATH = _Kind("a path", "paths", _is_path)
SIMPLE: dict[Any, _Kind] = {
    str: TEXT,
    Path: PATH,
    int: _Kind("a whole number", "whole numbers", lambda value: _is_number(value, operator.index)),
    float: _Kind("a number", "numbers", lambda value: _is_number(value, float), frozenset({float})),
    bool: _Kind("True or False", "True or False", _is_truth_value, frozenset({bool})),
    type(None): _Kind("None", "None", lambda value: value is None, frozenset({type(None)})),
}
LISTS: dict[Any, Callable[[Any], bool]] = {
    list: _is_sequence,
    Sequence: _is_sequence,
    Collection: _is_iterable,
    Iterable: _is_iterable,
}
