"""`bertree info --kernels`: the kernels of attention on a device, and which of them takes what."""

from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from bertree.errors import UserError, suggest
from bertree.model.kernels.layout import Case, Kernel
from bertree.model.kernels.table import KERNELS, choose, refusals
from bertree.model.masks import NAMES, Causal, Full, Window

DEVICES = ("cpu", "cuda")
HEAD_WIDTH = 64
_HALF, _SINGLE = torch.bfloat16, torch.float32
# Calls that differ in what a kernel must support: precision, longest sequence, and what else.
CALLS: tuple[tuple[torch.dtype, int, dict[str, Any]], ...] = (
    (_HALF, 128, {}),
    (_HALF, 512, {}),
    (_HALF, 512, {"mask": Causal}),
    (_HALF, 512, {"mask": Window}),
    (_HALF, 512, {"separate_keys": True}),
    (_HALF, 512, {"relative": True}),
    (_HALF, 512, {"dropout": True}),
    (_SINGLE, 512, {}),
    (_SINGLE, 512, {"mask": Causal}),
    (_SINGLE, 512, {"mask": Window}),
    (_SINGLE, 512, {"separate_keys": True}),
    (_SINGLE, 512, {"relative": True}),
    (_SINGLE, 512, {"dropout": True}),
)


def as_json(device: str) -> dict[str, Any]:
    """Kernels in order of preference, and the choice for each kind of call, for machines."""
    device = _known(device)
    return {
        "device": device,
        "kernels": [_supported(kernel) for kernel in KERNELS],
        "calls": [
            {
                "dtype": _name(case.dtype),
                "mask": NAMES[case.mask],
                "longest": case.longest,
                "dropout": case.dropout,
                "separate_keys": case.separate_keys,
                "relative": case.relative,
                "kernel": choose(case).name,
                "not": refusals(case),
            }
            for case in _cases(device)
        ],
    }


def print_kernels(console: Console, device: str) -> None:
    """The kernels, what each supports, and the choice for each kind of call."""
    device = _known(device)
    columns = ("kernel", "device", "precision", "masks", "longest", "dropout", "separate keys", "relative", "how")
    table = Table(*columns, box=None, pad_edge=False)
    for kernel in KERNELS:
        can = _supported(kernel)
        yes = ("yes" if can[name] else "no" for name in ("dropout", "separate_keys", "relative"))
        precision, masks = ", ".join(can["dtypes"] or ["any"]), ", ".join(can["masks"])
        table.add_row(
            kernel.name, can["device"] or "any", precision, masks, str(can["longest"] or "any"), *yes, kernel.about
        )
    console.print(table)
    console.print(f"\nOn {device}, the first that supports a call computes it (heads of {HEAD_WIDTH}):")
    calls = Table("precision", "mask", "longest", "needs", "kernel", "why not another", box=None, pad_edge=False)
    for case in _cases(device):
        needs = [name.replace("_", " ") for name in ("dropout", "separate_keys", "relative") if getattr(case, name)]
        why = "; ".join(f"{name} {reason}" for name, reason in refusals(case).items())
        calls.add_row(
            _name(case.dtype),
            NAMES[case.mask],
            str(case.longest),
            ", ".join(needs),
            f"[bold]{choose(case).name}[/]",
            f"[dim]{why}[/]",
        )
    console.print(calls)


def _known(device: str) -> str:
    kind = device.partition(":")[0]
    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in DEVICES:
        raise UserError(f"--device {device}: unknown device, {suggest(kind, DEVICES)}")
    return kind


def _cases(device: str) -> list[Case]:
    return [Case(device, dtype, HEAD_WIDTH, longest, **({"mask": Full} | needs)) for dtype, longest, needs in CALLS]


def _supported(kernel: Kernel) -> dict[str, Any]:
    can = kernel.supports
    return {
        "name": kernel.name,
        "how": kernel.about,
        "device": can.device,
        "dtypes": [_name(dtype) for dtype in can.dtypes] if can.dtypes else None,
        "head_widths": list(can.head_widths) if can.head_widths else None,
        "masks": [NAMES[mask] for mask in can.masks],
        "longest": can.longest,
        "dropout": can.dropout,
        "separate_keys": can.separate_keys,
        "relative": can.relative,
        "missing": can.missing or None,
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
