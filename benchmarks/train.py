"""Training throughput: bertree's whole loop against the same model in transformers, one run.

    python -m benchmarks.train                                          # two CPU cores, a small model
    python -m benchmarks.train --device cuda                            # the rows of the H200 table
    python -m benchmarks.train --device cuda --cases bert-base-128-full --profile profile.txt

Ours: the token stream, masks, packed batches, dropout 0.1 where the preset has it, the MLM head on masked tokens,
clipping, AdamW, and the norm and the losses read on the host after every step; the same bytes every time. Theirs:
the model for masked LM with the same architecture and dropout (attention dropout 0 on both sides), the same
sequences padded to the longest length, clipping, the same fused AdamW, batches already on the device. On a GPU both
are compiled and in bf16. Tokens are real tokens, not padding. MFU is the share of the rate of a large bf16
product, measured at the start of the same run; operations are those of the matrix products and of attention,
forward and backward, with the head on 15 % of the tokens.

Causal members predict every next token, ours and theirs. `xl` is gpt1 with relative positions and a memory as long as
a segment, which reads lanes; `vanilla` is gpt1 on the same lanes, each segment on its own.
"""

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import environment, synchronise, table
from bertree.batch import Batch, PretrainingLabels
from bertree.config.sections import OptimSettings, Phase, RunSettings, ScheduleSettings
from bertree.data.lanes.lane_stream import LaneStream
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.interop.hf_config import config_from_architecture, family_of_architecture
from bertree.model import cost
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.presets import preset, register_preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.device import Placement, measure_peak_flops, set_deterministic
from bertree.train.feed import AnyStream, StreamFeed
from bertree.train.loop import Loop, StepResult, StopTraining
from bertree.train.optim import build_optimizer
from bertree.train.schedule import TrainingPlan

SPECIAL = {"pad": 0, "unk": 100, "cls": 101, "sep": 102, "mask": 103}
FILL = 0.47
# preset, length, full or ragged, tokens at once, compare with transformers
GPU_CASES = {
    "bert-base-128-full": ("bert-base", 128, True, 65536, True),
    "bert-base-128-ragged": ("bert-base", 128, False, 65536, True),
    "bert-base-512-full": ("bert-base", 512, True, 65536, True),
    "bert-base-512-ragged": ("bert-base", 512, False, 65536, True),
    "roberta-base-512-full": ("roberta-base", 512, True, 65536, False),
    "albert-base-512-full": ("albert-base", 512, True, 65536, False),
    "bert-large-512-full": ("bert-large", 512, True, 65536, False),
    "albert-xxlarge-512-full": ("albert-xxlarge", 512, True, 16384, False),
}
GPU_CASES |= {
    "gpt1-512-full": ("gpt1", 512, True, 65536, True),
    "gpt2-512-full": ("gpt2", 512, True, 65536, True),
    "vanilla-512": ("gpt1", 512, True, 65536, False),
    "xl-512": ("xl", 512, True, 65536, False),
    "vanilla-128": ("gpt1", 128, True, 65536, False),
    "xl-128": ("xl", 128, True, 65536, False),
}
CPU_CASES = {
    "vanilla-64": ("gpt1-mini", 64, True, 1024, False),
    "xl-64": ("xl-mini", 64, True, 1024, False),
    "bert-mini-128-ragged": ("bert-mini", 128, False, 4096, True),
    "bert-mini-128-full": ("bert-mini", 128, True, 4096, True),
}


register_preset("gpt1-mini", "gpt1", layers=4, width=256, heads=4, vocab_size=8000)
for size in ("", "-mini"):
    # The memory is as long as a segment: see `architecture`.
    register_preset(f"xl{size}", f"gpt1{size}", positions="relative", memory=1, attention_bias=False)
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
    return Store.from_documents(documents, vocab_size=vocabulary, special=SPECIAL)


