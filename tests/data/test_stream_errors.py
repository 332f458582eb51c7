"""Errors about the settings of a stream."""

import re
from typing import Any

import pytest

from bertree.data.formats import Format
from bertree.data.stream import Stream
from bertree.errors import UserError
from tests.support.corpora import SPECIAL
from tests.support.memory_store import memory_store

TINY = [[[10, 11, 12], [13, 14], [15]], [[20, 21], [22, 23, 24, 25]], [[30]]]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"format": "full-sentence"}, "unknown, did you mean 'full-sentences'"),
        ({"format": "stream+nsp"}, "stream has no pairs; use segment-pair"),
        ({"format": "segment-pair+mlm"}, "unknown objective, known: nsp, sop"),
        ({"max_length": 5}, "max_length 5: too short"),
        ({"batch_tokens": 8}, "too few for max_length 16"),
        ({"rank": 2, "world": 2}, "ranks go from 0 to 1"),
        ({"fixed": True, "world": 3, "batch_tokens": 100}, "must divide"),
        ({"masking": "tokens"}, "did you mean 'token'"),
        ({"masking": "token+dynamic"}, "'static'"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(settings: dict[str, Any], line: str) -> None:
    store = memory_store(TINY, vocab_size=100, special=SPECIAL)
    with pytest.raises(UserError, match=re.escape(line)) as error:
        Stream(store, **{"batch_tokens": 64, "max_length": 16} | settings)
    assert "\n" not in str(error.value)


def test_a_store_without_what_the_format_needs_is_refused() -> None:
    with pytest.raises(UserError, match="give 1 or 2"):
        Format("segment-pair", separators=3)
    with pytest.raises(UserError, match="has no tokens"):
        Stream(memory_store([], vocab_size=9, special=SPECIAL), batch_tokens=64, max_length=16)
    single = memory_store(TINY[:1], vocab_size=100, special=SPECIAL)
    with pytest.raises(UserError, match="NSP needs two documents"):
        Stream(single, format="segment-pair+nsp", batch_tokens=64, max_length=16)
    lines = memory_store([[[10]], [[11, 12]]], vocab_size=100, special=SPECIAL)
    with pytest.raises(UserError, match="no document has two sentences"):
        Stream(lines, format="segment-pair+sop", batch_tokens=64, max_length=16)
    bare = memory_store(TINY, vocab_size=100, special={"sep": 3})
    with pytest.raises(UserError, match="no cls token"):
        Stream(bare, masking=None, batch_tokens=64, max_length=16)
    with pytest.raises(UserError, match="no mask token"):
        Stream(bare, format="stream", batch_tokens=64, max_length=16)
    assert Stream(bare, format="stream", masking=None, batch_tokens=64, max_length=16)[0].labels.masked is None
