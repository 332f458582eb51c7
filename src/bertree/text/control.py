"""Control codes: a text before every sequence that says what kind of text follows (CTRL).

A document's code comes from where it lies (`folder`, `file`) or from a column of its table: `source`, `url`, `date`. Of
a URL the host alone can be taken, and of a date the year: `url:host`, `date:year`.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bertree.errors import UserError
from bertree.text.sources import COMPRESSED, STANDARD_INPUT
from bertree.text.tokenizer import Tokenizer

FOLDER, FILE = "folder", "file"
YEAR = re.compile(r"(?<!\d)(1\d{3}|20\d{2})(?!\d)")
LONGEST = 200  # characters


@dataclass(frozen=True)
class ControlRule:
    """Where the control codes of documents come from."""

    place: str  # "folder", "file" or "": a column
    column: str = ""
    part: str = ""  # "host" of a URL, "year" of a date; "": as it is
    default: str = ""  # code of documents without one; "": they are refused

    @classmethod
    def parse(cls, text: str, default: str = "") -> "ControlRule":
        """Parse `folder`, `file`, or the name of a column, which may end in `:host` or `:year`."""
        if text in (FOLDER, FILE):
            return cls(text, default=default)
        column, colon, part = text.rpartition(":")
        column, part = (column, part) if colon and part in PARTS else (text, "")
        if not column.strip():
            raise UserError(f"control '{text}': is no column; give folder, file, or a column such as url:host")
        return cls("", column, part, default)

    def code(self, path: str, value: Any, where: str) -> str:
        """Return the code of a document of this file, whose column has this value; `where` names it in messages."""
        if self.place and path == STANDARD_INPUT:
            raise UserError(f"control '{self.place}': standard input has none; give files")
        if self.place:
            found = _folder_name(path) if self.place == FOLDER else _file_name(path)
        elif isinstance(value, str | int) and not isinstance(value, bool):
            found = PARTS[self.part](str(value))
        elif value is None:
            found = ""
        else:
            raise UserError(f"{where}: '{self.column}' is {type(value).__name__}, not a text or a whole number")
        code = " ".join(found.split()) or self.default
        if not code:
            missing = f"no {self.part} in '{self.column}'" if self.part and value else f"no '{self.column}'"
            raise UserError(f"{where}: has {missing}, so it has no control code; give `control_default=CODE`")
        if len(code) > LONGEST:
            raise UserError(f"{where}: its control code has {len(code)} characters; the most is {LONGEST}")
        return code


def _folder_name(path: str) -> str:
    return Path(path).absolute().parent.name


def _file_name(path: str) -> str:
    """Return the name of a file without its suffix and that of its compression."""
    name = Path(path)
    return (Path(name.stem) if name.suffix.lower() in COMPRESSED else name).stem


def _host(url: str) -> str:
    try:
        return (urlsplit(url if "//" in url else f"//{url}").hostname or "").removeprefix("www.")
    except ValueError:
        return ""


def _year(date: str) -> str:
    found = YEAR.search(date)
    return found[0] if found else ""


PARTS: dict[str, Callable[[str], str]] = {"": str, "host": _host, "year": _year}


def control_prefix(tokenizer: Tokenizer, code: str) -> list[int]:
    """Return the tokens before a text of this code: [CLS], those of the code, [SEP].

    A tokenizer without [CLS] or [SEP] leaves them out.
    """
    ids = tokenizer.encode_plain([code])[0].ids
    before, after = tokenizer.id_of("cls"), tokenizer.id_of("sep")
    if not ids:
        raise UserError(f"control code '{code}': gives no token; choose a code that the tokenizer can read")
    if {before, after, tokenizer.id_of("unk")} & set(ids):
        raise UserError(f"control code '{code}': gives an unknown or special token; choose a code of plain words")
    return [*([] if before is None else [before]), *ids, *([] if after is None else [after])]
