"""Devices on the terminal: the kernels of attention, and which of them computes which call on a device (`bertree info
--kernels`); what fits on meshes of devices, and the one to take (`bertree plan`)."""

from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.cli.render import make_table
from bertree.errors import UserError, suggest
from bertree.model.cost import GIB
from bertree.model.kernels.layout import Case, Kernel, Supports
from bertree.model.kernels.table import KERNELS, choose, refusals
from bertree.model.masks import NAMES, Causal, CausalButSelf, Full, FullButSelf, SlidingWindow
from bertree.report.formats import digits, duration, percent, quantity
from bertree.scale.plan.meshes import Row
from bertree.scale.plan.plan import Plan

DEVICES = ("cpu", "cuda")
NEEDS = ("dropout", "separate_keys", "relative", "ranked", "segments")
HEAD_WIDTH = 64
_HALF, _SINGLE = torch.bfloat16, torch.float32
# Calls that need different support from a kernel, by what they need; then with precision and longest sequence.
CALLED_WITH: tuple[dict[str, Any], ...] = (
    {},
    {"mask": Causal},
    {"mask": SlidingWindow},
    {"mask": FullButSelf},
    {"mask": CausalButSelf},
    {"separate_keys": True},
    {"mask": Causal, "separate_keys": True, "relative": True},
    {"separate_keys": True, "relative": True, "ranked": True, "segments": True},
    {"dropout": True},
)
CALLS = ((_HALF, 128, {}), *((dtype, 512, needs) for dtype in (_HALF, _SINGLE) for needs in CALLED_WITH))

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


HEADS = {"weights": "weights", "gradients": "grads", "optimizer": "optim", "activations": "activ", "buffers": "buffers"}


def print_plan(console: Console, plan: Plan) -> None:
    """Print all meshes, the recommended one, what it sends and how long it takes."""
    card, batches = plan.hardware.card, plan.batches
    devices = f"{plan.devices} devices" if plan.devices > 1 else "1 device"
    console.print(Text(f"{plan.model}: {quantity(plan.parameters)} parameters on {devices} of {card:g} GiB", "bold"))
    console.print(
        f"{batches.tokens:,} tokens a step, sequences of {batches.length:,}; GiB of a device at the peak:\n",
        highlight=False,
    )
    console.print(_meshes(plan))
    if any(row.batch.recompute for row in plan.rows):
        console.print("[dim]R: layers are computed again in the backward pass[/]")
    console.print()
    if plan.best is None:
        console.print(Text(plan.reason, "bold"), soft_wrap=True)
        return
    row = plan.best
    console.print(Text(f"Recommended: {_describe(row)}", "bold"))
    console.print(Text(plan.reason))
    console.print(Text(" ".join(f"{key}={str(value).lower()}" for key, value in plan.settings.items()), "cyan"))
    if row.traffic:
        console.print()
        console.print(_traffic(row))
    console.print()
    _print_time(console, plan, row)


def _meshes(plan: Plan) -> Table:
    table = make_table("ZeRO", "tensor", *HEADS.values(), "total", "batches", "step", numbers=1)
    for row in plan.rows:
        style = "bold green" if row is plan.best else "" if row.fits else "dim"
        batch = f"{row.batch.count}x{row.batch.tokens:,}{' R' if row.batch.recompute else ''}"
        time = f"{digits(row.time.seconds)} s" if row.fits else "no room"
        sizes = [f"{size / GIB:.1f}" for size in row.peak.bytes]
        mark = "*" if row is plan.best else ""
        table.add_row(
            f"{row.mesh.zero}{mark}", str(row.mesh.tensor), *sizes, f"{row.gib:.1f}", batch, time, style=style
        )
    return table


def _describe(row: Row) -> str:
    mesh = row.mesh
    text = f"data {mesh.data} x tensor {mesh.tensor}, ZeRO {mesh.zero}"
    text += ", sequence parallel" if mesh.tensor > 1 and mesh.sequence_parallel else ""
    return text + (", layers recomputed" if row.batch.recompute else "")


def _traffic(row: Row) -> Table:
    table = make_table("sent in a step", "of", "among", "calls", "GB", numbers=3)
    for entry in row.traffic:
        ranks = row.mesh.data if entry.group == "data" else row.mesh.tensor
        cells = (entry.kind, entry.what, f"{ranks} {entry.group} ranks", f"{entry.calls:,}", digits(entry.bytes / 1e9))
        table.add_row(*cells)
    return table


def _print_time(console: Console, plan: Plan, row: Row) -> None:
    time, hardware = row.time, plan.hardware
    console.print(
        f"A step takes {digits(time.seconds)} s: computing {digits(time.compute)} s and sending states "
        f"{digits(time.states)} s, or, if it is longer, sending weights and gradients meanwhile, "
        f"{digits(time.parameters)} s.",
        highlight=False,
    )
    console.print(
        f"{quantity(plan.tokens_per_second(row))} tokens/s, MFU {percent(plan.mfu(row))}"
        + (f"; {quantity(plan.tokens)} tokens: {duration(plan.seconds(row) or 0)}" if plan.tokens else ""),
        style="bold",
        highlight=False,
    )
    console.print(
        f"[dim]Assumed: {hardware.peak:g} TFLOP/s a device, of which computing reaches "
        f"{percent(hardware.efficiency)}; {hardware.link:g} GB/s within a machine of {hardware.node} devices, "
        f"{hardware.network:g} GB/s a device between machines; AdamW, bf16, float32 weights. See docs/plan.md[/]",
        highlight=False,
    )
