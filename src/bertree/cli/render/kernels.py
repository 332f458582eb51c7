"""`bertree info --kernels`: the kernels of attention, and which of them computes which call on a device."""

from typing import Any

import torch
from rich.console import Console

from bertree.cli.render import make_table
from bertree.errors import UserError, suggest
from bertree.model.kernels.layout import Case, Kernel, Supports
from bertree.model.kernels.table import KERNELS, choose, refusals
from bertree.model.masks import NAMES, Causal, CausalButSelf, Full, FullButSelf, SlidingWindow

DEVICES = ("cpu", "cuda")
NEEDS = ("dropout", "separate_keys", "relative", "ranked", "segments")
HEAD_WIDTH = 64
_HALF, _SINGLE = torch.bfloat16, torch.float32
# Calls that need different support from a kernel: precision, longest sequence, other needs.
CALLS: tuple[tuple[torch.dtype, int, dict[str, Any]], ...] = (
    (_HALF, 128, {}),
    (_HALF, 512, {}),
    (_HALF, 512, {"mask": Causal}),
    (_HALF, 512, {"mask": SlidingWindow}),
    (_HALF, 512, {"mask": FullButSelf}),
    (_HALF, 512, {"mask": CausalButSelf}),
    (_HALF, 512, {"separate_keys": True}),
    (_HALF, 512, {"mask": Causal, "separate_keys": True, "relative": True}),
    (_HALF, 512, {"separate_keys": True, "relative": True, "ranked": True, "segments": True}),
    (_HALF, 512, {"dropout": True}),
    (_SINGLE, 512, {}),
    (_SINGLE, 512, {"mask": Causal}),
    (_SINGLE, 512, {"mask": SlidingWindow}),
    (_SINGLE, 512, {"mask": FullButSelf}),
    (_SINGLE, 512, {"mask": CausalButSelf}),
    (_SINGLE, 512, {"separate_keys": True}),
    (_SINGLE, 512, {"mask": Causal, "separate_keys": True, "relative": True}),
    (_SINGLE, 512, {"separate_keys": True, "relative": True, "ranked": True, "segments": True}),
    (_SINGLE, 512, {"dropout": True}),
)

KNOWN_MASKS = {mask for kernel in KERNELS for mask in kernel.supports.masks}


def as_json(device: str) -> dict[str, Any]:
    """Return the kernels in order of preference, and the choice for each kind of call, as plain values."""
    device = _device_kind(device)
    return {
        "device": device,
        "kernels": [_supported(kernel) for kernel in KERNELS],
        "calls": [
            {
                "dtype": _name(case.dtype),
                "mask": NAMES[case.mask],
                "longest": case.longest,
                **{name: getattr(case, name) for name in NEEDS},
                "kernel": choose(case).name,
                "not": refusals(case),
            }
            for case in _cases(device)
        ],
    }


def print_kernels(console: Console, device: str) -> None:
    """Print the kernels, what each supports, and the choice for each kind of call."""
    device = _device_kind(device)
    table = make_table("kernel", "device", "precision", "masks", "longest", "also")
    about = make_table("kernel", "how")
    for kernel in KERNELS:
        supports = kernel.supports
        table.add_row(
            kernel.name,
            supports.device or "any",
            "half" if supports.dtypes else "any",
            "all" if set(supports.masks) == KNOWN_MASKS else ", ".join(NAMES[mask] for mask in supports.masks),
            str(supports.longest or "any"),
            ", ".join(_needs(supports)) + ("" if supports.plain else " only"),
        )
        about.add_row(kernel.name, kernel.about)
    console.print(about)
    console.print()
    console.print(table)
    console.print(f"\nOn {device}, the first that supports a call computes it (heads of {HEAD_WIDTH}):")
    calls = make_table("precision", "mask", "longest", "needs", "kernel", "why not another")
    for case in _cases(device):
        calls.add_row(
            _name(case.dtype),
            NAMES[case.mask],
            str(case.longest),
            ", ".join(_needs(case)),
            f"[bold]{choose(case).name}[/]",
            f"[dim]{_why_not(case)}[/]",
        )
    console.print(calls)
    console.print("\nattention = lsh and chunked: kernels of their own, in Triton (cuda, half precision) or in PyTorch")


def _needs(of: Case | Supports) -> list[str]:
    return [name.replace("_", " ") for name in NEEDS if getattr(of, name)]


def _why_not(case: Case) -> str:
    """Return the kernels for this device that were not chosen, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in refusals(case).items():
        if reason not in (f"needs {device}" for device in DEVICES):
            by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def _device_kind(device: str) -> str:
    """Return cpu or cuda; refuse other devices."""
    kind = device.partition(":")[0]
    if kind == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if kind not in DEVICES:
        raise UserError(f"--device {device}: unknown device, {suggest(kind, DEVICES)}")
    return kind


def _cases(device: str) -> list[Case]:
    return [Case(device, dtype, HEAD_WIDTH, longest, **({"mask": Full} | needs)) for dtype, longest, needs in CALLS]


def _supported(kernel: Kernel) -> dict[str, Any]:
    supports = kernel.supports
    return {
        "name": kernel.name,
        "how": kernel.about,
        "device": supports.device,
        "dtypes": [_name(dtype) for dtype in supports.dtypes] if supports.dtypes else None,
        "head_widths": list(supports.head_widths) if supports.head_widths else None,
        "widest_head": supports.widest_head,
        "masks": [NAMES[mask] for mask in supports.masks],
        "longest": supports.longest,
        **{name: getattr(supports, name) for name in NEEDS},
        "plain": supports.plain,
        "missing": supports.missing or None,
    }


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
