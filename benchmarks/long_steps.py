"""Time and memory of a training step against the length of sequences, with the options for long texts.

    python -m benchmarks.long_steps --device cuda                              # at a constant 65,536 tokens per step
    python -m benchmarks.long_steps --device cuda --sides exact all --layers 12 --longest   # one sequence, ever longer
    python -m benchmarks.long_steps --layers 2 --width 64 --heads 2 --tokens 1024 --lengths 256 1024

The model is the same but for the options: `exact` attention (flash attention on a GPU), LSH with 1, 2 or 4 rounds and
chunks of 64, reversible layers, feed-forward in chunks, axial positions, or `all` of them with 2 rounds. `reversible`
is LSH with 2 rounds and reversible layers, as in transformers' Reformer; `transformers` is that one. A step is forward,
backward and AdamW, on a GPU in bf16 autocast (transformers: bf16 weights, which is faster). A side whose step does not
fit into memory gets half of the tokens, and so on; its time is scaled to all of them. transformers is never compiled.

--longest takes one sequence per step and doubles its length from --lengths on, until memory runs out or a step takes
longer than --step-seconds.
"""

import argparse
import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.common import Results, argument_parser, synchronize
from bertree.batch import Batch
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.presets import preset

LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
LSH = {"attention": "lsh", "look_ahead": False}
SIDES: dict[str, dict[str, Any]] = {
    "exact": {},
    "lsh-1": LSH | {"hashes": 1},
    "lsh-2": LSH | {"hashes": 2},
    "lsh-4": LSH | {"hashes": 4},
    "reversible": LSH | {"hashes": 2, "residual": "reversible"},
    "transformers": {},
    "exact, reversible": {"residual": "reversible"},
    "exact, ffn_chunk": {"ffn_chunk": 8192},
    "exact, axial": {"positions": "axial"},
    "all": LSH | {"hashes": 2, "residual": "reversible", "ffn_chunk": 8192, "positions": "axial"},
}
COMPARED = list(SIDES)[:6]
BYTES = 258  # the vocabulary of Reformer's model of enwik8


class Size(NamedTuple):
    """A model's size."""

    layers: int
    width: int
    heads: int


def architecture(size: Size, length: int, options: dict[str, Any]) -> Architecture:
    """Return a causal model without dropout for sequences of a length; `options`: other axes."""
    values: dict[str, Any] = {
        "layers": size.layers,
        "width": size.width,
        "embedding_width": size.width,
        "ffn_width": 4 * size.width,
        "heads": size.heads,
        "vocab_size": BYTES,
        "max_positions": length,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "tied_output": options.get("residual") != "reversible",  # its states are two streams wide
    }
    return preset("gpt2").architecture.with_values(values | options)


def axial(length: int) -> dict[str, Any]:
    """Return axial positions for sequences of a length: nearly square."""
    columns = 1 << ((length - 1).bit_length() // 2)
    return {"positions": "axial", "axial_shape": f"{-(-length // columns)},{columns}"}


def is_oom(error: RuntimeError) -> bool:
    """Return whether memory ran out."""
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error).lower()


