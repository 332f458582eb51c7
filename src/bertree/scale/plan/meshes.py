"""The meshes that a number of devices can form, what each needs, how long a step takes, and which one to take.

Times are an estimate from stated assumptions. A step computes and exchanges hidden states among the ranks that share a
layer, which wait for them; weights and gradients are sent in the meantime. So a step takes the longer of the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from bertree.errors import UserError
from bertree.model import cost
from bertree.model.architecture import Transformer
from bertree.scale.plan.communication import Traffic, step_traffic
from bertree.scale.plan.memory import AtRest, Mesh, MicroBatch, Peak, at_rest, peak
from bertree.scale.tensor import check_tensor

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Hardware:
    """The devices and how they are connected. The defaults are an NVIDIA A100's in machines of 8."""

    card: float = 80.0  # memory of a device, GiB
    peak: float = 312.0  # TFLOP/s of a device in bf16
    efficiency: float = 0.5  # share of it that matrix products and all between them reach
    link: float = 300.0  # GB/s that a device sends to others of its machine
    network: float = 25.0  # GB/s that a device sends to other machines
    node: int = 8  # devices of a machine

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise UserError(f"{name}: {value:g} must be more than 0")

    @property
    def usable(self) -> float:
        """Bytes of a device for tensors: the CUDA context and gaps between tensors take the rest."""
        return self.card * cost.GIB * (1 - cost.RESERVE)

    def bandwidth(self, group: str, mesh: Mesh) -> float:
        """Return the bytes a second that a rank sends in a ring of a group.

        A ring between machines goes through all network cards of each, which the rings of a mesh share: there are as
        many as ranks that share a layer."""
        ranks = mesh.tensor if group == "tensor" else mesh.devices
        if ranks <= self.node:
            return self.link * GIGA
        rings = 1 if group == "tensor" else min(mesh.tensor, self.node)
        return min(self.link, self.network * self.node / rings) * GIGA


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step, and what they were computed from."""

    compute: float
    states: float  # sent among ranks that share a layer
    parameters: float  # parameters and gradients, sent while the rest is computed
    model_flops: float  # of the model, on all devices: what is computed twice counts once

    @property
    def seconds(self) -> float:
        """The step."""
        return max(self.compute + self.states, self.parameters)

    def mfu(self, mesh: Mesh, hardware: Hardware) -> float:
        """Return the model's operations per second as a share of what the devices could do."""
        return self.model_flops / self.seconds / (mesh.devices * hardware.peak * TERA)


def step_time(
    a: Transformer, mesh: Mesh, batch: MicroBatch, length: int, sent: list[Traffic], hardware: Hardware
) -> StepTime:
    """Estimate one step of a mesh."""
    tokens = batch.tokens * batch.count * mesh.data
    rate = batch.predicted / batch.tokens
    training = cost.training_flops(a, length, rate) * tokens
    again = cost.forward_flops(a, length) * tokens if batch.recompute else 0
    times = {"data": 0.0, "tensor": 0.0}
    for entry in sent:
        ranks = mesh.data if entry.group == "data" else mesh.tensor
        times[entry.group] += entry.sent(ranks) / hardware.bandwidth(entry.group, mesh)
    speed = mesh.devices * hardware.peak * hardware.efficiency * TERA
    return StepTime((training + again) / speed, times["tensor"], times["data"], training)


STAGES = (0, 1, 2, 3)
CLOSE = 0.02  # meshes whose times differ by less are equally fast: the simpler one is taken
MOST_MICRO_BATCHES = 2**20


@dataclass(frozen=True)
class Batches:
    """The batch of a step over all devices."""

    tokens: int
    length: int  # tokens of a sequence
    rate: float  # share of the tokens that the head predicts
    recompute: bool | None = None  # None: where it is needed
    bf16: bool = True


