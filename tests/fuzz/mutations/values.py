"""Values and documents that programs stumble over."""

import math
from random import Random
from typing import Any

LONG = "x" * 5000
TEXTS = [
    *("", " ", "x", "\0", "😀\n\r", "²", "[MASK]", "../../../../etc/passwd", "/dev/zero", "nan", "1e400", "-", "="),
    *("'",),
    *(LONG, "a\tb\nc", "\u202e", "\ufeff", "%s%n", "\x1b[31m", "None", "true", "$(id)", "ı", "ﬁ"),
]
NUMBERS: list[Any] = [
    *(0, 1, -1, 2, 7, 255, 256, 65_536, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400),
    *(0.0, -0.0, 0.5, -0.5, 1.0, 1e-300, 1e308, -1e308, math.nan, math.inf, -math.inf),
]
OTHERS: list[Any] = [None, True, False, [], {}, [[[]]], [None, None, None], {"a": 1}, ["a"], [0], {"": {}}]


def value(random: Random) -> Any:
    """Draw a value of any type."""
    return random.choice(random.choice((TEXTS, NUMBERS, OTHERS)))


def near(old: Any, random: Random) -> Any:
    """Draw a value like the old one, such as one may mistype it; or any."""
    if isinstance(old, bool) or old is None or random.random() < 0.3:
        return value(random)
    if isinstance(old, int):
        return random.choice([old + 1, old - 1, old * 2, -old, old // 2, old * 1000, float(old), str(old), old ^ 1])
    if isinstance(old, float):
        return random.choice([old * 10, -old, old + 1, math.nan, str(old), int(old) if abs(old) < 1e15 else 0])
    if isinstance(old, str):
        cut = random.randrange(len(old) + 1)
        return random.choice([old[:cut], old + "x", old.upper(), old[:cut] + "😀" + old[cut:], old * 50, [old], ""])
    if isinstance(old, list):
        doubled = [*old, *old]
        return random.choice([old[1:], old[:-1], doubled, old[::-1], [*old, value(random)], dict(enumerate(old))])
    return value(random)


def nested(depth: int, start: str = "[", end: str = "]") -> str:
    """Return lists in lists."""
    return start * depth + end * depth


DIGITS = "9" * 5000
JSON_DOCUMENTS: list[bytes] = [
    *(b"", b" ", b"{}", b"[]", b"null", b"1", b'"x"', b"{", b"\xff\xfe{\x00}\x00", b"\xef\xbb\xbf{}", b"\0" * 100),
    *(b"NaN", b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"\\ud800": "\\ud800"}', b"\xff\xff", b"{'a': 1}", b"{}{}"),
    nested(100_000).encode(),
    nested(900).encode(),
    nested(100_000, '{"a":', "}").replace("}", "1}", 1).encode(),
    b'{"vocab_size": ' + DIGITS.encode() + b"}",
    b'{"version": ' + DIGITS.encode() + b"}",
    b'{"a": "' + b"x" * 3_000_000 + b'"}',
    b"[" + b"1," * 300_000 + b"1]",
    b'{"a": 1e999999}',
    b'{"' + b"k" * 100_000 + b'": 1}',
]
TOML_DOCUMENTS: list[bytes] = [
    *(b"", b"x", b"x =", b"[x", b"[[x]]\n[x]", b"\xff\xfe", b"\0", b"\xef\xbb\xbfx = 1", b"x = 1\nx = 2", b"[model]"),
    *(b"x = nan", b"x = 1979-05-27T07:32:00Z", b'x = "\\u0000"', b'x = "\\ud800"', b"a.b.c.d = 1", b'"" = 1'),
    b"x = " + nested(100_000).encode(),
    b"x = " + nested(3000, "{a=", "}").replace("}", "1}", 1).encode(),
    b"name = " + DIGITS.encode(),
    b"[model]\nlayout = " + DIGITS.encode(),
    b".".join([b"a"] * 2000) + b" = 1",
    b"[" + b".".join([b"a"] * 2000) + b"]\nx = 1",
    b"a" * 3_000_000,
    b"a = '" + b"x" * 900_000 + b"'",
    b"".join(b"k%d = 1\n" % number for number in range(50_000)),
    b"\n" * 500_000,
    b'extends = "/etc/passwd"\n',
    b'extends = "/dev/zero"\n',
    b'extends = ""\n',
    b'extends = "."\n',
    b'extends = "\\u0000"\n',
    b'extends = "recipe.toml"\n',
    b"extends = 1\n",
]
