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

from benchmarks.common import environment, table
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


def measure(kind: str, layers: int, given: argparse.Namespace) -> dict[str, float]:
    """Peak in MiB and seconds of a step."""
    cuda = given.device == "cuda"
    torch.manual_seed(0)
    axes: dict[str, object] = {"vocab_size": 1000, "width": given.width, "heads": given.width // 64, "layers": layers}
    axes |= {"sharing": "all", "pooler": False, "ffn_chunk": given.ffn_chunk}
    axes["residual"] = "reversible" if kind == "reversible" else "pre-norm"
    made = Transformer(max_positions=given.length, attention_dropout=0.0).with_values(axes)
    encoder = build_encoder(made).train().to(given.device)
    encoder.recompute(kind == "recomputed")
    count = given.tokens // given.length
    batch = Batch.pack(torch.randint(5, 1000, (count, given.length)).tolist()).to(given.device)
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
        with torch.autocast(given.device, torch.bfloat16, enabled=cuda):
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
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--ffn-chunk", type=int, default=0)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(given.case[0], int(given.case[1]), given)))
        return
    found = {(kind, layers): run_apart(kind, layers) for kind in KINDS for layers in DEPTHS}
    rows = []
    for kind in KINDS:
        peaks = [found[kind, layers]["mib"] for layers in DEPTHS]
        added = (peaks[-1] - peaks[0]) / (DEPTHS[-1] - DEPTHS[0])
        times = [found[kind, layers]["seconds"] for layers in DEPTHS]
        rows.append((kind, *(f"{mib:,.0f}" for mib in peaks), f"{added:,.1f}", *(f"{s:.2f}" for s in times)))
    print(f"{environment()}\n")
    print(f"Width {given.width}, {given.tokens:,} tokens in sequences of {given.length}, dropout 0.1, ", end="")
    print(f"{'bf16 autocast' if given.device == 'cuda' else 'float32'}, ffn_chunk {given.ffn_chunk}\n")
    heads = [f"{layers} layers, MiB" for layers in DEPTHS]
    print(table(("layers are", *heads, "MiB per added layer", *(f"{layers} layers, s" for layers in DEPTHS)), rows))


if __name__ == "__main__":
    main()
