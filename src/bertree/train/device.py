"""Where a run is computed, in which precision, and how much of it at once."""

import os
import time
from dataclasses import dataclass

import torch

from bertree.config.sections import Phase, RunSettings
from bertree.errors import UserError
from bertree.model import cost
from bertree.model.architecture import Architecture

CPU_TOKENS, GPU_TOKENS = 8192, 65536  # computed at once, at most
FILL = 0.8  # of a GPU's memory


@dataclass(frozen=True)
class Placement:
    """The answers to everything a recipe leaves to `auto`."""

    device: torch.device
    bf16: bool
    compiled: bool

    @classmethod
    def from_settings(cls, run: RunSettings) -> "Placement":
        """What a recipe asks for, or what is best here."""
        name = run.device if run.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"run.device '{name}': cannot be used here ({str(error).splitlines()[0]})") from None
        gpu = device.type == "cuda"
        bf16 = run.precision == "bf16" or (run.precision == "auto" and gpu and torch.cuda.is_bf16_supported())
        compiled = run.compile == "yes" or (run.compile == "auto" and gpu)
        return cls(device, bf16, compiled)


def set_deterministic(wanted: bool) -> None:
    """The same bytes every time, where PyTorch can: must come before the first product on a GPU."""
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def micro_batch_count(phase: Phase, run: RunSettings, machine: Placement, a: Architecture, rate: float) -> int:
    """Into how many micro-batches a batch is cut: as few as the memory allows; `rate` is the share predicted."""
    limit = run.micro_tokens or (_room(phase, a, run.recompute, rate) if machine.device.type == "cuda" else CPU_TOKENS)
    tokens, least = phase.batch_tokens, phase.max_length * (1 if machine.compiled else 2)
    counts = [n for n in range(1, max(1, tokens // least) + 1) if tokens % n == 0 or not machine.compiled]
    return next((n for n in counts if tokens / n <= limit), counts[-1])


def _room(phase: Phase, a: Architecture, recompute: bool, rate: float) -> int:
    """Tokens whose training step fits into the GPU's memory."""
    if recompute:
        return GPU_TOKENS
    _, total = torch.cuda.mem_get_info()
    tokens = GPU_TOKENS
    while tokens > phase.max_length:
        if cost.training_bytes(a, max(1, tokens // phase.max_length), phase.max_length, rate) < FILL * total:
            break
        tokens //= 2
    return tokens


def measure_peak_flops(device: torch.device) -> float | None:
    """Operations a second of a large half-precision product: what MFU is a share of. None on a CPU."""
    if device.type != "cuda":
        return None
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    best = float("inf")
    for _ in range(8):
        torch.cuda.synchronize(device)
        began = time.perf_counter()
        for _ in range(4):
            a @ a
        torch.cuda.synchronize(device)
        best = min(best, (time.perf_counter() - began) / 4)
    return 2 * 8192**3 / best