@dataclass(frozen=True)
class Row:
    """One mesh: what a rank needs, what it sends, how long a step takes."""

    mesh: Mesh
    batch: MicroBatch
    peak: Peak
    rest: AtRest
    traffic: tuple[Traffic, ...]
    time: StepTime
    fits: bool

    @property
    def gib(self) -> float:
        """GiB of a rank at the peak."""
        return self.peak.bytes.total / cost.GIB

    @property
    def order(self) -> tuple[int, ...]:
        """Sort key: the simpler of two equally fast meshes comes first."""
        return (self.mesh.tensor, self.mesh.zero, self.batch.count)


def tensor_sizes(a: Transformer, devices: int, most: int) -> list[int]:
    """Return the possible numbers of tensor ranks."""
    return [n for n in range(1, min(devices, most) + 1) if devices % n == 0 and _can_share(a, n)]


def _can_share(a: Transformer, tensor: int) -> bool:
    try:
        check_tensor(a, tensor)
    except UserError:
        return False
    return True


def fill_row(a: Transformer, mesh: Mesh, batches: Batches, hardware: Hardware) -> Row | None:
    """Return a mesh with the fastest setting that fits, or else the one that needs least memory; None if there are more
    data ranks than sequences."""
    rows = []
    for recompute in (False, True) if batches.recompute is None else (batches.recompute,):
        for batch in _micro_batches(mesh, batches, recompute):
            rows.append(_row(a, mesh, batch, batches.length, hardware))
            if rows[-1].fits:
                break
    fitting = [row for row in rows if row.fits]
    if fitting:
        return min(fitting, key=lambda row: row.time.seconds)
    return min(rows, key=lambda row: row.gib, default=None)


def _micro_batches(mesh: Mesh, batches: Batches, recompute: bool) -> Iterator[MicroBatch]:
    """Yield the batch of a data rank as 1, 2, 4 ... micro-batches, down to one sequence each."""
    tokens, count = batches.tokens // mesh.data, 1
    while tokens // count >= batches.length and count <= MOST_MICRO_BATCHES:
        size = tokens // count
        yield MicroBatch(size, round(batches.rate * size), count, recompute, batches.bf16)
        count *= 2


def _row(a: Transformer, mesh: Mesh, batch: MicroBatch, length: int, hardware: Hardware) -> Row:
    most, sent = peak(a, mesh, batch), step_traffic(a, mesh, batch)
    time = step_time(a, mesh, batch, length, sent, hardware)
    fits = most.bytes.total <= hardware.usable
    return Row(mesh, batch, most, at_rest(a, mesh, batch.bf16), tuple(sent), time, fits)


def choose(rows: list[Row]) -> Row | None:
    """Return the fastest mesh that fits; of those that are equally fast, the simplest. None if none fits."""
    fitting = [row for row in rows if row.fits]
    if not fitting:
        return None
    fastest = min(row.time.seconds for row in fitting)
    return min((row for row in fitting if row.time.seconds <= fastest * (1 + CLOSE)), key=lambda row: row.order)


def reason(best: Row, rows: list[Row], hardware: Hardware) -> str:
    """Say in one line why a mesh is recommended."""
    usable = hardware.usable / cost.GIB
    text = f"{best.gib:.1f} of {usable:.1f} usable GiB"
    simpler = [row for row in rows if row.order[:2] < best.order[:2] and not row.fits]
    slower = [row for row in rows if row.fits and row is not best]
    if simpler:
        nearest = max(simpler, key=lambda row: row.order)
        text += f"; {name(nearest.mesh)} would need {nearest.gib:.1f}"
    if slower:
        second = min(slower, key=lambda row: row.time.seconds)
        gained = second.time.seconds / best.time.seconds - 1
        text += f"; {name(second.mesh)} is as fast" if abs(gained) <= CLOSE else ""
        text += f"; {100 * gained:.0f} % faster than {name(second.mesh)}" if gained > CLOSE else ""
    elif len(rows) > 1:
        text += "; no other fits"
    return text


def name(mesh: Mesh) -> str:
    """Name a mesh for people."""
    return f"ZeRO {mesh.zero}" + (f", tensor {mesh.tensor}" if mesh.tensor > 1 else "")
