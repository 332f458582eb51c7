"""Bounds of a setting, written at its field: `lr: Annotated[float, Above(0)]`.

`check` returns the value to keep, or raises ValueError with the reason why it is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from bertree.errors import suggest


@runtime_checkable
class Bound(Protocol):
    """A condition on the value of a setting; on a list, on each of its values."""

    def check(self, value: Any) -> Any:
        """Return the value to keep; raise ValueError with the reason if it is refused."""


@dataclass(frozen=True)
class Above:
    """Larger than `low`."""

    low: float

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not value > self.low:
            raise ValueError(f"must be above {self.low}, not {value}")
        return value


@dataclass(frozen=True)
class AtLeast:
    """`low` or larger."""

    low: float

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not value >= self.low:
            wanted = f"be at least {self.low}, not" if self.low else "not be negative, but is"
            raise ValueError(f"must {wanted} {value}")
        return value


@dataclass(frozen=True)
class AtMost:
    """`high` or smaller."""

    high: float

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not value <= self.high:
            raise ValueError(f"must be at most {self.high}, not {value}")
        return value


@dataclass(frozen=True)
class Share:
    """From 0 up to 1, with 1 itself only if `closed`."""

    closed: bool = False

    def check(self, value: Any) -> Any:
        """Return the value if it is within the bound."""
        if not 0 <= value <= 1:
            raise ValueError(f"must lie between 0 and 1, not {value}")
        if value == 1 and not self.closed:
            raise ValueError(f"must lie in [0, 1), not {value}")
        return value


@dataclass(frozen=True)
class OneOf:
    """One of several words. `synonyms` are accepted and replaced by the word they stand for."""

    options: tuple[str, ...]
    synonyms: Mapping[str, str] | None = None

    def check(self, value: Any) -> Any:
        """Return the option that the value names."""
        value = (self.synonyms or {}).get(value, value)
        if value not in self.options:
            raise ValueError(f"unknown value '{value}', {suggest(value, self.options)}")
        return value


@dataclass(frozen=True)
class Keys:
    """A table whose keys are known only at run time: each with its default value, which is filled in."""

    defaults: Mapping[str, Any]
