"""Time of the optimizers alone on a GPU: until a step is launched, until it is computed, and whether the host waits.

    python -m benchmarks.optimizer_steps    # 12 layers of ModernBERT's kind, random gradients

Without a GPU a tiny model is used, to see that it runs.
"""

import statistics
import time
import warnings

import torch

from benchmarks.common import environment, synchronise, table
from bertree.config.sections import OptimSettings
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.train.optim import build_optimizer

SMALL = {"layers": 2, "width": 48, "ffn_width": 64, "vocab_size": 100}
BASE = {"layers": 12, "width": 768, "ffn_width": 2048, "vocab_size": 16_000}


def measured(name: str) -> list[object]:
    """Return the row of an optimizer."""
    gpu = torch.cuda.is_available()
    device = "cuda" if gpu else "cpu"
    a = preset("modernbert-base").architecture.with_values({"heads": 12} | (BASE if gpu else SMALL))
    network = build(a, {"mask": 0}).to(device)
    optimizer = build_optimizer(network, OptimSettings(name=name))
    for p in network.parameters():
        p.grad = torch.randn_like(p)

    def step() -> None:
        optimizer.found_inf = torch.zeros((), device=device)  # type: ignore[attr-defined]
        optimizer.step()

    for _ in range(3):
        step()
    launched, computed = [], []
    for _ in range(7):
        synchronise()
        began = time.perf_counter()
        step()
        launched.append(time.perf_counter() - began)
        synchronise()
        computed.append(time.perf_counter() - began)
    cells = [f"{1000 * statistics.median(times):.2f}" for times in (launched, computed)]
    return [name, *cells, waits(step) if gpu else ""]


def waits(step: object) -> str:
    """Return where the host waits for the GPU."""
    assert callable(step)
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        step()
    torch.cuda.set_sync_debug_mode("default")
    return ", ".join(f"{warning.filename.rpartition('/')[2]}:{warning.lineno}" for warning in seen) or "nowhere"


def main() -> None:
    """Print the table."""
    rows = [measured(name) for name in ("adamw", "lamb", "muon")]
    print(f"{environment()}\n\n{table(['optimizer', 'ms until launched', 'until computed', 'host waits'], rows)}")


if __name__ == "__main__":
    main()