class Ours:
    """A training step: next tokens, bf16 autocast on a GPU, AdamW."""

    def __init__(self, a: Architecture, length: int, sequences: int, device: str, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.network = build(a, {"mask": 0}).to(device).train()
        self.optimizer = torch.optim.AdamW(self.network.parameters(), fused=True)
        self.device = device
        ids_sl = torch.randint(BYTES, (sequences, length)).tolist()
        self.batch = Batch.pack(ids_sl).to(device)
        self.masked = torch.arange(sequences * length, device=device)
        self.targets = self.batch.ids.roll(-1)
        self.loss: Callable[[], Tensor] = torch.compile(self._loss) if compiled else self._loss
        for parameter in self.network.parameters():  # the optimizer's state is there from the first step on
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _loss(self) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.network.mask_loss(self.network(self.batch), self.masked, self.targets)
        return loss / len(self.masked)

    def step(self) -> None:
        """Take a step."""
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Theirs:
    """The same with transformers' Reformer: LSH attention in every layer, reversible, learned positions.

    On a GPU its weights are bf16: autocast does not reach the states that its backward pass computes again.
    """

    def __init__(self, size: Size, length: int, sequences: int, device: str, rounds: int) -> None:
        from transformers import ReformerConfig, ReformerModelWithLMHead

        torch.manual_seed(0)
        config = ReformerConfig(
            attn_layers=["lsh"] * size.layers,
            hidden_size=size.width,
            num_attention_heads=size.heads,
            attention_head_size=size.width // size.heads,
            feed_forward_size=4 * size.width,
            hidden_act="gelu_new",
            vocab_size=BYTES,
            max_position_embeddings=length,
            axial_pos_embds=False,
            is_decoder=True,
            num_hashes=rounds,
            num_buckets=None,
            lsh_attn_chunk_length=64,
            hidden_dropout_prob=0.0,
            lsh_attention_probs_dropout_prob=0.0,
            tie_word_embeddings=False,
        )
        self.model: nn.Module = ReformerModelWithLMHead(config).to(device).train()
        if device == "cuda":
            self.model.to(torch.bfloat16)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), fused=True)
        self.ids = torch.randint(BYTES, (sequences, length), device=device)

    def step(self) -> None:
        """Take a step."""
        self.model(input_ids=self.ids, labels=self.ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Measured(NamedTuple):
    """Seconds of a step, and the peak of the GPU's memory in bytes."""

    seconds: float
    peak: int


def measure(make: Callable[[], Ours | Theirs], steps: int, warm: int) -> Measured | None:
    """Return the median step after the first `warm`, or None if memory runs out."""
    side: Ours | Theirs | None = None
    times = []
    release()
    try:
        side = make()
        for number in range(warm + steps):
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            synchronize()
            begin = time.perf_counter()
            side.step()
            synchronize()
            if number >= warm:
                times.append(time.perf_counter() - begin)
    except RuntimeError as error:
        if not is_oom(error):
            raise
        return None
    finally:
        del side
        torch._dynamo.reset()
    peak = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return Measured(sorted(times)[len(times) // 2], peak)


def release() -> None:
    """Give back the memory of what was measured before."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure_side(side: str, size: Size, length: int, sequences: int, options: argparse.Namespace) -> Measured | None:
    """Return a step of a side, or None if memory runs out."""
    if side == "transformers":
        return measure(lambda: Theirs(size, length, sequences, options.device, rounds=2), options.steps, options.warm)
    axes = SIDES[side] | (axial(length) if SIDES[side].get("positions") == "axial" else {})
    a = architecture(size, length, axes)
    return measure(lambda: Ours(a, length, sequences, options.device, options.compile), options.steps, options.warm)


def compare(size: Size, options: argparse.Namespace) -> None:
    """Measure all sides at a constant number of tokens per step."""
    results = Results("long-steps-compiled" if options.compile else "long-steps", options.out, ["transformers"])
    for length in options.lengths:
        figures: dict[str, float | str | None] = {"length": length}
        for side in options.sides:
            sequences, divisor = max(1, options.tokens // length), 1
            while (step := measure_side(side, size, length, sequences, options)) is None and sequences > 1:
                sequences, divisor = sequences // 2, divisor * 2
            key = side.replace("-", "_")
            if step is not None:
                figures[f"{key}_ms"] = round(1000 * step.seconds * divisor, 1)
                figures[f"{key}_peak_gb"] = round(step.peak / 1e9, 1) if step.peak else None
        results.add(f"{length:,}", **figures)
    results.print_table()


def find_longest(size: Size, options: argparse.Namespace) -> None:
    """Double the length of one sequence until memory runs out or a step is too slow."""
    results = Results("longest", options.out)
    for side in options.sides:
        length, longest, reason = options.lengths[0], 0, "out of memory"
        last = Measured(0.0, 0)
        while step := measure_side(side, size, length, 1, options):
            longest, last, length = length, step, 2 * length
            if step.seconds > options.step_seconds:
                reason = f"a step takes more than {options.step_seconds:g} s"
                break
        peak = round(last.peak / 2**30, 1) if last.peak else None
        seconds = round(last.seconds, 2)
        results.add(side, longest_tokens=longest, step_seconds=seconds, peak_gib=peak, stopped_by=reason)
    results.print_table()


def main() -> None:
    """Measure."""
    parser = argument_parser(__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--sides", nargs="+", default=COMPARED, choices=list(SIDES))
    parser.add_argument("--longest", action="store_true", help="one sequence per step, ever longer")
    parser.add_argument("--step-seconds", type=float, default=4, help="--longest ends at a step that takes longer")
    parser.add_argument("--tokens", type=int, default=65536, help="of a step")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm", type=int, default=2, help="steps that are not counted")
    parser.add_argument("--compile", action="store_true", help="compile our sides: a minute for each of them")
    options = parser.parse_args()
    size = Size(options.layers, options.width, options.heads)
    find_longest(size, options) if options.longest else compare(size, options)


if __name__ == "__main__":
    main()
