"""Causal models of long sequences and their training steps, for `benchmarks.long_steps` and `benchmarks.longest`."""

import gc
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.common import synchronize
from bertree.batch import Batch
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.presets import preset

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
