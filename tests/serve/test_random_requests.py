"""Random requests to all routes: every answer is a result, or an error of the client in one line."""

import json
import random
from pathlib import Path
from typing import Any

from tests.serve.fuzzing import fuzz, start_small
from tests.support.asking import Asker

BODIES: dict[str, dict[str, Any]] = {
    "/fill": {"text": "the [MASK] boat", "k": 3, "model": "words"},
    "/entities": {"text": "Ada in Turin", "model": "ner"},
    "/answer": {"question": "which colour ?", "passage": "the red boat", "index": None, "k": 3, "where": None},
    "/search": {"query": "boat", "index": "passages", "k": 3, "where": {"place": "garden"}, "rerank": "pair"},
    "/generate": {"prompt": "the boat", "model": "gpt", "tokens": 3, "temperature": 1.0, "top_k": 3, "top_p": 0.5}
    | {"penalty": 1.1, "seed": 1, "control": None, "stream": False},
    "/layers": {"text": "the boat", "pair": "a river", "model": "words"},
    "/space": {"preset": "bert-base", "changes": {"layers": 6}, "length": 128, "batch": 2},
}
VALUES: list[Any] = [
    *(None, True, 0, -1, 5, 10**18, 10**30, 1e308, -1e308, 0.5, 1e-300, "", "a", " ", "\0", "\ud800", "😀" * 50),
    *("<mask>" * 70, "boat " * 300, "x" * 20_000, "\n\r\t", "\u202e", "e\u0301" * 30, "\u200b", "[CLS] [SEP]", "gpt"),
    *([], [1], ["a"], [["a"]], {}, {"a": 1}, {"place": ["garden", None, 1.5]}, {"source": "/etc/passwd"}, {"": ""}),
    *({"place": "\0"}, {"layers": 1.0}, {"heads": 7}, {"body": "bilstm"}, {"attention": "lsh"}, {"cutoffs": "1,2"}),
]


def test_no_value_of_any_field_breaks_a_route(own: Asker) -> None:
    draw = random.Random("own routes")
    requests = []
    for _ in range(300):
        path = draw.choice(list(BODIES))
        body = dict(BODIES[path])
        for field in draw.choices(list(body), k=draw.choice((1, 1, 2))):
            body[field] = draw.choice(VALUES)
        requests.append((path, body))
    statuses = set()
    for (path, body), answer in zip(requests, own.post_all(requests), strict=True):
        statuses.add(answer.status)
        assert answer.status in (200, 400, 404, 422), (path, body, answer.body)
        if answer.status == 200 and answer.headers["content-type"] == "application/json":
            json.loads(answer.body)
        elif answer.status != 200:
            assert "\n" not in answer.message
            assert "Traceback" not in answer.message
    assert statuses == {200, 400, 404, 422}


def test_random_requests_are_answered_properly(tmp_path: Path) -> None:
    with start_small(tmp_path) as asker:
        statuses = fuzz(asker, 2000, seed=0)
    assert statuses[200] > 100
    assert statuses[422] > 500
    assert statuses[400] > 10
