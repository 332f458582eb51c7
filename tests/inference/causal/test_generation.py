"""Generated text: the same alone or in a batch, transformers' greedy tokens, limits and mistakes."""

from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models
from transformers import GPT2Config, GPT2LMHeadModel

import bertree
from bertree.errors import UserError
from bertree.inference.causal import continuation
from bertree.inference.load import make_model
from bertree.inference.model import Model
from bertree.interop.contents import Contents
from bertree.model.presets import PRESETS
from bertree.text.tokenizer import Tokenizer
from tests.support.language_models import CODES, KINDS, copy_gpt2, language_model, network
from tests.support.shared import suite_has

PROMPTS = ["the boat", "tree of the river and", "a", "lamp on a stone", "to", "garden window", "Ada is", "by the road"]


@pytest.fixture(scope="module")
def model() -> Model:
    return language_model("gpt2")


def texts(generations: Any) -> dict[tuple[str, int], str]:
    return {(result.prompt, result.number): result.text for result in generations}


@pytest.mark.parametrize("kind", suite_has(("gpt2", "transformer-xl-base", "zeros"), KINDS))
def test_the_same_seed_gives_the_same_text_alone_and_in_a_batch(kind: str) -> None:
    model = language_model(kind)
    options: dict[str, Any] = {"tokens": 12, "count": 2, "seed": 5, "top_p": 0.9, "penalty": 1.2}
    alone = {key: text for prompt in PROMPTS for key, text in texts(model.generate(prompt, **options)).items()}
    assert len(set(alone.values())) == 16, "continuations differ"
    for some in (PROMPTS[:3], PROMPTS[2:5], PROMPTS, PROMPTS[::-1]):
        assert texts(model.generate(some, **options)).items() <= alone.items()
    assert texts(model.generate(PROMPTS, **options | {"seed": 6})) != alone


