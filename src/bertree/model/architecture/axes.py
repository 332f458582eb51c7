"""Axes of an architecture: a field with its default, its meaning for `bertree info`, and its bounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from bertree.errors import suggest

MAX_WIDTH, MAX_ROWS = 2**17, 2**25  # of any vector, and of any table: files are not trusted

Bound = Callable[[Any], str]  # value -> what is wrong with it; empty if nothing is


def axis(default: Any, meaning: str, *bounds: Bound) -> Any:
    """Declare an axis: a field of a frozen dataclass."""
    return field(default=default, metadata={"meaning": meaning, "bounds": bounds})


def positive(value: float) -> str:
    """A size: at least 1."""
    return "" if value >= 1 else f"must be at least 1, not {value}"


def not_negative(value: float) -> str:
    """A number that may be 0."""
    return "" if value >= 0 else f"must not be negative, but is {value}"


def above_zero(value: float) -> str:
    """A number above 0."""
    return "" if value > 0 else f"must be above 0, not {value}"


def probability(value: float) -> str:
    """A share of elements that are dropped."""
    return "" if 0 <= value < 1 else f"must lie in [0, 1), not {value}"


@dataclass(frozen=True)
class at_most:  # like the functions beside it
    """A number with an upper limit."""

    most: int

    def __call__(self, value: float) -> str:
        return "" if value <= self.most else f"{value} is more than the {self.most} supported"


@dataclass(frozen=True)
class one_of:
    """One of some words."""

    options: Sequence[str]

    def __call__(self, value: str) -> str:
        return "" if value in self.options else f"unknown value '{value}', {suggest(value, self.options)}"


@dataclass(frozen=True)
class list_of:
    """Some words, divided by commas."""

    options: Sequence[str]

    def __call__(self, value: str) -> str:
        return next(filter(None, map(one_of(self.options), value.split(","))), "")


def list_of_rising_numbers(value: str) -> str:
    """Whole numbers that rise, divided by commas; may be empty."""
    parts = value.split(",") if value else []
    if not all(map(_is_number, parts)):
        return f"must be whole numbers divided by commas, not '{value}'"
    numbers = [int(part) for part in parts]
    return "" if numbers == sorted(set(numbers)) else f"{value}: each number must be larger than the one before"


def two_sizes(value: str) -> str:
    """Two sizes, divided by a comma; may be empty."""
    parts = value.split(",")
    if not value or (len(parts) == 2 and all(_is_number(part) and int(part) >= 1 for part in parts)):
        return ""
    return f"must be two whole numbers of at least 1 divided by a comma, not '{value}'"


def bucket_counts(value: str) -> str:
    """An even number, or two even factors; 0: none is fixed."""
    parts = value.split(",")
    if value == "0":
        return ""
    if len(parts) > 2 or not all(map(_is_number, parts)):
        return f"must be an even number, or two even factors such as 32,64, not '{value}'"
    works = ",".join(str(max(2, int(part) + int(part) % 2)) for part in parts)
    if works != value:
        return f"each hash has as many buckets on either side of 0, so numbers must be even: {works}, not {value}"
    return at_most(MAX_ROWS)(prod(map(int, parts)))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
