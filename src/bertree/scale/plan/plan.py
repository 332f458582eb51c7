"""A plan: all meshes of a number of devices for a model, with memory, communication and time."""

from dataclasses import asdict, dataclass
from typing import Any

from bertree.errors import UserError, counted
from bertree.model import cost
from bertree.model.architecture import Transformer
from bertree.result_table import ResultTable, ShownAsTable
from bertree.scale.plan.memory import Mesh, paper_bytes
from bertree.scale.plan.meshes import STAGES, Batches, Hardware, Row, choose, fill_row, reason, tensor_sizes
from bertree.scale.plan.sizes import shapes
from bertree.scale.tensor import check_tensor


@dataclass(frozen=True, repr=False)
class Plan(ShownAsTable):
    """The meshes of some devices for a model."""

    model: str
    architecture: Transformer
    parameters: int  # with the MLM or LM head
    devices: int
    hardware: Hardware
    batches: Batches
    tokens: float | None  # of the whole training
    rows: tuple[Row, ...]
    best: Row | None  # None: nothing fits
    reason: str  # why it is recommended, in one line; or that nothing fits

    def _result_table(self) -> ResultTable:
        rows = [
            (str(row.mesh.data), str(row.mesh.tensor), str(row.mesh.zero), f"{row.gib:.1f}", f"{row.time.seconds:.4g}")
            for row in sorted(self.rows, key=lambda row: (row is not self.best, not row.fits))
            if row.fits
        ]
        title = f"{self.model} on {counted(self.devices, 'device')}, the recommended mesh first: {self.reason}"
        return ResultTable(title, rows, ("data", "tensor", "ZeRO", "GiB a device", "seconds a step"))

    def seconds(self, row: Row) -> float | None:
        """Return how long the whole training takes on a mesh."""
        return None if self.tokens is None else self.tokens / self.tokens_per_second(row)

    def tokens_per_second(self, row: Row) -> float:
        """Return the speed of a mesh."""
        return row.batch.tokens * row.batch.count * row.mesh.data / row.time.seconds

    def mfu(self, row: Row) -> float:
        """Return the model's operations as a share of what the devices could do."""
        return row.time.mfu(row.mesh, self.hardware)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the recommended mesh in a recipe; empty if nothing fits."""
        if self.best is None:
            return {}
        mesh, batch = self.best.mesh, self.best.batch
        settings: dict[str, Any] = {"scale.data": mesh.data, "scale.tensor": mesh.tensor, "scale.zero": mesh.zero}
        settings |= {"scale.sequence_parallel": True} if mesh.tensor > 1 and mesh.sequence_parallel else {}
        return settings | {"run.recompute": batch.recompute, "run.micro_tokens": batch.tokens}

    @property
    def paper(self) -> dict[int, float]:
        """Bytes of weights, gradients and optimizer on each device as the ZeRO paper counts them, by stage."""
        return {stage: paper_bytes(self.parameters, self.devices, stage) for stage in STAGES}

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain values, for JSON."""
        return {
            "model": self.model,
            "parameters": self.parameters,
            "devices": self.devices,
            "batch_tokens": self.batches.tokens,
            "length": self.batches.length,
            "tokens": self.tokens,
            "hardware": asdict(self.hardware) | {"usable_bytes": round(self.hardware.usable)},
            "meshes": [self._row_as_dict(row) for row in self.rows],
            "recommended": None if self.best is None else self.rows.index(self.best),
            "reason": self.reason,
            "settings": self.settings,
            "zero_paper_bytes": {str(stage): round(size) for stage, size in self.paper.items()},
        }

    def _row_as_dict(self, row: Row) -> dict[str, Any]:
        return {
            "data": row.mesh.data,
            "tensor": row.mesh.tensor,
            "zero": row.mesh.zero,
            "sequence_parallel": row.mesh.sequence_parallel,
            "recompute": row.batch.recompute,
            "micro_tokens": row.batch.tokens,
            "micro_batches": row.batch.count,
            "fits": row.fits,
            "peak_bytes": round(row.peak.bytes.total),
            "peak_at": row.peak.moment,
            "bytes_at_peak": {part: round(size) for part, size in row.peak.bytes._asdict().items()},
            "bytes_at_rest": row.rest._asdict(),
            "communication": [entry._asdict() | {"bytes": round(entry.bytes)} for entry in row.traffic],
            "step_seconds": row.time.seconds,
            "seconds_of": {
                "compute": row.time.compute,
                "states": row.time.states,
                "parameters": row.time.parameters,
            },
            "tokens_per_second": self.tokens_per_second(row),
            "mfu": self.mfu(row),
            "seconds": self.seconds(row),
        }


def make_plan(
    model: str,
    a: Transformer,
    devices: int,
    hardware: Hardware,
    batches: Batches,
    *,
    tokens: float | None = None,
    zero: int | None = None,
    tensor: int | None = None,
    sequence_parallel: bool = True,
) -> Plan:
    """Plan the training of a model. `zero` and `tensor` leave one stage or one tensor size."""
    _check(a, devices, batches, zero, tensor)
    sizes = [tensor] if tensor else tensor_sizes(a, devices, hardware.node)
    rows = []
    for size in sizes:
        for stage in STAGES if zero is None else (zero,):
            mesh = Mesh(devices // size, size, stage, sequence_parallel and size > 1)
            if (row := fill_row(a, mesh, batches, hardware)) is not None:
                rows.append(row)
    if not rows:
        raise UserError(
            f"batch_tokens: {batches.tokens:,} are fewer than {devices // max(sizes):,} sequences of {batches.length}, "
            "one for each rank that reads data; use fewer devices or a larger batch"
        )
    best = choose(rows)
    least = min(rows, key=lambda row: row.gib)
    why = (
        reason(best, rows, hardware)
        if best
        else f"nothing fits: the least is {least.gib:.1f} of {hardware.usable / cost.GIB:.1f} usable GiB; use more or "
        "larger devices"
    )
    return Plan(model, a, shapes(a).total, devices, hardware, batches, tokens, tuple(rows), best, why)


def _check(a: Transformer, devices: int, batches: Batches, zero: int | None, tensor: int | None) -> None:
    if devices < 1:
        raise UserError(f"devices: {devices} must be 1 or more")
    if zero is not None and zero not in STAGES:
        raise UserError(f"zero: {zero} is no stage; give 0, 1, 2 or 3")
    if tensor is not None:
        if tensor < 1 or devices % tensor:
            raise UserError(f"tensor: {tensor} does not divide the {devices} devices")
        check_tensor(a, tensor)
    if batches.length > a.longest_input:
        raise UserError(f"length: {batches.length} is more than the architecture's {a.longest_input} positions")
