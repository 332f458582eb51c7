"""`bertree plan`: a table of meshes, and the one to take."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertree.cli.render import make_table
from bertree.model.cost import GIB
from bertree.report.formats import digits, duration, percent, quantity
from bertree.scale.plan.meshes import Row
from bertree.scale.plan.plan import Plan

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
