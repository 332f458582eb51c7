"""Every token is predicted once, from what the settings say; figures that other tokenizers can be compared by."""

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.causal.perplexity import cut_windows
from bertree.inference.model import Model
from bertree.text.tokenizer import Tokenizer
from tests.support.language_models import CODES, language_model
from tests.support.learnable import FILL
from tests.support.quick import example_count


def text(words: int, seed: int = 0) -> str:
    return " ".join(random.Random(f"perplexity {seed}").choices(FILL, k=words))


@given(
    length=st.integers(1, 60),
    prefix=st.integers(0, 3),
    start=st.integers(0, 1),
    context=st.integers(5, 20),
    stride=st.integers(1, 20),
)
@example_count(150)
def test_windows_predict_every_token_once_with_as_much_context_as_fits(
    length: int, prefix: int, start: int, context: int, stride: int
) -> None:
    stride = min(stride, context - max(1, prefix))
    document = list(range(100, 100 + length))
    windows = list(cut_windows(document, [1] * prefix, [2] * start, context, stride))
    predicted = [token for window in windows for token in window.ids[window.first :]]
    assert predicted == document[0 if prefix or start else 1 :]
    for number, window in enumerate(windows):
        assert len(window.ids) <= context
        assert window.first >= 1
        if number:
            assert len(window.ids) - window.first <= stride
            assert window.ids[:prefix] == [1] * prefix
            seen = window.ids[prefix:]
            assert seen == document[seen[0] - 100 : seen[-1] - 99]
            assert len(window.ids) == context, "the rest of a window is context"


def whole_losses(model: Model, ids: list[int]) -> np.ndarray[Any, Any]:
    """The loss of every token but the first, each from all before it."""
    batch = Batch.pack([ids])
    with torch.no_grad():
        logits = model.network.mask_logits(model.network(batch), torch.arange(len(ids) - 1))
        return torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none").double().numpy()


@pytest.mark.parametrize("kind", ["gpt2", "ctrl", "transformer-xl-base", "rotary", "bert-base"])
def test_a_short_text_is_predicted_from_its_start(kind: str) -> None:
    model, given_text = language_model(kind), text(20)
    tokenizer = model.required_tokenizer
    ids = tokenizer.encode_plain([given_text])[0].ids
    first = tokenizer.id_of("cls" if kind in ("bert-base", "rotary") else "sep")  # GPT reads streams of texts
    assert first is not None
    losses = whole_losses(model, [first, *ids])
    perplexity = model.perplexity(given_text, stride=10, context=40)
    assert perplexity.total == pytest.approx(losses.sum(), rel=1e-5)
    assert perplexity.tokens == len(ids)
    assert perplexity.perplexity == pytest.approx(math.exp(losses.mean()), rel=1e-5)
    assert perplexity.word_perplexity == pytest.approx(math.exp(losses.sum() / 20), rel=1e-5)
    assert perplexity.bits_per_character == pytest.approx(losses.sum() / math.log(2) / len(given_text), rel=1e-5)
    assert (perplexity.context_least, perplexity.context_mean) == (1, (1 + len(ids)) / 2)
    assert perplexity.unpredicted == 0
    assert repr(perplexity).startswith(f"<perplexity {perplexity.perplexity:.2f} per token")
    assert perplexity.as_mapping()["words"] == 20


@pytest.mark.parametrize("stride", [1, 3, 12])
def test_windows_give_what_each_window_alone_gives(stride: int) -> None:
    model, given_text = language_model("bert-base"), text(40)  # every window has a [CLS]
    tokenizer = model.required_tokenizer
    ids, cls = tokenizer.encode_plain([given_text])[0].ids, tokenizer.id_of("cls")
    assert cls is not None
    context, wanted = 13, []
    for place in range(len(ids)):
        end = 12 if place < 12 else min(len(ids), 12 + ((place - 12) // stride + 1) * stride)
        begin = max(0, end - 12)
        wanted.append(whole_losses(model, [cls, *ids[begin:end]])[place - begin])
    perplexity = model.perplexity(given_text, context=context, stride=stride)
    assert perplexity.total == pytest.approx(sum(wanted), rel=1e-5)
    if stride == 1:
        assert perplexity.context_mean == pytest.approx((sum(range(1, 13)) + 12 * (len(ids) - 12)) / len(ids))


def test_several_texts_are_predicted_apart(tmp_path: Path) -> None:
    model, texts = language_model("gpt2"), [text(60, 1), text(3, 2), text(17, 3)]
    apart = [model.perplexity(text) for text in texts]
    perplexity = model.perplexity(texts)
    assert perplexity.total == pytest.approx(sum(single.total for single in apart), rel=1e-5)
    assert perplexity.counts.documents == 3
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts) + "\n\n")
    assert model.perplexity(path, lines=True).total == pytest.approx(perplexity.total, rel=1e-6)
    stream = model.perplexity(path)
    assert (stream.counts.documents, stream.counts.lines) == (1, 4)
    assert stream.word_and_line_perplexity == pytest.approx(math.exp(stream.total / (80 + 4)))