def stream_of(a: Architecture, length: int, full: bool, tokens: int, fixed: bool) -> Stream:
    """Batches of about `tokens` real tokens."""
    kind = "full-sentences" if full else "doc-sentences"
    store = corpus(a.vocab_size, length, full)
    masking = "next" if a.causal else "token"
    return Stream(store, format=kind, masking=masking, batch_tokens=tokens, max_length=length, fixed=fixed)


class Clock:
    """Counts tokens from the end of the warm-up on; waits for the GPU at both ends and nowhere else."""

    def __init__(self, warm: int) -> None:
        self._warm, self._tokens, self._began = warm, 0, 0.0

    def count(self, step: int, tokens: int) -> None:
        """A step is done, or handed to the GPU."""
        if step > self._warm:
            self._tokens += tokens
        elif step == self._warm:
            synchronise()
            self._began = time.perf_counter()

    def speed(self) -> float:
        """Tokens a second."""
        synchronise()
        return self._tokens / (time.perf_counter() - self._began)


class Ours:
    """The loop as `bertree pretrain` runs it."""

    def __init__(
        self, a: Architecture, length: int, full: bool, tokens: int, machine: Placement, steps: int, lanes: bool
    ) -> None:
        stream: AnyStream = stream_of(a, length, full, tokens, machine.compiled)
        if lanes:
            stream = LaneStream(corpus(a.vocab_size, length, full), lanes=tokens // length, length=length, fixed=True)
        plan = TrainingPlan([Phase(steps, length, tokens)], ScheduleSettings("constant"), 1e-4)
        self.feed = StreamFeed(plan, [[stream]], fixed=machine.compiled)
        torch.manual_seed(0)
        network = build(a, {"mask": 0}).to(machine.device)
        self.loop = Loop(
            network,
            pretraining_objective(mlm=1.0),
            build_optimizer(network, OptimSettings(lr=1e-4)),
            clip=1.0,
            bf16=machine.bf16,
            compiled=machine.compiled,
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
        return clock.speed()


class Theirs:
    """transformers' model with a plain loop around it."""

    def __init__(self, a: Architecture, length: int, full: bool, tokens: int, machine: Placement) -> None:
        import transformers

        family = family_of_architecture(a)
        settings = config_from_architecture(a, family, 0)
        config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
        torch.manual_seed(0)
        kind = transformers.AutoModelForCausalLM if a.causal else transformers.AutoModelForMaskedLM
        try:
            made = kind.from_config(config, attn_implementation="sdpa")
        except ValueError:  # its GPT-1 has plain attention alone
            made = kind.from_config(config, attn_implementation="eager")
        self.model = made.to(machine.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.compute: Callable[..., Any] = torch.compile(self.model) if machine.compiled else self.model
        self.machine = machine
        stream = stream_of(a, length, full, tokens, False)
        self.batches = [padded(stream[k], length, tokens // length, full, a.causal, machine.device) for k in range(12)]

    def run(self, steps: int, warm: int) -> float:
        """Real tokens a second after the first `warm` steps."""
        clock = Clock(warm)
        for number in range(steps):
            given, real = self.batches[number % len(self.batches)]
            with torch.autocast(self.machine.device.type, torch.bfloat16, enabled=self.machine.bf16):
                loss = self.compute(**given).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            clock.count(number + 1, real)
        return clock.speed()


def padded(
    batch: Batch, length: int, rows: int, full: bool, causal: bool, device: torch.device
) -> tuple[dict[str, Any], int]:
    """The first `rows` sequences of a packed batch as transformers takes them, and how many tokens they hold."""
    masked, targets = PretrainingLabels.of(batch).predicted
    labels = torch.full_like(batch.ids, -100)
    labels[masked + 1 if causal else masked] = targets  # their loss shifts the labels itself
    ids_sl, labels_sl = torch.zeros(rows, length, dtype=torch.long), torch.full((rows, length), -100)
    mask_sl = torch.zeros(rows, length, dtype=torch.long)
    real = 0
    pieces = list(zip(batch.split(batch.ids), batch.split(labels), strict=True))
    for row, (ids, answers) in enumerate((pieces * (rows // len(pieces) + 1))[:rows]):
        ids_sl[row, : len(ids)], labels_sl[row, : len(ids)], mask_sl[row, : len(ids)] = ids, answers, 1
        real += len(ids)
    given = {"input_ids": ids_sl, "labels": labels_sl}
    if not full:
        given["attention_mask"] = mask_sl
    return {name: tensor.to(device) for name, tensor in given.items()}, real


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", nargs="+", help="which rows (default: all)")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--warm", type=int, default=6, help="steps that are not counted")
    parser.add_argument("--vocab-size", type=int, help="another vocabulary than the presets'")
    parser.add_argument("--only-ours", action="store_true")
    parser.add_argument("--not-deterministic", action="store_true")
    parser.add_argument("--profile", type=Path, help="write where the time of ours goes")
    parser.add_argument("--out", type=Path, help="write the table there too, after every row")
    given = parser.parse_args()
    machine = Placement.from_settings(RunSettings(device=given.device))
    cases = GPU_CASES if machine.device.type == "cuda" else CPU_CASES
    unknown = set(given.cases or ()) - set(cases)
    if unknown:
        parser.error(f"unknown case {unknown.pop()}; known: {', '.join(cases)}")
    peak = measure_peak_flops(machine.device)
    print(environment("transformers"), f"; {peak / 1e12:.0f} TFLOP/s in a large bf16 product" if peak else "")
    rows: list[list[object]] = []
    head = ["case", "ours, tokens/s", "MFU", "GB", "transformers, tokens/s", "GB", "ratio"]
    for name in given.cases or cases:
        member, length, full, tokens, compared = cases[name]
        rows.append(
            [name, *measure(name, member, length, full, tokens, compared and not given.only_ours, machine, peak, given)]
        )
        print(rows[-1], flush=True)
        if given.out:
            given.out.write_text(table(head, rows) + "\n")
    print(table(head, rows))


def measure(
    name: str,
    member: str,
    length: int,
    full: bool,
    tokens: int,
    compared: bool,
    machine: Placement,
    peak: float | None,
    given: argparse.Namespace,
) -> list[object]:
    """One row of the table."""
    set_deterministic(not given.not_deterministic)
    a = architecture(member, length)
    a = a.with_values({"vocab_size": given.vocab_size}) if given.vocab_size else a
    ours = Ours(a, length, full, tokens, machine, given.steps, name.startswith(LANES))
    found, memory = timed(ours, given, machine)
    if given.profile:
        profile(ours, given.profile)
    average = length if full else round(FILL * length)
    rate = 1.0 if a.causal else cost.MASK_RATE
    mfu = f"{found * cost.training_flops(a, average, rate) / peak:.1%}" if peak else ""
    row: list[object] = [f"{found:,.0f}", mfu, memory]
    del ours
    if not compared:
        return [*row, "", "", ""]
    set_deterministic(False)  # nobody asks that of them
    other, their_memory = timed(Theirs(a, length, full, tokens, machine), given, machine)
    return [*row, f"{other:,.0f}", their_memory, f"{found / other:.2f}"]


def timed(side: Ours | Theirs, given: argparse.Namespace, machine: Placement) -> tuple[float, str]:
    """Tokens a second, and the peak of the GPU's memory."""
    gpu = machine.device.type == "cuda"
    torch._dynamo.reset()
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    found = side.run(given.steps, given.warm)
    memory = f"{torch.cuda.max_memory_allocated() / 1e9:.1f}" if gpu else ""
    return found, memory


def profile(ours: Ours, path: Path) -> None:
    """Kernels by time, a few steps of ours."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiling

    with profiling(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        ours.run(5, 1)
    averages = seen.key_averages()
    path.write_text(averages.table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=90))


if __name__ == "__main__":
    main()
