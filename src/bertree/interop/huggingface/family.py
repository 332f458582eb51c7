"""Tensor names of bertree and of a family of Hugging Face: tables that are used in both directions.

A row pairs one module of bertree with one of Hugging Face, and weight and bias follow; or one tensor with one, where a
parameter belongs to no such module. Queries, keys and values may be three tensors there, stacked along the rows here;
`Stored` says so, and what else differs. `{i}` is the number of a stored layer or cluster.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bertree.interop.weights import Stored
from bertree.model.architecture import Transformer

Row = tuple[str, str | tuple[str, str, str] | Stored]


@dataclass(frozen=True)
class Family:
    """Tensor and class names of one `model_type` of Hugging Face."""

    model_type: str
    title: str  # prefix of its class names
    prefix: str  # of the encoder's names in models that have a head
    encoder: tuple[Row, ...]
    heads: dict[str, tuple[Row, ...]]  # rows relative to `heads.NAME.`
    classes: dict[str, tuple[str, ...]]  # class name without the title -> heads; left-to-right ones first
    special_rows: Callable[[Transformer], tuple[Row, ...]] = lambda a: ()  # further rows, which depend on the model
    tied: dict[str, tuple[str, ...]] = field(default_factory=dict)  # copy -> the tensor; else the next
    ignored: tuple[str, ...] = ()  # regular expressions: buffers that some releases stored
    other_names: dict[str, str] = field(default_factory=dict)  # name without the prefix -> another it may have
    problem: Callable[[Transformer, Sequence[str]], str] = lambda a, heads: ""  # of these heads on this encoder
    unapplied_bias: str = ""  # a tensor of the LM head that transformers keeps and does not apply

    def head_rows(self, head: str) -> Iterable[Row]:
        """Return the rows of one head, with bertree's full names."""
        return ((f"heads.{head}.{ours}" if ours else f"heads.{head}", theirs) for ours, theirs in self.heads[head])

    def class_name(self, heads: Iterable[str], causal: bool = True) -> str | None:
        """Return the Hugging Face class with exactly these heads, or None; of a pair, the one for left-to-right."""
        wanted = set(heads)
        found = [self.title + name for name, has in self.classes.items() if set(has) == wanted]
        return found[0 if causal else -1] if found else None

    def heads_of(self, class_name: str) -> tuple[str, ...] | None:
        """Return the heads of a class of the family; None for an unknown class."""
        return self.classes.get(class_name.removeprefix(self.title))

    def original(self, name: str, stored: Iterable[str]) -> str | None:
        """Return the stored tensor that one of this name must be a copy of; None if it is no copy."""
        template, number = _template(name)
        candidates = (other.replace("{i}", number) for other in self.tied.get(template, ()))
        return next((other for other in candidates if other in stored), None)


def _template(name: str) -> tuple[str, str]:
    """Return a name with {i} for its numbers, and the first of them."""
    words = name.split(".")
    number = next((word for word in words if word.isdigit()), "")
    return ".".join("{i}" if word.isdigit() else word for word in words), number


def hf_tensor_names(
    family: Family, a: Transformer, heads: Iterable[str], ours: Iterable[str], prefixed: bool = True
) -> dict[str, Stored]:
    """Return how Hugging Face stores each of bertree's tensors.

    A model with a head stores its encoder below a prefix, a bare encoder does not; `prefixed=False` leaves it out.
    """
    prefix = family.prefix if (heads := tuple(heads)) and prefixed else ""
    rows = [row for head in heads for row in family.head_rows(head)] + [*family.encoder, *family.special_rows(a)]
    table = {name: _prefixed("" if name.startswith("heads.") else prefix, theirs) for name, theirs in rows}
    found = {}
    for name in ours:
        template, number = _template(name)
        module, leaf = template.rsplit(".", 1)
        end = "" if template in table else f".{leaf}"
        stored = table[template if template in table else module]
        found[name] = stored._replace(names=tuple((other + end).replace("{i}", number) for other in stored.names))
    return found


def _prefixed(prefix: str, theirs: str | tuple[str, str, str] | Stored) -> Stored:
    if not isinstance(theirs, Stored):
        theirs = Stored((theirs,) if isinstance(theirs, str) else theirs)
    return theirs._replace(names=tuple(prefix + name for name in theirs.names))
