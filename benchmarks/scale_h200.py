"""Large models on one GPU: the plan first, then the measurement.

    python -m benchmarks.scale_h200                  # on a GPU of 139 GiB, about 4 minutes
    python -m benchmarks.scale_h200 --only bert-base
    python -m benchmarks.scale_h200 --only bert-base --tokens 131072
    python -m benchmarks.scale_h200 --only bert-base --profile   # and which kernels take how long
    python -m benchmarks.scale_h200 --eager          # blocks are not compiled: quicker to start, slower to train
    python -m benchmarks.scale_h200 --rehearse       # the same with tiny models on a CPU, to see that it runs

Each case is a process of its own that builds a network with random weights on the device, shards it with FSDP2 on one
rank (ZeRO 3: weights in float32, gathered layer by layer in bf16), and takes steps of the package's own loop, with
AdamW and clipping, on random tokens that lie in the host's memory, as those of a run do. Speed is that of the steps
after the warm-up; the peak is what PyTorch's allocator gave out in these steps. Operations are those of `bertree info`,
so what is computed again does not count.

    megatron-bert-3.9b    65,536 tokens a step in sequences of 512, layers recomputed
    megatron-gpt-8.3b     8,192 tokens a step in sequences of 1,024, layers recomputed
    bert-base             65,536 tokens a step in sequences of 512: one device as `bertree pretrain` uses it (the whole
                          step compiled), and FSDP2 on one rank (its parts compiled), in turn
"""

import argparse
import json
import os
import subprocess
import sys
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.common import Results, argument_parser, synchronize
from bertree.batch import Batch, PretrainingLabels
from bertree.config.sections import OptimSettings
from bertree.model import cost
from bertree.model.architecture import Transformer
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.scale.distribute import distribute
from bertree.scale.launch import Launch
from bertree.scale.plan.memory import Mesh, MicroBatch, Peak, peak
from bertree.scale.plan.meshes import Hardware, StepTime, step_time
from bertree.scale.world import World, join
from bertree.train.device_setup import measure_peak_flops, set_deterministic
from bertree.train.feed import ScheduledStep, StepBatches
from bertree.train.loop import Loop, StepResult
from bertree.train.optimizer import build_optimizer

H200 = Hardware(card=139.0, peak=989.0)
WARM = 3  # steps; the first compiles, the second makes the moments
KERNELS = 25  # that a profile names
TINY = {"layers": 2, "width": 64, "heads": 4, "vocab_size": 512, "max_positions": 64}
LIMIT = 170  # seconds of a case


class Case(NamedTuple):
    """What is trained."""

    model: str
    tokens: int
    length: int
    recompute: bool
    steps: int  # that are measured
    both: bool = False  # without FSDP2 too

    def architecture(self, tiny: bool) -> Transformer:
        changes = {"attention_dropout": 0.0, "pooler": False} | (TINY if tiny else {})
        a = preset(self.model).architecture.with_values(changes)
        assert isinstance(a, Transformer)
        return a


CASES = [
    Case("megatron-bert-3.9b", 65536, 512, True, 3),
    Case("megatron-gpt-8.3b", 8192, 1024, True, 6),
    Case("bert-base", 65536, 512, False, 100, both=True),
]


class Prediction(NamedTuple):
    """What the planner says of a case on one device."""

    batch: MicroBatch
    peak: Peak
    time: StepTime

    @classmethod
    def of(cls, case: Case, tiny: bool = False) -> "Prediction":
        a, mesh = case.architecture(tiny), Mesh(1, 1, 3)
        predicted = case.tokens if a.causal else round(cost.MASK_RATE * case.tokens)
        batch = MicroBatch(case.tokens, predicted, 1, case.recompute)
        return cls(batch, peak(a, mesh, batch), step_time(a, mesh, batch, case.length, [], H200))

    @property
    def figures(self) -> dict[str, Any]:
        """For the table."""
        return {
            "peak_gib": self.peak.bytes.total / cost.GIB,
            "moment": self.peak.moment,
            "parts_gib": {part: size / cost.GIB for part, size in self.peak.bytes._asdict().items()},
            "tokens_per_second": self.batch.tokens / self.time.seconds,
            "mfu": self.time.mfu(Mesh(), H200),
        }


