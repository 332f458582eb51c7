"""Training throughput: bertree's whole loop against the same model in transformers, one run.

    python -m benchmarks.train                                          # two CPU cores, a small model
    python -m benchmarks.train --device cuda                            # the rows of the H200 table
    python -m benchmarks.train --device cuda --cases bert-base-128-full --only-ours

Ours: the token stream, masks, packed batches, dropout 0.1 where the preset has it, the MLM head on masked tokens,
clipping, AdamW, and the norm and the losses read on the host after every step; the same bytes every time. Theirs:
the model for masked LM with the same architecture and dropout (attention dropout 0 on both sides), the same
sequences padded to the longest length, clipping, the same fused AdamW, batches already on the device. On a GPU both
are compiled and in bf16. Tokens are real tokens, not padding. MFU is the share of the rate of a large bf16
product, measured at the start of the same run; operations are those of the matrix products and of attention,
forward and backward, with the head on 15 % of the tokens.

Causal members predict every next token, ours and theirs. `xl` is gpt1 with relative positions and a memory as long as
a segment, which reads lanes; `vanilla` is gpt1 on the same lanes, each segment on its own.

XLNet predicts one token in six in a random order, from lanes of which half run backwards; `memory`: with a memory as
long as a segment; `dry`: without dropout. It is not compared. If a batch of theirs does not fit into the memory, it is
halved until it does.
"""

import argparse
import contextlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.common import Clock, Results, argument_parser
from benchmarks.train_peers import Theirs, masked_or_causal
from bertree.config.sections import OptimSettings, Phase, RunSettings, ScheduleSettings
from bertree.data.lane_stream import LaneStream
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.model import cost
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.presets import preset, register_preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.device_setup import DeviceSetup, measure_peak_flops, set_deterministic
from bertree.train.feed import AnyStream, StreamFeed, TrainingSchedule
from bertree.train.loop import Loop, StepResult, StopTraining
from bertree.train.optimizer import build_optimizer
from bertree.train.strategies import CudaGraphRecorder
from tests.support.memory_store import memory_store

SPECIAL = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
FILL = 0.47


class Case(NamedTuple):
    """A row of the table."""

    member: str  # preset
    length: int
    full: bool  # sequences of that length, or ragged ones
    tokens: int  # at once
    compared: bool  # with transformers


GPU_CASES = {
    "bert-base-128-full": Case("bert-base", 128, True, 65536, True),
    "bert-base-128-ragged": Case("bert-base", 128, False, 65536, True),
    "bert-base-512-full": Case("bert-base", 512, True, 65536, True),
    "bert-base-512-ragged": Case("bert-base", 512, False, 65536, True),
    "roberta-base-512-full": Case("roberta-base", 512, True, 65536, False),
    "albert-base-512-full": Case("albert-base", 512, True, 65536, False),
    "bert-large-512-full": Case("bert-large", 512, True, 65536, False),
    "albert-xxlarge-512-full": Case("albert-xxlarge", 512, True, 16384, False),
}
GPU_CASES |= {
    "gpt1-512-full": Case("gpt1", 512, True, 65536, True),
    "gpt2-512-full": Case("gpt2", 512, True, 65536, True),
    "vanilla-512": Case("gpt1", 512, True, 65536, False),
    "xl-512": Case("xl", 512, True, 65536, False),
    "vanilla-128": Case("gpt1", 128, True, 65536, False),
    "xl-128": Case("xl", 128, True, 65536, False),
}
GPU_CASES |= {
    f"{member}-{length}": Case(member, length, True, 65536, False)
    for length in (512, 128)
    for member in ("xlnet", "xlnet-memory", "xlnet-dry", "xlnet-memory-dry")
}
CPU_CASES = {
    "xlnet-64": Case("xlnet-mini", 64, True, 1024, False),
    "xlnet-memory-64": Case("xlnet-memory-mini", 64, True, 1024, False),
    "vanilla-64": Case("gpt1-mini", 64, True, 1024, False),
    "xl-64": Case("xl-mini", 64, True, 1024, False),
    "bert-mini-128-ragged": Case("bert-mini", 128, False, 4096, True),
    "bert-mini-128-full": Case("bert-mini", 128, True, 4096, True),
}


