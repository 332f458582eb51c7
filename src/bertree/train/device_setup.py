"""The device setup of a run: device, precision, compilation, threads, and how many tokens fit into a micro-batch."""

import os
import resource
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from bertree.config.names import has_native_bfloat16
from bertree.config.sections import Phase, RunSettings
from bertree.console import note
from bertree.engines.local import available_cores, busy_cores
from bertree.errors import UserError, device_problem
from bertree.files.formats import read_json
from bertree.model import cost
from bertree.model.architecture import Architecture
from bertree.model.torch_internals import is_compiler_imported
from bertree.run_folder import ENVIRONMENT

CPU_TOKENS, GPU_TOKENS = 8192, 65536  # in a micro-batch, at most
MEMORY_SHARE = 0.8  # of a GPU's memory, for a training step
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
THREAD_WIDTH = 32  # of the model, for each thread
CROWDED, IDLE = 2, 4  # times more threads than cores, or cores than threads, that are worth a note


@dataclass(frozen=True)
class DeviceSetup:
    """Device, precision and compilation of a run, with every `auto` of its settings resolved."""

    device: torch.device
    bf16: bool
    compiled: bool

    @classmethod
    def from_settings(cls, run: RunSettings) -> "DeviceSetup":
        """Return the device and precision of the settings; `auto` is the best choice on this machine."""
        device = usable_device(run.device, "run.device")
        gpu = device.type == "cuda"
        bf16 = run.precision == "bf16" or (run.precision == "auto" and gpu and torch.cuda.is_bf16_supported())
        if bf16 and device.type == "cpu" and not has_native_bfloat16():
            note("run.precision: this CPU has no instructions for bfloat16; fp32 is several times faster here")
        compiled = run.compile == "yes" or (run.compile == "auto" and gpu)
        return cls(device, bf16, compiled)

    @property
    def description(self) -> str:
        """Device and precision, for the first lines of a run."""
        return f"{self.device}, {'bf16' if self.bf16 else 'fp32'}"

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which a network is computed in this precision."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()


def usable_device(name: str, setting: str) -> torch.device:
    """Return the device of a name; `auto` is a GPU if there is one. One that cannot be used is refused."""
    name = name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"{setting} '{name}': cannot be used here ({device_problem(error)})") from None
    return device


def set_deterministic(deterministic: bool) -> None:
    """Compute the same bytes every time, where PyTorch can. Call it before the first product on a GPU.

    Sets the compiler's flag too if the compiler was imported; if not, `prepare_compiler` does."""
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if is_compiler_imported():
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
    else:
        torch.set_deterministic_debug_mode("warn" if deterministic else "default")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def uses_gpu(run: RunSettings) -> bool:
    """Return whether a run is computed on a GPU."""
    return torch.cuda.is_available() if run.device == "auto" else run.device.startswith("cuda")


def micro_batch_count(
    phase: Phase, run: RunSettings, device_setup: DeviceSetup, a: Architecture, *, rate: float, ranks: int = 1
) -> int:
    """Return how many micro-batches a batch is split into: as few as memory allows, equally many for each rank; 0 if
    the batch is too small for this number of ranks.

    `rate` is the share of tokens that are predicted. Compiled steps need micro-batches of equal size.
    """
    gpu = device_setup.device.type == "cuda"
    limit = run.micro_tokens or (_tokens_that_fit(phase, a, run.recompute, rate) if gpu else CPU_TOKENS)
    tokens, smallest = phase.batch_tokens, phase.max_length * (1 if device_setup.compiled else 2)
    most, least = max(1, tokens // smallest), -(-tokens // limit)
    enough, largest = range(-(-least // ranks) * ranks, most + 1, ranks), range(most - most % ranks, 0, -ranks)
    return next((n for n in chain(enough, largest) if not device_setup.compiled or tokens % n == 0), 0)


def _tokens_that_fit(phase: Phase, a: Architecture, recompute: bool, rate: float) -> int:
    """Return the number of tokens whose training step fits into the GPU's memory."""
    if recompute:
        return GPU_TOKENS
    _, total = torch.cuda.mem_get_info()
    tokens = GPU_TOKENS
    while tokens > phase.max_length:
        if cost.training_bytes(a, max(1, tokens // phase.max_length), phase.max_length, rate) < MEMORY_SHARE * total:
            break
        tokens //= 2
    return tokens


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process has used: of the GPU's memory, or of the host's."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure_peak_flops(device: torch.device) -> float | None:
    """Measure the operations per second of a large bfloat16 product, which MFU is a share of. None on a CPU."""
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


def choose_threads(cores: int, busy: float, width: int) -> int:
    """Return the threads for a model of this width on a machine of which other processes keep some cores busy.

    Each operation waits for its slowest thread: one without a core of its own slows it down, and the operations of a
    narrow model are too short for many. docs/decisions.md has the figures."""
    return max(1, min(round(cores - busy), width // THREAD_WIDTH))


def set_threads(width: int, device: torch.device, out: Path, resume: bool) -> None:
    """Set the threads of a run in `out`. A resumed run has as many as before: its bytes may depend on them."""
    if device.type != "cpu":
        return
    cores = available_cores()
    variable = next((name for name in THREAD_VARIABLES if name in os.environ), None)
    if variable is not None:
        threads = torch.get_num_threads()
        if threads >= CROWDED * cores:
            note(f"{variable}={threads}: more threads than the {cores} cores here slow a run down; leave it out")
        elif cores >= IDLE * threads and (better := choose_threads(cores, busy_cores(), width)) >= IDLE * threads:
            note(f"{variable}={threads}: most of the {cores} cores stay idle; leave it out to use {better}")
        return
    torch.set_num_threads((_threads_before(out) if resume else 0) or choose_threads(cores, busy_cores(), width))


def _threads_before(out: Path) -> int:
    """Return the threads that a run began with; 0 if it does not say."""
    paths = [path for path in (out / ENVIRONMENT, *sorted(out.glob(f"seed-*/{ENVIRONMENT}"))) if path.is_file()]
    try:
        threads = read_json(paths[0]).get("threads") if paths else 0
    except UserError:
        return 0
    return threads if type(threads) is int and 0 < threads <= available_cores() else 0