def random_batch(a: Transformer, case: Case, predicted: int) -> Batch:
    """Sequences of equal lengths of random tokens, some or all of which are predicted."""
    random = torch.Generator().manual_seed(0)

    def draw(count: int) -> Tensor:
        return torch.randint(5, a.vocab_size, (count,), generator=random)

    chosen = torch.randperm(case.tokens, generator=random)[:predicted].sort().values
    positions = torch.arange(case.length).repeat(case.tokens // case.length)
    bounds = torch.arange(0, case.tokens + 1, case.length, dtype=torch.int32)
    segments = torch.zeros(case.tokens, dtype=torch.int64)
    labels = PretrainingLabels(chosen, draw(predicted))
    return Batch(draw(case.tokens), positions, segments, bounds, case.length, one_segment=True, labels=labels)


class Trainer:
    """A network that is trained on one batch."""

    def __init__(self, case: Case, options: argparse.Namespace, world: World) -> None:
        self.device = "cpu" if options.rehearse else "cuda"
        a = case.architecture(options.rehearse)
        torch.manual_seed(0)
        with torch.device(self.device):
            network = build(a, {"mask": 0})
        distribution = None
        if world.joined:
            modes = {"recompute": case.recompute, "compiled": not options.eager}
            distribution = distribute(network, world, zero=3, bf16=True, **modes)
        else:
            network.encoder.recompute(case.recompute)
        optimizer = build_optimizer(network, OptimSettings(), distribution=distribution)
        objective = pretraining_objective(mlm=1.0)
        whole = not options.eager and not world.joined
        self.loop = Loop(network, objective, optimizer, clip=1.0, bf16=True, compiled=whole, distribution=distribution)
        self.batch = random_batch(a, case, Prediction.of(case, options.rehearse).batch.predicted)
        self.number = 0

    def take(self, steps: int) -> float:
        """Take steps; return their seconds."""
        synchronize()
        began = time.perf_counter()
        first, self.number = self.number + 1, self.number + steps
        self.loop.run((self._step(number) for number in range(first, self.number + 1)), [self._keep])
        synchronize()
        return time.perf_counter() - began

    def _step(self, number: int) -> StepBatches:
        return StepBatches(ScheduledStep(number, 0, number, 1, 1e-4), [self.batch], 0.0)

    def _keep(self, result: StepResult) -> None:
        self.result = result

    def profile(self, steps: int = 3) -> dict[str, Any]:
        """Return the milliseconds a step in which kernels run, all of them and the longest by name."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            self.take(steps)
        kernels = [(event.self_device_time_total / steps / 1000, event.key) for event in profiler.key_averages()]
        kernels = sorted(((ms, name) for ms, name in kernels if ms), reverse=True)
        longest = {name[:120]: round(ms, 3) for ms, name in kernels[:KERNELS]}
        return {"all": round(sum(ms for ms, _ in kernels), 2), "longest": longest}


def measure(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Train on one rank; without FSDP2 too, in turn, so that a slow moment of the machine meets both."""
    set_deterministic(True)
    began = time.perf_counter()
    best = measure_peak_flops(torch.device("cpu" if options.rehearse else "cuda"))
    with join(Launch(), zero=3, cuda=not options.rehearse) as world:
        trainers = {"FSDP2": Trainer(case, options, world)}
        if case.both:
            trainers["plain"] = Trainer(case, options, World.alone())
        for trainer in trainers.values():
            trainer.take(WARM)
        started = time.perf_counter() - began
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        rounds = 5 if case.both else 1
        times: dict[str, list[float]] = {name: [] for name in trainers}
        for _ in range(rounds):
            for name, trainer in trainers.items():
                times[name].append(trainer.take(max(1, case.steps // rounds)))
        seconds = {name: sorted(each)[len(each) // 2] / max(1, case.steps // rounds) for name, each in times.items()}
        figures = {
            "start_seconds": started,
            "step_seconds": seconds,
            "tokens_per_second": {name: case.tokens / each for name, each in seconds.items()},
            "loss": {name: trainer.result.loss for name, trainer in trainers.items()},
            "measured_tflops": None if best is None else best / 1e12,
        }
        if options.profile:
            figures["kernel_milliseconds"] = {name: trainer.profile() for name, trainer in trainers.items()}
    if torch.cuda.is_available() and not case.both:
        figures["peak_gib"] = torch.cuda.max_memory_allocated() / cost.GIB
        figures["reserved_gib"] = torch.cuda.max_memory_reserved() / cost.GIB
    return figures


def run_apart(case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Measure in a process of its own, whose memory is given back."""
    flags = [name for name in ("--eager", "--rehearse", "--profile") if getattr(options, name.strip("-"))]
    command = [sys.executable, "-m", "benchmarks.scale_h200", "--inside", json.dumps(case), *flags]
    settings = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT, env=settings)
    except subprocess.TimeoutExpired:
        return {"failed": f"took more than {LIMIT} seconds"}
    if done.returncode:
        return {"failed": f"exit code {done.returncode}; see the errors above"}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def record(results: Results, case: Case, planned: dict[str, Any], measured: dict[str, Any]) -> None:
    """Record what was planned and what was measured."""
    if "failed" in measured:
        results.add(
            case.model, tokens_per_step=case.tokens, planned_peak_gib=planned["peak_gib"], failed=measured["failed"]
        )
        return
    speed = measured["tokens_per_second"]["FSDP2"]
    flops = cost.training_flops(case.architecture(False), case.length)
    results.add(
        case.model,
        tokens_per_step=case.tokens,
        planned_peak_gib=round(planned["peak_gib"], 1),
        peak_gib=measured.get("peak_gib"),
        reserved_gib=measured.get("reserved_gib"),
        planned_tokens_per_second=round(planned["tokens_per_second"]),
        tokens_per_second=round(speed),
        planned_mfu_percent=round(100 * planned["mfu"]),
        mfu_percent=round(100 * speed * flops / (H200.peak * 1e12), 1),
        **{f"{side}_step_ms": round(1000 * seconds, 1) for side, seconds in measured["step_seconds"].items()},
    )


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--only", default="", help="the case of one model")
    parser.add_argument("--tokens", type=int, help="of a step, in place of the case's")
    parser.add_argument("--eager", action="store_true", help="do not compile")
    parser.add_argument("--profile", action="store_true", help="say which kernels take how long, as JSON on stderr")
    parser.add_argument("--rehearse", action="store_true", help="tiny models on a CPU")
    parser.add_argument("--inside", help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case._replace(tokens=options.tokens or case.tokens) for case in CASES]
    if options.rehearse:
        cases = [case._replace(tokens=512, length=64, steps=5) for case in CASES]
        torch.set_num_threads(1)
    if options.inside:
        print(json.dumps(measure(Case(*json.loads(options.inside)), options)))
        return
    planned = [(case, Prediction.of(case, options.rehearse).figures) for case in cases if options.only in case.model]
    for case, prediction in planned:
        print(f"planned: {case.model}: {json.dumps(prediction)}", file=sys.stderr, flush=True)
    note = f"MFU is of {H200.peak:g} TFLOP/s; planned with {100 * H200.efficiency:.0f} % of it."
    results = Results("scale", options.out, note=note)
    for case, prediction in planned:
        measured = run_apart(case, options)
        print(f"measured: {case.model}: {json.dumps(measured)}", file=sys.stderr, flush=True)
        record(results, case, prediction, measured)
    results.print_table()


if __name__ == "__main__":
    main()
