"""Random requests: JSON of the right and of the wrong shape, damaged bytes, odd headers and paths.

python -m tests.serve.fuzzing 10000        # as many requests against a server of small models
"""

import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bertree.serve.http.handlers import ROUTES
from bertree.serve.settings import Limits, RequestSettings
from tests.support import asking, learnable
from tests.support.asking import Answer, Asker

TEXTS = ["", " ", "a boat", "\x00", "🐋", "the " * 300, "[MASK] it", "\u202e", "a\nb", "null", "{}"]
VALUES: list[Any] = [None, True, False, 0, 1, -1, 3, 10**30, 1.5, -0.0, 1e308, "x", "left", "base64", "float", [], {}]
NAMES = [
    *("input", "inputs", "query", "texts", "documents", "model", "dimensions", "encoding_format", "truncate"),
    *("top_n", "normalize", "raw_scores", "text", "k", "question", "passage", "index", "prompt", "tokens", "where"),
    *("parameters", "source_sentence", "sentences", "ids", "preset", "changes", "length", "batch", "stream"),
]
HEADERS = ["x-timeout", "authorization", "x-request-id", "content-type", "origin", "host", "expect", "accept"]


def value(draw: random.Random, depth: int = 0) -> Any:
    """A random JSON value."""
    kind = draw.random()
    if kind < 0.35:
        return draw.choice(TEXTS)
    if kind < 0.6 or depth > 3:
        return draw.choice(VALUES)
    if kind < 0.85:
        return [value(draw, depth + 1) for _ in range(draw.randint(0, 4))]
    return {draw.choice(NAMES): value(draw, depth + 1) for _ in range(draw.randint(0, 4))}


def request(draw: random.Random) -> tuple[str, str, bytes, dict[str, str]]:
    """A random request: method, path, body, headers."""
    spec = draw.choice(ROUTES)
    method = spec.method if draw.random() < 0.9 else draw.choice(["GET", "POST", "PUT", "HEAD", "OPTIONS", "BREW"])
    path = spec.path.replace("{name}", draw.choice(["x", "..", "%2e%2e%2fetc", ""]))
    if draw.random() < 0.05:
        path += draw.choice(["/", "//", "/../..", "?index=", "?most=nan", "?a=b&a=c", "\x00"])
    body: Any = value(draw)
    if draw.random() < 0.8 and spec.body is not None:
        fields = [
            field for field in getattr(spec.body, "__struct_fields__", ("inputs", "model")) if draw.random() < 0.7
        ]
        body = {field: value(draw, 1) for field in fields}
        if "model" in body and draw.random() < 0.7:
            body["model"] = draw.choice(["words", "ranker", "classes"])
    data = json.dumps(body).encode()
    if draw.random() < 0.1:
        at = draw.randrange(len(data) + 1)
        data = data[:at] + draw.randbytes(draw.randint(1, 8)) + data[at + draw.randint(0, 4) :]
    headers = {}
    if draw.random() < 0.1:
        headers[draw.choice(HEADERS)] = draw.choice(["0", "nan", "Bearer x", "ÿ", "a" * 5000, "1e-9", "text/html"])
    return method, path, data, headers


def wrong_answer(answer: Answer, method: str) -> str | None:
    """What is wrong with an answer; None if it is a result or an error of the client in one line."""
    if answer.status == 200 or (answer.status == 504 and method == "POST"):
        return None  # 504: the request asked for too short a time
    if not 400 <= answer.status < 500:
        return f"status {answer.status}"
    if method == "HEAD":
        return None
    try:
        message = answer.message
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"no message ({error!r}): {answer.body[:200]!r}"
    if "\n" in message or not message or len(message) > 600 or "Traceback" in message or "/site-packages/" in message:
        return f"message {message[:300]!r}"
    return None


def fuzz(asker: Asker, count: int, seed: int) -> Counter[int]:
    """Send requests, some at the same time; return how often each status was answered."""
    draw, seen = random.Random(seed), Counter[int]()

    async def run() -> None:
        for _ in range(0, count, 20):
            requests = [request(draw) for _ in range(20)]
            answers = await asyncio.gather(*(asker.send(m, p, b, h) for m, p, b, h in requests))
            for (method, path, body, headers), answer in zip(requests, answers, strict=True):
                seen[answer.status] += 1
                wrong = wrong_answer(answer, method)
                assert wrong is None, f"{method} {path} {headers} {body[:500]!r}: {wrong}"
        assert asker.service.scheduler.queued_tokens == 0

    asyncio.run(run())
    return seen


def start_small(folder: Path) -> Asker:
    """Serve small untrained models, with a small limit of the body."""
    words = learnable.tokenizer()
    heads = {"words": {"mask": 0}, "ranker": {"sequence": 1}, "classes": {"sequence": 3}}
    models = [(name, learnable.model(folder / name, words, heads=head)) for name, head in heads.items()]
    return asking.start(models, RequestSettings(Limits(body_bytes=100_000)))


def main() -> None:
    """Fuzz as many requests as the command line says."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as name, start_small(Path(name)) as asker:
        print(f"{count} requests, no wrong answer; statuses {dict(fuzz(asker, count, seed=1))}")


if __name__ == "__main__":
    main()
