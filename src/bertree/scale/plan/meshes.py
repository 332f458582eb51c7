"""The meshes that a number of devices can form, what each needs, and which of them to take."""

from collections.abc import Iterator
from dataclasses import dataclass

from bertree.errors import UserError
from bertree.model import cost
from bertree.model.architecture import Transformer
from bertree.scale.plan.memory import AtRest, Mesh, MicroBatch, Peak, at_rest, peak
from bertree.scale.plan.timing import Hardware, StepTime, step_time
from bertree.scale.plan.traffic import Traffic, traffic
from bertree.scale.tensor import check_tensor

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
        """Of two meshes that are equally fast, the one that comes first is simpler."""
        return (self.mesh.tensor, self.mesh.zero, self.batch.count)


def tensor_sizes(a: Transformer, devices: int, most: int) -> list[int]:
    """Return the numbers of ranks that can share a layer."""
    return [n for n in range(1, min(devices, most) + 1) if devices % n == 0 and _can_share(a, n)]


def _can_share(a: Transformer, tensor: int) -> bool:
    try:
        check_tensor(a, tensor)
    except UserError:
        return False
    return True


def fill_row(a: Transformer, mesh: Mesh, batches: Batches, hardware: Hardware) -> Row | None:
    """Return a mesh with the fastest way to compute its batch that fits, or else the smallest; None if there are more
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
    """Yield the batch of a data rank in more and more parts, down to one sequence each."""
    tokens, count = batches.tokens // mesh.data, 1
    while tokens // count >= batches.length and count <= MOST_MICRO_BATCHES:
        part = tokens // count
        yield MicroBatch(part, round(batches.rate * part), count, recompute, batches.bf16)
        count *= 2


def _row(a: Transformer, mesh: Mesh, batch: MicroBatch, length: int, hardware: Hardware) -> Row:
    most, sent = peak(a, mesh, batch), traffic(a, mesh, batch)
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
    said = f"{best.gib:.1f} of {usable:.1f} usable GiB"
    simpler = [row for row in rows if row.order[:2] < best.order[:2] and not row.fits]
    slower = [row for row in rows if row.fits and row is not best]
    if simpler:
        nearest = max(simpler, key=lambda row: row.order)
        said += f"; {name(nearest.mesh)} would need {nearest.gib:.1f}"
    if slower:
        second = min(slower, key=lambda row: row.time.seconds)
        gained = second.time.seconds / best.time.seconds - 1
        said += f"; {name(second.mesh)} is as fast" if abs(gained) <= CLOSE else ""
        said += f"; {100 * gained:.0f} % faster than {name(second.mesh)}" if gained > CLOSE else ""
    elif len(rows) > 1:
        said += "; no other fits"
    return said


def name(mesh: Mesh) -> str:
    """Name a mesh for people."""
    return f"ZeRO {mesh.zero}" + (f", tensor {mesh.tensor}" if mesh.tensor > 1 else "")