@pytest.mark.parametrize("segment", [5, 16, 100])
def test_segments_with_a_long_memory_equal_the_whole_text(segment: int) -> None:
    model = language_model("transformer-xl-base")
    texts = [text(45, 1), text(6, 2), text(44, 3)]
    tokenizer = model.required_tokenizer
    sep = tokenizer.id_of("sep")
    assert sep is not None
    wanted = [whole_losses(model, [sep, *e.ids]) for e in tokenizer.encode_plain(texts)]
    perplexity = model.perplexity(texts, context=segment, memory=200)
    assert perplexity.total == pytest.approx(sum(float(losses.sum()) for losses in wanted), rel=1e-5)
    assert perplexity.tokens == sum(map(len, wanted))
    assert perplexity.context_least == 1
    short = model.perplexity(texts, context=segment, memory=2)
    assert short.context_mean <= segment + 2
    if segment == 5:
        assert short.total != pytest.approx(perplexity.total, rel=1e-4)


def test_a_memory_starts_as_the_model_starts_it() -> None:
    model = language_model("zeros")  # every text begins with a memory of zeros
    given_text = text(9)
    sep = model.required_tokenizer.id_of("sep")
    assert sep is not None
    ids = model.required_tokenizer.encode_plain([given_text])[0].ids
    perplexity = model.perplexity(given_text, context=100)
    assert perplexity.total == pytest.approx(whole_losses(model, [sep, *ids]).sum(), rel=1e-5)


def test_a_control_code_stands_before_every_window() -> None:
    model, given_text = language_model("ctrl", CODES), text(30)
    totals = {model.perplexity(given_text, context=12, stride=4, control=code).total for code in CODES}
    assert len(totals) == 3
    with pytest.raises(UserError, match="did you mean 'river'"):
        model.perplexity(given_text, control="rivers")


def test_without_a_start_token_the_first_token_is_not_predicted() -> None:
    model = language_model("gpt2")
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(FILL))}
    backend = Backend(models.WordLevel(vocabulary, unk_token="the"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    model.tokenizer = Tokenizer(backend)
    perplexity = model.perplexity([text(9, 1), text(5, 2)])
    assert (perplexity.tokens, perplexity.unpredicted) == (12, 2)
    with pytest.raises(UserError, match="the text has one token, and the tokenizer has no start token"):
        model.perplexity("boat")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"context": 1}, "context: must be 2 or more"),
        ({"context": 60}, "has 48 positions, so windows cannot have 60 tokens"),
        ({"stride": 0}, "stride: must be 1 or more"),
        ({"context": 10, "stride": 10}, "stride: a window of 10 tokens cannot predict 10 new ones"),
        ({"context": 2, "stride": 2}, "stride: a window of 2 tokens cannot predict 2 new ones"),
        ({"memory": 0}, "memory: must be 1 or more, not 0"),
        ({"memory": 8}, "has no relative positions"),
        ({"memory": 8, "stride": 2}, "stride: is for windows"),
    ],
)
def test_mistakes_in_options(options: dict[str, int], line: str) -> None:
    with pytest.raises(UserError, match=line):
        language_model("gpt2").perplexity("the boat", **options)


def test_mistakes_in_texts_and_models(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the text is empty"):
        language_model("gpt2").perplexity(["", " \n"])
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(UserError, match=r"empty\.txt: holds no text"):
        language_model("gpt2").perplexity(tmp_path / "empty.txt")
    with pytest.raises(UserError, match="only left-to-right models"):
        bertree.load("default").perplexity("the boat")


def test_unknown_words_are_counted() -> None:
    model = language_model("gpt2")
    assert model.perplexity("the boat ☃ ☃").unknown == 2
