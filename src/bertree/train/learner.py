"""What every way to take a step shares: the network, its objective and optimizer, the precision and the seed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bertree import keyed_random
from bertree.batch import Batch
from bertree.model.encoder import State, Stateful
from bertree.objectives.objective import Computed, Objective
from bertree.scale.distribute import Distribution

Compute = Callable[[nn.Module, Batch, State | None], Computed]


@dataclass(eq=False)
class Learner:
    """A network, its objective and its optimizer."""

    network: Any  # what the objective expects
    objective: Objective
    optimizer: Optimizer
    compute: Compute  # the objective, compiled if that is chosen
    max_norm: float  # of the gradient
    seed: int
    bf16: bool
    distribution: Distribution = field(default_factory=Distribution)

    def __post_init__(self) -> None:
        if self.distribution.sharding is not None:
            self.named  # noqa: B018  # as they are now, sharded: within a step some are gathered

    @cached_property
    def device(self) -> torch.device:
        """Where the network is computed."""
        device: torch.device = next(self.network.parameters()).device
        return self.distribution.device or device

    @cached_property
    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The parameters that learn, with their names."""
        return [(name, p) for name, p in self.network.named_parameters() if p.requires_grad]

    @property
    def trainable(self) -> list[nn.Parameter]:
        """The parameters that learn."""
        return [parameter for _, parameter in self.named]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which the network is computed: bfloat16 where that is chosen."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()

    def seed_dropout(self, step: int, number: int) -> None:
        """Seed the dropout of a micro-batch of a step."""
        seed = int(keyed_random.key(self.seed, step, number, "dropout")) >> 1
        # torch.manual_seed formats the call stack for every kind of device that is not in use yet.
        (torch.default_generator if self.device.type == "cpu" else torch).manual_seed(seed)

    def start_state(self, lanes: int) -> State | None:
        """Return the network's state before its first batch; made here, so that a compiled step always gets one."""
        state = self.network.start_state(lanes) if isinstance(self.network, Stateful) else None
        # Sharded weights may be kept elsewhere than where the network is computed.
        return None if state is None else {name: tensor.to(self.device) for name, tensor in state.items()}

    def counts(self, batches: Sequence[Batch]) -> dict[str, int]:
        """Count the targets of all micro-batches of a step, by term."""
        counts = dict.fromkeys(self.objective.weights, 0)
        for batch in batches:
            for name, count in self.objective.counts(batch).items():
                counts[name] += count
        return counts

    def scales(self, counts: Mapping[str, int]) -> dict[str, float]:
        """Return the factor of each term's sum: its weight, divided by its count."""
        return {name: self.objective.weights[name] / max(1, count) for name, count in counts.items()}

    @torch.no_grad()
    def update(self, skip: bool = False) -> Tensor:
        """Clip the gradient and let the optimizer take its step, unless the gradient is not finite; return its norm."""
        norm = self.distribution.clip_gradients(self.named, self.max_norm)
        # Where this is 1 both optimizers change nothing; AdamW without the host waiting for it.
        bad = torch.ones_like(norm) if skip else (~norm.isfinite()).float()
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        return norm
