"""Models that read from right to left write what comes before a prompt; those of both directions are refused."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.model import Model
from tests.support.language_models import language_model

PROMPT = "the lamp on the road"


def next_logits(model: Model, ids: list[int]) -> torch.Tensor:
    """What the first token of a text says about the token before it."""
    batch = Batch.pack([ids])
    with torch.no_grad():
        return model.network.mask_logits(model.network(batch), torch.tensor([0]))[0]


@pytest.mark.parametrize("kind", ["gpt1", "rotary"])
def test_a_backward_model_writes_what_comes_before(kind: str) -> None:
    model = language_model(kind, direction="backward")
    tokenizer = model.required_tokenizer
    (text,) = model.generate(PROMPT, tokens=6, temperature=0)
    framed = kind == "rotary"  # BERT's texts end in [SEP]
    suffix = tokenizer.encode_plain([PROMPT])[0].ids + ([tokenizer.id_of("sep")] if framed else [])
    never = [i for i in (tokenizer.id_of(kind) for kind in ("pad", "mask", "unk", *(() if framed else ("cls",)))) if i]
    ids: list[int] = []
    for _ in range(6):
        logits = next_logits(model, [*ids, *suffix])
        logits[never] = -torch.inf
        token = int(logits.argmax())
        if token == (tokenizer.id_of("cls") if framed else tokenizer.end_id):
            break
        ids.insert(0, token)
    assert text.ids == ids[::-1]
    assert text.before
    assert str(text) == text.text + PROMPT
    assert str(text) == tokenizer.backend.decode(ids + tokenizer.encode_plain([PROMPT])[0].ids)


def test_perplexity_from_the_end() -> None:
    model = language_model("gpt1", direction="backward")
    ids = model.required_tokenizer.encode_plain([PROMPT])[0].ids
    end = model.required_tokenizer.end_id
    line = [*ids, end]
    losses = [F.cross_entropy(next_logits(model, line[n + 1 :]), torch.tensor(line[n])) for n in range(len(ids))]
    perplexity = model.perplexity(PROMPT)
    assert perplexity.tokens == len(ids)
    assert math.isclose(perplexity.total, float(torch.stack(losses).sum()), rel_tol=1e-5)


def test_what_has_no_meaning_is_refused() -> None:
    both, backward = (language_model("gpt1", direction=direction) for direction in ("both", "backward"))
    refused: dict[str, list[Callable[[], object]]] = {
        "reads a text in both directions": [lambda: both.generate("a"), lambda: both.perplexity("a lamp")],
        "so it comes as a whole": [lambda: backward.stream("a")],
        "nothing comes before the last word": [lambda: backward.last_words(["a lamp on"])],
        "reads right to left .* cannot fill": [lambda: backward.fill_mask("a [MASK]")],
        "was not trained with control codes": [lambda: backward.generate("a", control="boat")],
    }
    for line, calls in refused.items():
        for call in calls:
            with pytest.raises(UserError, match=line):
                call()
