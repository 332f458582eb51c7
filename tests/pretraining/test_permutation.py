"""XLNet's objective in a run: what is refused, what is learned, and that a run ends in the same bytes."""

from pathlib import Path

import pytest

from bertree.errors import UserError
from bertree.pretraining import recipe
from bertree.pretraining.run import pretrain


def small(*changes: str) -> list[str]:
    """What makes a run of two steps of a tiny recipe."""
    phase = ("phases.0.steps=2", "phases.0.max_length=16", "phases.0.batch_tokens=64")
    return ["run.device=cpu", "schedule.warmup=1", "run.eval_tokens=256", "data.held_out_share=0.1", *phase, *changes]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("xlnet-tiny", ["data.partial=0"], r"data.partial: .*at least 1"),
        ("xlnet-tiny", ["data.spans=0"], r"data.spans: .*at least 1"),
        (
            "xlnet-tiny",
            ["data.format=full-sentences"],
            "data.backward: only lanes run backwards; set data.format=lanes",
        ),
        ("transformer-xl-tiny", ["data.backward=true"], "data.backward: true: the next token is predicted forwards"),
        ("transformer-xl-tiny", ["data.format=lanes+pairs"], r"data.format: lanes\+pairs: the next token is predicted"),
        ("xlnet-tiny", ["data.format=lanes+pairs", "data.reuse=0"], "data.reuse: 0.0: give a share of more than 0"),
        ("xlnet-tiny", ["objective.nsp=1"], "objective.nsp: needs a format that provides it"),
    ],
)
def test_settings_that_do_not_fit_are_refused(name: str, changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        recipe.load(name, small(*changes))


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("transformer-xl-tiny", ["data.masking=permutation"], "permutation: with causal attention a token sees those"),
        ("transformer-xl-tiny", ["data.masking=token"], "token: with causal attention lanes predict the next token"),
        (
            "bert-base-tiny",
            ["data.format=full-sentences", "objective.nsp=0", "data.masking=permutation"],
            "without being seen, by a second stream; set model.query_stream=true",
        ),
        ("xlnet-tiny", ["data.masking=next", "data.backward=false"], "next: with full attention a token sees the one"),
        ("xlnet-tiny", ["data.format=lanes+pairs", "model.segments=2"], "two texts and .CLS.; set model.segments=3"),
        ("xlnet-tiny", ["phases.0.batch_tokens=6400000"], "too few for 400000 lanes of more than 16; give fewer lanes"),
        ("xlnet-tiny", ["data.masking=permutation+static"], r"'\+static' has no effect in lanes"),
    ],
)
def test_models_and_stores_that_do_not_fit_are_refused(
    token_store: Path, tmp_path: Path, name: str, changes: list[str], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        pretrain(name, store=token_store, out=tmp_path / "out", overrides=small(*changes))
