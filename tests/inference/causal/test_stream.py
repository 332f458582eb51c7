"""A text that is generated piece by piece: the same as all at once, and nothing is computed that nobody asks for."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from bertree.errors import UserError
from bertree.inference.causal.fast_decoder import FastDecoder
from tests.support.language_models import KINDS, language_model
from tests.support.shared import suite_has

OPTIONS: dict[str, Any] = {"tokens": 12, "seed": 3, "top_p": 0.9, "penalty": 1.2}


@pytest.mark.parametrize("kind", suite_has(list(KINDS)[::2], KINDS))
def test_pieces_make_the_text_that_is_generated_at_once(kind: str) -> None:
    model = language_model(kind)
    for options in (OPTIONS, {"tokens": 12, "temperature": 0.0}):
        whole = model.generate("the boat", **options)[0]
        stream = model.stream("the boat", **options)
        pieces = list(stream)
        assert "".join(pieces) == whole.text
        assert stream.result == whole
        assert len(pieces) == len(whole.ids) + 1


def test_a_stream_computes_only_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    step = FastDecoder.step
    monkeypatch.setattr(FastDecoder, "step", lambda self, ids: steps.append(1) or step(self, ids))
    stream = language_model("gpt2").stream("the boat", tokens=30, stop=False)
    assert not steps
    for _ in range(5):
        next(stream)
    assert len(steps) == 4, "the first token comes from the prompt alone"
    assert len(stream.result.ids) == 5
    assert not torch.is_inference_mode_enabled(), "between pieces"


def test_streams_can_be_read_in_turn_and_by_any_thread() -> None:
    model = language_model("gpt2")
    seeds = range(6)
    wanted = [model.generate("a lamp", tokens=10, temperature=seed % 2, seed=seed)[0].text for seed in seeds]
    streams = [model.stream("a lamp", tokens=10, temperature=seed % 2, seed=seed) for seed in seeds]
    texts = [""] * len(streams)
    with ThreadPoolExecutor(3) as pool:
        while set(pieces := list(pool.map(lambda stream: next(stream, None), streams))) != {None}:
            texts = [text + (piece or "") for text, piece in zip(texts, pieces, strict=True)]
    assert texts == wanted


def test_what_cannot_be_streamed_is_said_before_anything_is_computed() -> None:
    model = language_model("gpt2")
    with pytest.raises(UserError, match="at most 46 fit"):
        model.stream("the boat", tokens=100)
    with pytest.raises(UserError, match="not trained with control codes"):
        model.stream("the boat", control="x")
    with pytest.raises(UserError, match="temperature"):
        model.stream("the boat", temperature=-1)
