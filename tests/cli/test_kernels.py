"""`info --kernels`: what is shown is what is chosen."""

import pytest
import torch

from bertree.cli.render.devices import NEEDS
from bertree.model.kernels.layout import Case
from bertree.model.kernels.table import KERNELS, choose
from bertree.model.masks import NAMES
from tests.support.command import Command


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_table_is_the_choice(command: Command, device: str) -> None:
    shown = command.well("info", "--kernels", "--device", device, "--json").json
    assert shown["device"] == device
    assert [kernel["name"] for kernel in shown["kernels"]] == [kernel.name for kernel in KERNELS]
    masks = {name: mask for mask, name in NAMES.items()}
    for call in shown["calls"]:
        needs = {name: call[name] for name in NEEDS}
        dtype = getattr(torch, call["dtype"])
        case = Case(device, dtype, 64, call["longest"], masks[call["mask"]], **needs)
        assert call["kernel"] == choose(case).name
        assert call["kernel"] not in call["not"]
    supported = {mask for kernel in KERNELS for mask in kernel.supports.masks}
    assert {masks[call["mask"]] for call in shown["calls"]} == supported
    assert {call["kernel"] for call in shown["calls"]} >= {"padded", "grouped" if device == "cpu" else "varlen"}
    assert "why not another" in command.well("info", "--kernels", "--device", device).out


def test_wrong_devices_and_models_are_named_in_one_line(command: Command) -> None:
    result = command("info", "--kernels", "--device", "cdua")
    assert (result.code, result.lines) == (2, ["bertree: --device cdua: unknown device, did you mean 'cuda'?"])
    result = command("info", "bert-base", "--kernels")
    assert result.code == 2
    assert "not of a model (bert-base)" in result.lines[0]
