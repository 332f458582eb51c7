"""A toy member with a state: a GRU over lanes of text, trained on the next token through Loop and Session."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.config.sections import OptimSettings, Phase, RunSettings, ScheduleSettings
from bertree.config.settings import as_toml
from bertree.data.lane_stream import LaneStream
from bertree.data.store import Store
from bertree.model.encoder import Encoder, EncoderOutput, State, StateSpec
from bertree.model.heads import MaskHead
from bertree.model.layers.embeddings import Embeddings, TokenEmbeddings
from bertree.model.network import Network
from bertree.objectives.pretraining import pretraining_objective
from bertree.pretraining.recipe import Recipe
from bertree.train.feed import StreamFeed, TrainingSchedule
from bertree.train.held_out import evaluate_held_out
from bertree.train.keep import KeepNewestAndBest
from bertree.train.loop import Loop, StepResult
from bertree.train.optimizer import build_optimizer
from bertree.train.session import Session
from tests.support.memory_store import memory_store

VOCAB, WIDTH, FIRST, STEPS = 40, 16, 12, 20
SPECIAL = {"pad": 0, "unk": 1, "cls": 2, "sep": 3, "mask": 4}


class GruEncoder(Encoder):
    """A GRU that keeps a hidden vector, and counts what it has read, for each lane."""

    def __init__(self, dropout: float) -> None:
        tokens = TokenEmbeddings(VOCAB, WIDTH)
        nothing_else = dict.fromkeys(("positions", "segments", "norm", "projection"))
        super().__init__(Embeddings(tokens=tokens, dropout=dropout, **nothing_else), WIDTH, 1)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def state_specs(self, lanes: int) -> dict[str, StateSpec]:
        """A vector and a count for each lane."""
        return {"hidden": StateSpec((lanes, WIDTH), torch.float32), "read": StateSpec((lanes,), torch.int64)}

    def encode(self, batch: Batch, state: State | None = None) -> EncoderOutput:
        """Read every sequence, from the state of its lane or from nothing."""
        continuation = batch.continuation
        assert continuation is not None
        nothing = torch.zeros(WIDTH, device=batch.ids.device)
        last: list[Tensor] = list(state["hidden"].unbind() if state else [nothing] * continuation.count)
        read = state["read"].clone() if state else torch.zeros_like(continuation.lanes[: continuation.count])
        outputs = []
        sequences = batch.split(self.embeddings(batch))
        rows = zip(sequences, continuation.lanes.tolist(), continuation.fresh.tolist(), strict=True)
        for embedded, lane, fresh in rows:
            start = nothing if fresh else last[lane]
            output, after = self.gru(embedded[None], start[None, None])
            outputs.append(output[0])
            last[lane] = after[0, 0]
            read[lane] = (0 if fresh else read[lane]) + len(embedded)
        return EncoderOutput(torch.cat(outputs), {"hidden": torch.stack(last), "read": read})

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """The embeddings and the outputs."""
        yield self.embeddings(batch)
        yield self(batch)

    def forward(self, batch: Batch) -> Tensor:
        """Read a batch from nothing."""
        return self.encode(batch).hidden


def make_network(dropout: float = 0.1) -> Network:
    """The toy with a head that predicts the next token."""
    torch.manual_seed(0)
    return Network(GruEncoder(dropout), {"mask": MaskHead(WIDTH, WIDTH, VOCAB, activation="gelu", norm_eps=1e-5)})


def make_store(seed: int = 0, documents: int = 40) -> Store:
    """Text in which the first token of a document decides about all others, so that a memory helps."""
    draw = np.random.default_rng(seed)
    texts = []
    for _ in range(documents):
        topic = int(draw.integers(5, 9))
        words = 9 + (topic - 5) * 7 + draw.integers(0, 7, int(draw.integers(20, 60)))
        texts.append([[topic, *words.tolist()]])
    return memory_store(texts, vocab_size=VOCAB, special=SPECIAL)


def make_feed(store: Store, micro: int = 2, lanes: int = 4, length: int = 16, documents: bool = False) -> StreamFeed:
    """Two phases of different lengths; some steps read two batches."""
    phases = [Phase(FIRST, length, 64), Phase(STEPS - FIRST, length // 2, 32)]
    schedule = TrainingSchedule(phases, ScheduleSettings(warmup=2, growth=2), 1e-2)
    streams = [
        [
            LaneStream(store, lanes=lanes, length=phase.max_length, documents=documents, rank=rank, world=micro)
            for rank in range(micro)
        ]
        for phase in phases
    ]
    return StreamFeed(schedule, streams)


def make_loop(dropout: float = 0.1, device: str = "cpu") -> Loop:
    """The loop that trains it."""
    network = make_network(dropout).to(device)
    return Loop(network, pretraining_objective(mlm=1.0), build_optimizer(network, OptimSettings(lr=1e-2)), clip=1.0)


def train(out: Path, resume: bool = False, signal_at: int = 0, number: int = signal.SIGKILL) -> int | None:
    """Train in a folder; at the step `signal_at` the process sends itself a signal."""
    torch.set_num_threads(1)
    store, held = make_store(), make_store(1, 8)
    feed, loop = make_feed(store), make_loop()
    measured = LaneStream(held, lanes=2, length=16)

    def evaluate(result: StepResult) -> dict[str, float]:
        if result.step == signal_at:
            os.kill(os.getpid(), number)
        return evaluate_held_out(loop.network, pretraining_objective(mlm=1.0), measured, 10**6, loop.autocast)

    def write_model(name: str) -> None:
        (out / name).mkdir()
        save_file(dict(loop.network.state_dict()), out / name / "model.safetensors")

    out.mkdir(exist_ok=True)
    settings = RunSettings(device="cpu", log_every=1, eval_every=1, save_every=3)
    keep = KeepNewestAndBest(
        out=out,
        loop=loop,
        checkpoints=2,
        eval_every=1,
        evaluate=evaluate,
        samples=list,
        write_model=write_model,
    )
    identity = {"text": store.fingerprint} | feed.streams[0][0].identity
    return Session(
        out=out, recipe=as_toml(Recipe()), loop=loop, feed=feed, settings=settings, identity=identity, keep=keep
    ).run(resume, [])
