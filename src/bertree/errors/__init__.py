"""Errors for users: a mistake is one line with what is wrong, where, and what to do.

A `UserError` reaches the terminal as that line with exit code 2, never as a traceback.
Our own bugs are `assert`s and ordinary exceptions.
"""

import difflib
from collections.abc import Iterable

LONGEST_NAME = 60  # characters of a name that a message shows
MOST_KNOWN = 50  # names that a message lists
MOST_COMPARED = 5000  # names among which the nearest is looked for: it takes a millisecond for each hundred


class UserError(Exception):
    """A mistake in what the user gave us: a file, a name, a value."""

    exit_code = 2

    def __str__(self) -> str:
        return " ".join(super().__str__().splitlines())  # names and values may hold line ends


class Interrupted(UserError):
    """Ctrl-C ended the work. The line says what is kept, and how to continue."""

    exit_code = 130


class Unable(UserError, AttributeError):
    """A request that this kind of model cannot answer. For `hasattr`, the attribute does not exist."""


class WrongArgument(UserError, TypeError, ValueError):
    """An argument of a Python function that it does not take: unknown, missing, or of a wrong type or value."""


class Inaccessible(UserError, OSError):
    """A file or folder that the system does not let us read or write: made of its error number, line and path."""

    def __str__(self) -> str:
        return " ".join(f"{self.filename}: {self.strerror}".splitlines())


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
    return f"install the extra '{extra}': pip install 'bertree[{extra}]'"


def suggest(word: str, choices: Iterable[str]) -> str:
    """Return the end of an error line: the nearest known word, or the list of them."""
    choices = sorted(set(choices))
    near = difflib.get_close_matches(word, choices, n=1, cutoff=0.6) if len(choices) <= MOST_COMPARED else []
    return f"did you mean '{near[0]}'?" if near else f"known: {listed(choices, MOST_KNOWN)}"