register_preset("gpt1-mini", "gpt1", layers=4, width=256, heads=4, vocab_size=8000)
for size in ("", "-mini"):
    # The memory is as long as a segment: see `architecture`.
    register_preset(f"xl{size}", f"gpt1{size}", positions="relative", memory=1, attention_bias=False)
register_preset("xlnet", "xlnet-base")
register_preset("xlnet-mini", "xlnet-base", layers=4, width=256, heads=4, ffn_width=1024, vocab_size=8000)
for size in ("", "-mini"):
    register_preset(f"xlnet-memory{size}", f"xlnet{size}", memory=1)
for member in ("xlnet", "xlnet-memory"):
    register_preset(f"{member}-dry", member, dropout=0.0)
LANES = ("vanilla", "xl")  # cases that read lanes begin so


def architecture(member: str, length: int) -> Architecture:
    """Return what is trained: a preset without attention dropout, with a memory of one segment if it has one."""
    a = preset(member).architecture.with_values({"attention_dropout": 0.0})
    return a.with_values({"memory": length}) if a.axes().get("memory") else a


def corpus(vocabulary: int, length: int, full: bool, seed: int = 0) -> Store:
    """Random tokens: long documents, or short ones that fill 47 % of the length on average."""
    draw = np.random.default_rng(seed)
    sizes = np.full(600, 8 * length) if full else draw.integers(2, round(2 * FILL * length) - 4, 60000 * 64 // length)
    documents = [[draw.integers(1000, vocabulary, size).tolist()] for size in sizes.tolist()]
    return memory_store(documents, vocab_size=vocabulary, special=SPECIAL)


def stream_of(a: Architecture, case: Case, fixed: bool) -> Stream:
    """Batches of about as many real tokens as the case says."""
    kind = "full-sentences" if case.full else "doc-sentences"
    store = corpus(a.vocab_size, case.length, case.full)
    masking = "next" if a.causal else "token"
    return Stream(store, format=kind, masking=masking, batch_tokens=case.tokens, max_length=case.length, fixed=fixed)


def lanes_of(a: Architecture, case: Case) -> LaneStream:
    """Batches that continue each other; for XLNet half of them backwards, with an order in which to predict."""
    masking = "next" if a.causal else "permutation"
    return LaneStream(
        corpus(a.vocab_size, case.length, case.full),
        lanes=case.tokens // case.length,
        length=case.length,
        masking=masking,
        backward=masking == "permutation",
        fixed=True,
    )


class Ours:
    """The loop as `bertree pretrain` runs it."""

    def __init__(
        self, a: Architecture, case: Case, machine: DeviceSetup, steps: int, lanes: bool, recorded: bool = False
    ) -> None:
        stream: AnyStream = lanes_of(a, case) if lanes else stream_of(a, case, machine.compiled)
        schedule = TrainingSchedule([Phase(steps, case.length, case.tokens)], ScheduleSettings("constant"), 1e-4)
        self.feed = StreamFeed(schedule, [[stream]], fixed=machine.compiled)
        torch.manual_seed(0)
        network = build(a, {"mask": 0}).to(machine.device)
        self.loop = Loop(
            network,
            pretraining_objective(mlm=1.0),
            build_optimizer(network, OptimSettings(lr=1e-4), capturable=recorded),
            clip=1.0,
            bf16=machine.bf16,
            compiled=machine.compiled,
            recorder=CudaGraphRecorder if recorded else None,
        )

    def run(self, steps: int, warm: int) -> float:
        """Tokens a second after the first `warm` steps."""
        clock = Clock(warm)

        def stop(result: StepResult) -> None:
            clock.count(result.step, result.tokens)
            if result.step == steps:
                raise StopTraining

        with contextlib.suppress(StopTraining):
            self.loop.run(self.feed.steps_from(0), [stop])
        return clock.tokens_per_second()


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", help="which rows (default: all)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm", type=int, default=6, help="steps that are not counted")
    parser.add_argument("--tokens", type=int, help="tokens at once, instead of the rows'")
    parser.add_argument("--vocab-size", type=int, help="another vocabulary than the presets'")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--recorded", action="store_true", help="ours: steps recorded as CUDA graphs and replayed")
    parser.add_argument("--not-deterministic", action="store_true")
    options = parser.parse_args()
    device_setup = DeviceSetup.from_settings(RunSettings(device=options.device))
    cases = GPU_CASES if device_setup.device.type == "cuda" else CPU_CASES
    unknown = set(options.cases or ()) - set(cases)
    if unknown:
        parser.error(f"unknown case {unknown.pop()}; known: {', '.join(cases)}")
    peak = measure_peak_flops(device_setup.device)
    note = f"MFU is the share of a large bf16 matrix product ({peak / 1e12:.0f} TFLOP/s)." if peak else ""
    results = Results("train-recorded" if options.recorded else "train", options.out, ["transformers"], note)
    for name in options.cases or cases:
        case = cases[name]._replace(tokens=options.tokens) if options.tokens else cases[name]
        measure(name, case, device_setup, peak, options, results)
    results.print_table()


def measure(
    name: str,
    case: Case,
    device_setup: DeviceSetup,
    peak: float | None,
    options: argparse.Namespace,
    results: Results,
) -> None:
    """Measure a case and, if it is compared, transformers' model."""
    set_deterministic(not options.not_deterministic)
    a = architecture(case.member, case.length)
    a = a.with_values({"vocab_size": options.vocab_size}) if options.vocab_size else a
    ours = Ours(a, case, device_setup, options.steps, name.startswith(LANES), options.recorded)
    rate, memory = timed(ours, options, device_setup)
    del ours
    average = case.length if case.full else round(FILL * case.length)
    mfu = round(100 * rate * cost.training_flops(a, average) / peak, 1) if peak else None
    figures = {"tokens_per_step": case.tokens, "tokens_per_second": round(rate), "mfu_percent": mfu, "peak_gb": memory}
    if not case.compared or options.only_ours:
        results.add(name, **figures)
        return
    set_deterministic(False)  # nobody asks that of them
    stream = stream_of(a, case, False)
    note, peer_rate, peer_memory = timed_in_parts(
        lambda tokens: masked_or_causal(a, stream, case.length, tokens, case.full, device_setup),
        case.tokens,
        options,
        device_setup,
    )
    results.add(
        f"{name}{note}",
        **figures,
        transformers_tokens_per_second=round(peer_rate),
        transformers_peak_gb=peer_memory,
        times_transformers=round(rate / peer_rate, 2),
    )


def timed_in_parts(
    make: Callable[[int], Theirs], tokens: int, options: argparse.Namespace, machine: DeviceSetup
) -> tuple[str, float, float | None]:
    """Return a note, tokens a second and the peak of the memory, with as many tokens at once as fit."""
    most = tokens
    while True:
        try:
            rate, memory = timed(make(tokens), options, machine)
            return "" if tokens == most else f", {tokens:,} tokens at once", rate, memory
        except torch.OutOfMemoryError:
            tokens //= 2
        torch.cuda.empty_cache()


def timed(side: Ours | Theirs, options: argparse.Namespace, machine: DeviceSetup) -> tuple[float, float | None]:
    """Return tokens a second, and the peak of the GPU's memory."""
    gpu = machine.device.type == "cuda"
    torch._dynamo.reset()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    rate = side.run(options.steps, options.warm)
    memory = round(torch.cuda.max_memory_allocated() / 1e9, 1) if gpu else None
    return rate, memory


if __name__ == "__main__":
    main()
