"""Windows over documents: every token is predicted exactly once.

[prefix] a b c d e f        the first window predicts all of its tokens
[prefix]     c d e f g h    the next ones predict `stride` tokens each; the rest is context
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bertree.errors import UserError


@dataclass(frozen=True)
class TextWindow:
    """Tokens that a model reads at once, of which those from `first` on are predicted."""

    ids: list[int]
    first: int


def cut_windows(
    document: Sequence[int], prefix: Sequence[int], start: Sequence[int], context: int, stride: int
) -> Iterator[TextWindow]:
    """Cut a document into windows of at most `context` tokens.

    `prefix` is put before every window. `start` stands before the first one instead if there is no prefix; without
    both, the first token of the document cannot be predicted.
    """
    first = list(prefix or start)
    if context <= len(first):
        raise UserError(f"context {context}: leaves no room for text beside {len(first)} tokens that stand before it")
    assert 1 <= stride <= context - max(1, len(prefix)), "a token is predicted from one before it"
    end = min(len(document), context - len(first))
    if first or end > 1:
        yield TextWindow([*first, *document[:end]], max(1, len(first)))
    while end < len(document):
        done, end = end, min(len(document), end + stride)
        begin = max(0, end - (context - len(prefix)))
        yield TextWindow([*prefix, *document[begin:end]], len(prefix) + done - begin)
