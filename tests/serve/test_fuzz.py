"""Random requests: every answer is a result, or an error of the client in one line."""

from pathlib import Path

from bertree.serve.settings import Limits, RequestSettings
from tests.serve.fuzzing import fuzz, make_models
from tests.support import asking


def test_random_requests_are_answered_properly(tmp_path: Path) -> None:
    asker = asking.start(make_models(tmp_path), RequestSettings(Limits(body_bytes=100_000)))
    try:
        seen = fuzz(asker, 2000, seed=0)
    finally:
        asking.stop(asker)
    assert seen[200] > 100
    assert seen[422] > 500
    assert seen[400] > 10
