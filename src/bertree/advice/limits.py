"""The request to `bertree advise`: a task, examples and limits, with sizes and times as people write them."""

import math
import re
from dataclasses import dataclass

from bertree.advice.knowledge import Knowledge
from bertree.errors import UserError

BYTES = {"b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30}
MILLISECONDS = {"us": 1e-3, "µs": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4}
MEASURED = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+) ?([a-zµ]+)", re.IGNORECASE)
COUNTED = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:\.[0-9]+)?)([kmb]?)", re.IGNORECASE)
MOST = 1e15


def parse_measure(name: str, text: str, units: dict[str, float], example: str) -> float:
    """Read a number with its unit, such as 500MB or 20ms. The unit is required: 20 could be seconds."""
    match = MEASURED.fullmatch(text.strip())
    factor = units.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UserError(f"`{name}={text}`: must be a number with a unit ({', '.join(units)}), such as {example}")
    value = float(match[1]) * factor
    if not 0 < value <= MOST:
        raise UserError(f"`{name}={text}`: must be more than 0" if not value else f"`{name}={text}`: is too much")
    return value


def parse_count(name: str, text: str | int) -> int:
    """Read a whole number: 5000, 5,000, 5k, 1.5m."""
    match = COUNTED.fullmatch(str(text).strip())
    value = float(match[1].replace(",", "")) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[match[2].lower()] if match else -1
    if value != int(value) or not 0 <= value <= MOST:
        raise UserError(f"`{name}={text}`: must be a whole number, such as 5000 or 5k")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Request:
    """A task with its examples and limits. An infinite limit is not set."""

    task: str  # as the user names it
    kind: str
    examples: int
    length: int  # tokens of a text, or of a pair
    pairs: int = 0
    latency_ms: float = math.inf
    memory: float = math.inf  # bytes
    card: float = math.inf  # GiB

    def describe(self) -> str:
        """Return the request as one line."""
        parts = [self.task, f"{self.examples:,} examples", f"{self.length:,} tokens a text"]
        parts += [f"{self.pairs:,} pairs"] if self.pairs else []
        parts += [f"at most {self.latency_ms:g} ms"] if math.isfinite(self.latency_ms) else []
        parts += [f"at most {self.memory / 1e6:,.0f} MB"] if math.isfinite(self.memory) else []
        parts += [f"a card of {self.card:g} GiB"] if math.isfinite(self.card) else []
        return ", ".join(parts)


def read_request(
    facts: Knowledge,
    task: str,
    examples: str | int,
    length: int,
    latency: str | None,
    memory: str | None,
    pairs: str | int | None,
    card: float | None,
) -> Request:
    """Return the request from the arguments of `advise`; refuse contradictions."""
    kind = facts.kind(task)
    entry = facts.tasks[kind]
    request = Request(
        task=task,
        kind=kind,
        examples=parse_count("examples", examples),
        length=length,
        pairs=0 if pairs is None else parse_count("pairs", pairs),
        latency_ms=math.inf if latency is None else parse_measure("latency", latency, MILLISECONDS, "20ms"),
        memory=math.inf if memory is None else parse_measure("memory", memory, BYTES, "500MB"),
        card=math.inf if card is None else card,
    )
    if length < 1 or not request.card > 0:
        raise UserError(f"`length={length}`, `card={card}`: must be more than 0")
    if request.pairs and not entry.compares:
        comparing = ", ".join(name for name, other in facts.tasks.items() if other.compares)
        raise UserError(
            f"`pairs={pairs}`: {task} compares no texts; leave it out, or take a task that does ({comparing})"
        )
    if entry.labeled and not request.examples:
        raise UserError(f"`examples={examples}`: {task} cannot be learned without labeled examples; label some first")
    return request
