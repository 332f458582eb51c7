"""What a user did wrong, said in one line: what, where, what to do.

A `UserError` reaches the terminal as that line with exit code 2, never as a traceback.
Our own bugs are `assert`s and ordinary exceptions.
"""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave us: a file, a name, a value."""


class BertreeWarning(UserWarning):
    """Something the user should know that does not stop the work (truncated text, random weights)."""


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error line: the nearest known word, or the list of them."""
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
