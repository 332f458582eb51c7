"""Memory of a training step against depth: plain layers, layers recomputed, reversible layers.

    python -m benchmarks.reversible_memory                  # on the CPU: peak of the resident memory
    python -m benchmarks.reversible_memory --device cuda    # peak that PyTorch's allocator saw, bf16 autocast
    python -m benchmarks.reversible_memory --ffn-chunk 512  # and the feed-forward part in chunks

Each case is a process of its own: one step to warm up, then one that is measured. The peak is given above what was held
before the step. All layers share their weights, so that depth adds activations and no gradients of weights. Plain
layers are pre-norm. On the CPU freed memory goes back to the system at once (MALLOC_MMAP_THRESHOLD_): by default glibc
keeps it. Linux.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import torch

from benchmarks.common import Results, argument_parser
from bertree.batch import Batch
from bertree.model.architecture import Transformer
from bertree.model.network import build_encoder

DEPTHS = (3, 6, 12, 24)
KINDS = ("plain", "recomputed", "reversible")
MIB = 2**20


def resident(peak: bool) -> int:
    """Bytes of resident memory, now or at most since the last `forget_peak`."""
    name = "VmHWM:" if peak else "VmRSS:"
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def forget_peak() -> None:
    """Let the peak of the resident memory start anew."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def measure(kind: str, layers: int, options: argparse.Namespace) -> dict[str, float]:
    """Peak in MiB and seconds of a step."""
    cuda = options.device == "cuda"
    torch.manual_seed(0)
    axes: dict[str, object] = {
        "vocab_size": 1000,
        "width": options.width,
        "heads": options.width // 64,
        "layers": layers,
    }
    axes |= {"layers": layers, "sharing": "all", "pooler": False, "ffn_chunk": options.ffn_chunk}
    axes["residual"] = "reversible" if kind == "reversible" else "pre-norm"
    a = Transformer(max_positions=options.length, attention_dropout=0.0).with_values(axes)
    encoder = build_encoder(a).train().to(options.device)
    encoder.recompute(kind == "recomputed")
    count = options.tokens // options.length
    batch = Batch.pack(torch.randint(5, 1000, (count, options.length)).tolist()).to(options.device)
    for _ in range(2):
        encoder.zero_grad()
        if cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        else:
            forget_peak()
            before = resident(peak=False)
        began = time.perf_counter()
        with torch.autocast(options.device, torch.bfloat16, enabled=cuda):
            states = encoder(batch)
        states.float().square().mean().backward()
        del states
        if cuda:
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        peak = torch.cuda.max_memory_allocated() if cuda else resident(peak=True)
    return {"mib": (peak - before) / MIB, "seconds": seconds}


def run_apart(kind: str, layers: int) -> dict[str, float]:
    """The same in a process of its own, with this one's options."""
    command = [sys.executable, "-m", "benchmarks.reversible_memory", "--case", kind, str(layers), *sys.argv[1:]]
    malloc = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=malloc)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--ffn-chunk", type=int, default=0)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case[0], int(options.case[1]), options)))
        return
    measured = {(kind, layers): run_apart(kind, layers) for kind in KINDS for layers in DEPTHS}
    results = Results(f"reversible-memory/{options.device}", options.out)
    for kind in KINDS:
        peaks = {layers: measured[kind, layers]["mib"] for layers in DEPTHS}
        added = (peaks[DEPTHS[-1]] - peaks[DEPTHS[0]]) / (DEPTHS[-1] - DEPTHS[0])
        figures = {f"mib_{layers}_layers": round(mib) for layers, mib in peaks.items()}
        seconds = {f"seconds_{layers}_layers": measured[kind, layers]["seconds"] for layers in DEPTHS}
        results.add(kind, **figures, mib_per_layer=round(added, 1), **seconds)
    results.print_table()


if __name__ == "__main__":
    main()
