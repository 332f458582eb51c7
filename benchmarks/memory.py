"""The memory model of `bertree info` against measured peaks of a training step (needs CUDA).

    python -m benchmarks.memory
    python -m benchmarks.memory --presets reformer-base reformer-enwik8

Each case runs two steps of MLM (of next tokens, where the model is causal) under bf16 autocast with fused AdamW,
packed, and reads the peak that PyTorch's allocator saw; weights and inputs are random, which does not change the sizes.
"""

import gc

import torch

from benchmarks.common import Results, argument_parser
from bertree.batch import Batch
from bertree.model import cost
from bertree.model.network import build
from bertree.model.presets import preset

NAMES = "bert-small bert-base bert-large roberta-base albert-base albert-xxlarge distilbert-base"
CASES = [
    (name, batch, length) for name in NAMES.split() for batch, length in ((32, 128), (256, 128), (16, 512), (64, 512))
] + [
    (name, batch, length)
    for name in ("reformer-base", "reformer-enwik8")
    for batch, length in ((16, 1024), (1, 16384), (4, 16384), (1, 65536))
]


def peak(name: str, batch: int, length: int) -> int:
    """Peak bytes of the second step."""
    a = preset(name).architecture.with_values({"attention_dropout": 0.0})
    network = build(a, {"mask": 0}).cuda().train()
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    ids = torch.randint(5, a.vocab_size, (batch, length)).tolist()
    packed = Batch.pack(ids).to("cuda")
    rate = cost.costs(a).rate
    masked = torch.randperm(batch * length)[: round(rate * batch * length)].cuda()
    targets = packed.ids[masked]
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", torch.bfloat16):
            loss = network.mask_loss(network(packed), masked, targets) / len(targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        del loss
    return torch.cuda.max_memory_allocated()


def main() -> None:
    parser = argument_parser(__doc__)
    presets = sorted({name for name, *_ in CASES})
    parser.add_argument("--presets", nargs="+", default=presets, choices=presets)
    options = parser.parse_args()
    results = Results("memory", options.out)
    for name, batch, length in CASES:
        if name not in options.presets:
            continue
        measured = peak(name, batch, length)
        gc.collect()
        torch.cuda.empty_cache()
        a = preset(name).architecture.with_values({"attention_dropout": 0.0})
        expected = cost.training_bytes(a, batch, length)
        results.add(
            f"{name}, {batch} x {length}",
            model_gib=round(expected / cost.GIB, 2),
            measured_gib=round(measured / cost.GIB, 2),
            model_over_measured=round(expected / measured, 3),
        )
    results.print_table()


if __name__ == "__main__":
    main()
