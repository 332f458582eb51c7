"""The design space as data."""

import json
from typing import Any

import pytest

from bertree.errors import UserError
from bertree.model import cost, space
from bertree.model.architecture import MEANING, Transformer
from bertree.model.presets import PRESETS, preset


def test_every_preset_is_described() -> None:
    described = {point["name"]: point for point in space.describe_presets()}
    assert set(described) == set(PRESETS)
    assert described["albert-base"]["parent"] in PRESETS
    assert described["bert-base"]["year"] == 2018
    assert described["bert-base"]["axes"]["layers"] == 12
    json.dumps(list(described.values()), allow_nan=False)


def test_every_value_of_an_axis_is_one_that_a_transformer_may_have() -> None:
    axes = space.describe_axes()
    json.dumps(axes, allow_nan=False)
    names = [axis["name"] for axis in axes]
    assert set(MEANING) - set(names) == {
        *("cutoffs", "output_projections", "axial_shape", "axial_widths", "buckets", "filters"),
    }, "lists written as text"
    allowed = 0
    for axis in axes:
        assert axis["kind"] in ("number", "choice", "switch")
        values: list[Any] = axis["choices"] or [True, False]
        if axis["kind"] == "number":
            assert axis["low"] <= axis["default"] <= axis["high"], axis
            assert axis["low"] < axis["high"], axis
            values = [axis["low"], axis["high"]]
        refusals = [_refusal(axis["name"], value) for value in values]
        allowed += refusals.count("")
        # Not out of its own bounds, though it may be in conflict with another axis.
        assert not [line for line in refusals if "supported" in line or "unknown value" in line]
    assert allowed > 70


def _refusal(axis: str, value: Any) -> str:
    try:
        assert Transformer().with_values({axis: value}).axes()[axis] == value
    except UserError as error:
        return str(error)
    return ""


def test_a_point_costs_what_the_formulas_say() -> None:
    described = space.describe_point("albert-base", {"layers": 6.0, "width": 384}, 128, 4)
    a = preset("albert-base").architecture.with_values({"layers": 6, "width": 384})
    assert described["parameters"] == cost.parameters(a).total
    assert (
        sum(part["parameters"] for part in described["parts"]) == described["parameters"] + cost.parameters(a).mlm_head
    )
    assert described["operations_per_token"] == cost.forward_flops(a, 128)
    assert described["memory"]["peak"] == cost.training_bytes(a, 4, 128)
    changed = {change["axis"]: (change["before"], change["value"]) for change in described["differences"]}
    assert changed["layers"] == (12, 6)
    assert changed["ffn_width"] == (3072, 1536), "what follows from a change is listed too"
    assert space.describe_point("bert-base", {})["differences"] == []
    json.dumps(described, allow_nan=False)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_has_costs(name: str) -> None:
    described = space.describe_point(name, {})
    assert described["parameters"] == cost.parameters(PRESETS[name].architecture).total
    assert min(described["memory"].values()) > 0


@pytest.mark.parametrize(
    ("changes", "more", "message"),
    [
        ({"heads": 7}, {}, "heads"),
        ({"layers": "6"}, {}, "layers: must be a whole number"),
        ({"layers": 6.5}, {}, "layers: must be a whole number"),
        ({"layers": True}, {}, "layers: must be a whole number"),
        ({"layrs": 6}, {}, "did you mean 'layers'"),
        ({"width": 10**9}, {}, "supported"),
        ({"dropout": float("nan")}, {}, "dropout"),
        ({}, {"length": 513}, "length: must lie between 1 and 512"),
        ({}, {"length": 0}, "length"),
        ({}, {"batch": 0}, "batch"),
        ({}, {"batch": 10**30}, "make it smaller"),
    ],
)
def test_what_is_impossible_is_said(changes: dict[str, Any], more: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        space.describe_point("bert-base", changes, **more)
