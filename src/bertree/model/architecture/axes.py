"""Axes of an architecture: a field with its default, its meaning for `bertree info`, and its bounds."""

from collections.abc import Callable, Sequence
from dataclasses import field
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


def at_most(most: int) -> Bound:
    """A number with an upper limit."""
    return lambda value: "" if value <= most else f"{value} is more than the {most} supported"


def one_of(options: Sequence[str]) -> Bound:
    """One of some words."""
    return lambda value: "" if value in options else f"unknown value '{value}', {suggest(value, options)}"


def list_of(options: Sequence[str]) -> Bound:
    """Some words, divided by commas."""
    return lambda value: next(filter(None, map(one_of(options), value.split(","))), "")


def list_of_rising_numbers(value: str) -> str:
    """Whole numbers that rise, divided by commas; may be empty."""
    parts = value.split(",") if value else []
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return f"must be whole numbers divided by commas, not '{value}'"
    numbers = [int(part) for part in parts]
    return "" if numbers == sorted(set(numbers)) else f"{value}: each number must be larger than the one before"
