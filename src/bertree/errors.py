"""What a user did wrong, said in one line: what, where, what to do.

A `UserError` reaches the terminal as that line with exit code 2, never as a traceback.
Our own bugs are `assert`s and ordinary exceptions.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Class = TypeVar("Class", bound=type)

LONGEST_NAME = 60  # characters of a name that a message shows
MOST_KNOWN = 50  # names that a message lists
MOST_COMPARED = 5000  # names among which the nearest is looked for: it takes a millisecond for each hundred


class UserError(Exception):
    """A mistake in what the user gave us: a file, a name, a value."""


class Unable(UserError, AttributeError):
    """What a model was asked for that its kind cannot do; to `hasattr` it is not there."""


class BertreeWarning(UserWarning):
    """Something the user should know that does not stop the work (truncated text, random weights)."""


class TextsCut(BertreeWarning):
    """Texts that were too long: how many of how many were cut to how many tokens, and the tokens dropped."""

    def __init__(self, texts: int, of: int, limit: int, tokens: int) -> None:
        super().__init__(f"{texts} of {of} texts cut to {limit} tokens ({tokens} tokens dropped)")
        self.texts, self.of, self.limit, self.tokens = texts, of, limit, tokens


def listed(names: Iterable[object], most: int = 20) -> str:
    """Return names with commas between them; of very many, the first ones and how many there are."""
    shown = [text if len(text := str(name)) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}..." for name in names]
    if len(shown) <= most:
        return ", ".join(shown)
    return f"{', '.join(shown[:most])}, ... ({len(shown):,} in all)"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: 1 layer, 12 layers."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def device_problem(error: Exception) -> str:
    """Return why PyTorch does not take a device."""
    line = str(error).splitlines()[0]
    return "known: auto, cpu, cuda, cuda:1 ..." if line.startswith("Expected one of") else line


def install_hint(extra: str) -> str:
    """Return the end of an error line: how to install what an optional feature of bertree needs."""
    return f"install the extra '{extra}': pip install -e '.[{extra}]' in the folder of bertree"


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error line: the nearest known word, or the list of them."""
    choices = sorted(set(choices))
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6) if len(choices) <= MOST_COMPARED else []
    return f"did you mean '{near[0]}'?" if near else f"known: {listed(choices, MOST_KNOWN)}"


def refuses_unknown(function: Callable[P, R]) -> Callable[P, R]:
    """Let a call of a function with arguments that it does not have, or without those it needs, be a `UserError`."""

    @functools.wraps(function)
    def run(*args: P.args, **keywords: P.kwargs) -> R:
        try:
            return function(*args, **keywords)
        except TypeError:  # looked into only now: a call that is right costs nothing
            if problem := _call_problem(function, args, keywords):
                raise UserError(problem) from None
            raise

    return run


def methods_refuse_unknown(decorated: Class) -> Class:
    """Do so for the public methods of a class."""
    for name, member in list(vars(decorated).items()):
        if inspect.isfunction(member) and (name == "__call__" or not name.startswith("_")):
            setattr(decorated, name, refuses_unknown(member))
    return decorated


def _call_problem(function: Callable[..., Any], args: Sequence[object], keywords: Mapping[str, object]) -> str:
    signature = inspect.signature(function)
    name = type(args[0]).__name__ if function.__name__ == "__call__" else function.__name__
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
