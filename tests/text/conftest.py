"""Text that tokenizers find hard, the same on every run."""

import functools
import random
import unicodedata
from collections.abc import Callable

import pytest

# First and last code point of many scripts, symbols, emoji and things that are not letters at all.
RANGES = [
    (0x20, 0x7E), (0xA1, 0xFF), (0x100, 0x24F), (0x250, 0x2AF), (0x300, 0x36F), (0x370, 0x3FF),
    (0x400, 0x4FF), (0x531, 0x587), (0x591, 0x5F4), (0x600, 0x6FF), (0x700, 0x74F), (0x900, 0x97F),
    (0x980, 0x9FF), (0xA00, 0xA7F), (0xB80, 0xBFF), (0xC00, 0xC7F), (0xE01, 0xE5B), (0xE80, 0xEFF),
    (0xF00, 0xFFF), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F),
    (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1E00, 0x1EFF), (0x1F00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x209F), (0x20A0, 0x20CF), (0x2100, 0x214F), (0x2190, 0x21FF), (0x2200, 0x22FF),
    (0x2500, 0x257F), (0x2600, 0x26FF), (0x3000, 0x303F), (0x3041, 0x3096), (0x30A0, 0x30FF),
    (0x3400, 0x34FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xE0FF), (0xFB00, 0xFB4F),
    (0xFE00, 0xFE0F), (0xFF01, 0xFFEF), (0xFFF0, 0xFFFD), (0x10000, 0x100FA), (0x10330, 0x1034A),
    (0x1D400, 0x1D7FF), (0x1F300, 0x1F5FF), (0x1F600, 0x1F64F), (0x1F900, 0x1F9FF), (0x20000, 0x200FF),
    (0xE0100, 0xE01EF),
]  # fmt: skip
CONTROLS = [chr(c) for c in (*range(32), *range(0x7F, 0xA0), 0xAD, 0x200B, 0x200D, 0x2028, 0x2029, 0x202E, 0xFEFF)]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000"]
WORDS = [
    "the",
    "Running",
    "isn't",
    "U.S.A.",
    "3.14",
    "e-mail",
    "unaffable",
    "[MASK]",
    "[CLS]",
    "##ing",
    "``so''",
    "naïve",
]


def _word(random: random.Random) -> str:
    kind = random.random()
    if kind < 0.25:
        return random.choice(WORDS)
    first, last = random.choice(RANGES)
    size = random.choice((1, 2, 3, 5, 8, 13)) if kind < 0.97 else random.choice((99, 100, 101, 102, 500, 3000))
    word = "".join(chr(random.randint(first, last)) for _ in range(size))
    if kind > 0.9:
        word = unicodedata.normalize(random.choice(("NFD", "NFKD", "NFC")), word)
    if kind > 0.85:
        at = random.randrange(len(word) + 1)
        word = word[:at] + random.choice(CONTROLS) + word[at:]
    return word.upper() if kind < 0.4 else word


@pytest.fixture(scope="session")
def hard_lines() -> Callable[[int], list[str]]:
    """Lines in all scripts, with emoji, control characters and words beyond any limit."""

    @functools.cache
    def lines(count: int) -> list[str]:
        source = random.Random(count)
        drawn = []
        for _ in range(count):
            words = [_word(source) for _ in range(source.randrange(12))]
            drawn.append("".join(word + source.choice(SPACES) for word in words))
        return drawn

    return lines
