"""How long a training step takes: an estimate from stated assumptions.

A step computes, and sends states among the ranks that share a layer, which wait for them; parameters and gradients are
sent meanwhile. So it takes the longer of the two: computing and states, or parameters and gradients.
"""

from dataclasses import dataclass

from bertree.errors import UserError
from bertree.model import cost
from bertree.model.architecture import Transformer
from bertree.scale.plan.memory import Mesh, MicroBatch
from bertree.scale.plan.traffic import Traffic

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