def test_sequences_beyond_the_lanes_follow_in_another_batch(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = model.generate(PROMPTS, tokens=6)
    monkeypatch.setitem(continuation.LANES, "cpu", 3)
    assert texts(model.generate(PROMPTS, tokens=6)) == texts(whole)


@pytest.fixture(scope="module")
def both() -> tuple[Any, Model]:
    """Random weights in transformers' GPT-2 and in ours."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=90, n_positions=64, n_embd=32, n_layer=3, n_head=4, initializer_range=0.3, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    theirs = GPT2LMHeadModel(config).eval()
    axes = {"max_positions": 64, "width": 32, "layers": 3, "heads": 4, "ffn_width": 128}
    ours = network("gpt2", 90, **axes)
    copy_gpt2(theirs, ours)
    return theirs, make_model(Contents(PRESETS["gpt2"].architecture.with_values(axes | {"vocab_size": 90}), ours))


def test_greedy_tokens_are_those_of_transformers(both: tuple[Any, Model]) -> None:
    theirs, ours = both
    prompts = torch.randint(1, 90, (5, 7), generator=torch.Generator().manual_seed(3))
    for penalty in (1.0, 1.3):
        expected = theirs.generate(
            prompts, max_new_tokens=40, do_sample=False, eos_token_id=None, pad_token_id=0, repetition_penalty=penalty,
            attention_mask=torch.ones_like(prompts),
        )  # fmt: skip
        actual = ours.generate(prompts.tolist(), tokens=40, temperature=0, penalty=penalty)
        assert [result.ids for result in actual] == expected[:, 7:].tolist()


@pytest.mark.parametrize("count", [1, 3])
def test_beams_are_those_of_transformers(both: tuple[Any, Model], count: int) -> None:
    theirs, ours = both
    prompts = torch.randint(1, 90, (3, 5), generator=torch.Generator().manual_seed(4))
    expected = theirs.generate(
        prompts, max_new_tokens=12, do_sample=False, num_beams=4, num_return_sequences=count, eos_token_id=None,
        pad_token_id=0, attention_mask=torch.ones_like(prompts),
    )  # fmt: skip
    actual = ours.generate(prompts.tolist(), tokens=12, beams=4, count=count)
    assert [result.ids for result in actual] == expected[:, 5:].tolist()


def test_a_text_ends_with_the_end_token(model: Model) -> None:
    end = model.required_tokenizer.id_of("sep")
    options: dict[str, Any] = {"tokens": 40, "temperature": 20.0, "seed": 2, "count": 4}
    texts = model.generate(PROMPTS, **options)
    ended = [result for result in texts if result.ended]
    assert ended, "at this temperature some end"
    assert all(len(result.ids) < 40 and end not in result.ids for result in ended)
    assert all(len(result.ids) == 40 for result in texts if not result.ended)
    on = model.generate(PROMPTS, stop=False, **options)
    for left, right in zip(texts, on, strict=True):
        assert len(right.ids) == 40
        assert right.ids[: len(left.ids)] == left.ids
    assert texts.tokens == sum(len(result.ids) + result.ended for result in texts)
    assert repr(texts).startswith("<32 generated texts, ")


def test_special_tokens_that_are_no_text_are_never_chosen(model: Model) -> None:
    tokenizer = model.required_tokenizer
    never = {tokenizer.id_of(kind) for kind in ("pad", "mask", "cls", "unk")}
    texts = model.generate(["the"], tokens=40, temperature=50.0, count=20, stop=False)
    assert not never & {token for result in texts for token in result.ids}


def test_pieces_make_up_the_text(model: Model) -> None:
    pieces: dict[int, list[str]] = {}
    show = lambda row, piece: pieces.setdefault(row, []).append(piece)  # noqa: E731
    texts = model.generate(PROMPTS[:2], tokens=40, stop=False, on_text=show)
    assert ["".join(pieces[row]) for row in (0, 1)] == [result.text for result in texts]
    assert len(pieces[0]) > 3


@pytest.mark.parametrize("kind", ["gpt2", "ctrl"])
def test_as_many_tokens_as_fit(kind: str) -> None:
    model, limited = language_model(kind), kind == "gpt2"
    long = " ".join(["the"] * 40)
    texts = model.generate([long, "the", "a boat"], stop=False)
    read = [40, 1, 2]
    assert [len(result.ids) for result in texts] == ([48 - length for length in read] if limited else [100] * 3)
    alone = model.generate(long, stop=False)
    assert alone[0].ids == texts[0].ids


def test_a_control_code_stands_before_the_prompt() -> None:
    model = language_model("ctrl", CODES)
    by_code = {code: model.generate("the", tokens=12, control=code)[0] for code in CODES}
    assert len({result.text for result in by_code.values()}) == 3
    assert by_code["boat"].control == "boat"
    with pytest.raises(UserError, match=r"control code 'bot': .* did you mean 'boat'"):
        model.generate("the", control="bot")
    with pytest.raises(UserError, match="was not trained with control codes"):
        language_model("gpt2").generate("the", control="boat")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"tokens": 0}, "tokens: must be 1 or more"),
        ({"tokens": 47}, "a prompt of 2 tokens and 47 more are longer than the 48 positions"),
        ({"count": 0}, "count: must be 1 or more"),
        ({"temperature": -1}, "temperature: must be 0 or more"),
        ({"top_p": 0}, "top_p: must be above 0"),
        ({"beams": 2, "temperature": 0.5}, "beams: a beam search does not sample"),
        ({"beams": 2, "count": 3}, "count: a search with 2 beams finds fewer than 3 texts"),
    ],
)
def test_mistakes_in_options(model: Model, options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError, match=line):
        model.generate("the boat", **options)


def test_mistakes_in_prompts_and_models(model: Model) -> None:
    with pytest.raises(UserError, match="the prompt has 60 tokens, and bertree has 48 positions"):
        model.generate(" ".join(["the"] * 60))
    with pytest.raises(UserError, match="not a pair"):
        model.generate([("the", "boat")])
    with pytest.raises(UserError, match=r"sees the text on both sides of a token; only left-to-right models .*gpt2"):
        bertree.load("default").generate("the")
    task = make_model(Contents(model.architecture, network("gpt2", model.architecture.vocab_size)))
    del task.network.heads["mask"]
    with pytest.raises(UserError, match="has no LM head"):
        task.generate("the")


def test_an_empty_prompt_starts_from_the_start_token(model: Model) -> None:
    assert model.generate("", tokens=3)[0].ids
    bare = language_model("gpt2")
    bare.tokenizer = Tokenizer(Backend(models.WordLevel({"the": 0, "boat": 1}, unk_token="the")))
    with pytest.raises(UserError, match="has no start token, so the prompt must not be empty"):
        bare.generate("")


@pytest.mark.parametrize("options", [{}, {"temperature": 0.0}, {"beams": 2}], ids=["drawn", "greedy", "beams"])
@pytest.mark.parametrize("kind", ["gpt2", "ctrl"])
def test_weights_or_logits_that_are_not_finite_name_the_model(kind: str, options: dict[str, Any]) -> None:
    """One weight of -inf hides from the most likely token; large finite weights overflow in the logits."""
    for value, rows in ((-torch.inf, 1), (3e38, None)):
        model = language_model(kind)
        with torch.no_grad():
            model.network.get_parameter("encoder.embeddings.tokens.weight")[:rows, :rows].fill_(value)
        with pytest.raises(UserError, match=rf"^{model.name}: computes numbers that are not finite"):
            model.generate("the boat", tokens=5, **options)


def test_too_many_texts_are_refused(model: Model) -> None:
    with pytest.raises(UserError, match="count: must be at most 100,000, not 2,147,483,648"):
        model.generate("the boat", count=2**31)
