"""The Reformer paper's synthetic task (Kitaev et al. 2020, table 2): how accuracy depends on the rounds of hashing.

    python -m benchmarks.duplication --out study                                             # small, two CPU cores
    python -m benchmarks.duplication --out study --length 1024 --chunk 64 --steps 150000     # the paper's size, a GPU

A sequence is 0 w 0 w, with w of random symbols from 1 to 127; the second w is predicted. A model of one layer must find
for each token the place half a sequence before it. Models are trained with 1, 2 and 4 rounds and with full attention
whose queries are its keys too, and each is evaluated with 1, 2, 4 and 8 rounds and with full attention: share of the
second half's symbols that are predicted rightly, on sequences that were not trained on.

OUT/rows.jsonl has a line for every training that is done: those are not made again, and one that was stopped goes on
from its newest checkpoint. OUT/table.md is the table.
"""

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.common import environment, table
from benchmarks.standings import rows_in
from bertree import keyed_random
from bertree.batch import Batch, PretrainingLabels
from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.files.formats import Json
from bertree.model.architecture import Architecture, Transformer
from bertree.model.network import Network, build
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.checkpoint import CheckpointFolder, restore
from bertree.train.device_setup import set_deterministic
from bertree.train.feed import Feed, StepBatches, TrainingSchedule, prefetch
from bertree.train.loop import Loop, StepResult
from bertree.train.optimizer import build_optimizer
from bertree.train.strategies import CudaGraphRecorder

FULL = "full"
TRAINED, EVALUATED = ("1", "2", "4", FULL), ("1", "2", "4", "8", FULL)
VOCABULARY = 128
# Of 1,024 tokens after 150,000 steps, in percent: trained -> evaluated with 1, 2, 4, 8 rounds and full attention.
PAPER = {
    "1": (77.9, 94.8, 99.6, 99.9, 0.8),
    "2": (86.8, 98.1, 99.9, 100.0, 0.8),
    "4": (91.9, 99.4, 99.9, 100.0, 0.8),
    FULL: (52.5, 76.9, 92.5, 94.8, 100.0),
}


def architecture(length: int, chunk: int, rounds: str, width: int, heads: int) -> Architecture:
    """Return one layer whose attention hashes so many times, or is full."""
    attention: dict[str, object] = {"attention": "causal", "shared_qk": True}
    if rounds != FULL:
        attention = {"attention": "lsh", "look_ahead": False, "hashes": int(rounds), "lsh_chunk_length": chunk}
    return Transformer().with_values(
        {
            "vocab_size": VOCABULARY,
            "layers": 1,
            "width": width,
            "ffn_width": width,
            "heads": heads,
            "max_positions": length,
            "segments": 0,
            "residual": "pre-norm",
            "residual_init": "plain",
            "pooler": False,
            "mask_transform": False,
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
        | attention
    )


def build_model(options: argparse.Namespace, rounds: str) -> Network:
    """Build the model with random weights."""
    a = architecture(options.length, options.chunk, rounds, options.width, options.heads)
    return build(a, {"mask": 0}).to(options.device)


def sequences(seed: int, name: str, number: int, count: int, length: int) -> Batch:
    """Return so many sequences 0 w 0 w, the same for the same numbers, with the second w to be predicted."""
    half = length // 2
    key = keyed_random.key(seed, number, name)
    counters = torch.arange(count * (half - 1)).numpy()
    symbols = 1 + keyed_random.uniform_below(keyed_random.bits(key, counters), VOCABULARY - 1)
    once = torch.cat([torch.zeros(count, 1, dtype=torch.int64), torch.from_numpy(symbols).view(count, half - 1)], 1)
    ids = torch.cat([once, once], 1)
    place = torch.arange(count * length)
    predicted = place[place % length > half]
    return Batch(
        ids=ids.flatten(),
        positions=place % length,
        segments=torch.zeros_like(place),
        cu_seqlens=torch.arange(0, count * length + 1, length, dtype=torch.int32),
        max_seqlen=length,
        one_segment=True,
        labels=PretrainingLabels(predicted - 1, ids.flatten()[predicted]),
    )


class DuplicationFeed(Feed):
    """The steps of a training."""

    def __init__(self, steps: int, lr: float, batch: int, length: int, seed: int) -> None:
        phase = Phase(steps=steps, max_length=length, batch_tokens=batch * length)
        schedule = ScheduleSettings(shape="linear", warmup=min(1000, max(1, steps // 10)))
        self.schedule = TrainingSchedule([phase], schedule, lr)
        self._batch, self._length, self._seed = batch, length, seed

    def __getitem__(self, number: int) -> StepBatches:
        """Return the batch of a step."""
        batch = sequences(self._seed, "train", number, self._batch, self._length)
        return StepBatches(self.schedule.updates[number], [batch], 0.0)

    def steps_from(self, first: int) -> Iterator[StepBatches]:
        """Yield the steps from `first` on."""
        return prefetch(self.__getitem__, first, len(self.schedule))


@torch.inference_mode()
def accuracy(network: Network, count: int, length: int, seed: int = 0, batch: int = 16) -> float:
    """Return the share of symbols that are predicted rightly, on sequences for evaluation."""
    device = next(network.parameters()).device
    network.eval()
    right, targets_seen = 0, 0
    for number in range(math.ceil(count / batch)):
        packed = sequences(seed, "evaluate", number, batch, length).to(device)
        positions, targets = PretrainingLabels.of(packed).predicted
        right += int((network.mask_logits(network(packed), positions).argmax(1) == targets).sum())
        targets_seen += targets.numel()
    network.train()
    return right / targets_seen


def train(options: argparse.Namespace, rounds: str, out: Path | None = None) -> Network:
    """Train a model, from its newest checkpoint if there is one."""
    torch.manual_seed(options.seed)
    network = build_model(options, rounds)
    optim = OptimSettings(lr=options.lr, betas=(0.9, 0.98), weight_decay=0.0)
    gpu = torch.device(options.device).type == "cuda"
    loop = Loop(
        network,
        pretraining_objective(mlm=1.0),
        build_optimizer(network, optim, capturable=gpu),
        clip=1.0,
        seed=options.seed,
        bf16=gpu,
        recorder=CudaGraphRecorder if gpu else None,
    )
    feed = DuplicationFeed(options.steps, options.lr, options.batch, options.length, options.seed)
    saved = CheckpointFolder(out, keep=1) if out else None
    checkpoint = saved.read_newest() if saved else None
    if checkpoint:
        restore(checkpoint, network, loop.optimizer)

    def watch(result: StepResult) -> None:
        if result.step % options.watch == 0 or result.step == options.steps:
            share = accuracy(network, 16, options.length)
            print(
                f"trained with {rounds}: step {result.step:,}, loss {result.loss:.3f}, accuracy {share:.3f}", flush=True
            )
            if saved:
                saved.save(result.step, network, loop.optimizer)

    loop.run(feed.steps_from(checkpoint.step if checkpoint else 0), (watch,))
    return network


def evaluate(options: argparse.Namespace, network: Network) -> dict[str, float]:
    """Return the accuracy of a trained model's weights with each number of rounds, and with full attention."""
    scores = {}
    for rounds in options.evaluated:
        other = build_model(options, rounds)
        other.load_state_dict(network.state_dict())
        scores[rounds] = accuracy(other, options.count, options.length)
    return scores


def parsed() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence (even)")
    parser.add_argument("--chunk", type=int, default=0, help="tokens of a chunk; 0: a sixteenth of the length")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=16, help="sequences a step")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=256, help="sequences to evaluate on")
    parser.add_argument("--trained", nargs="+", default=TRAINED, choices=TRAINED, help="rounds in training")
    parser.add_argument("--evaluated", nargs="+", default=EVALUATED, choices=EVALUATED, help="rounds in evaluation")
    parser.add_argument("--watch", type=int, default=500, help="steps between two checkpoints")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.length < 4 or options.length % 2:
        parser.error(f"--length {options.length}: must be even and 4 or more; take {max(4, options.length + 1)}")
    options.chunk = options.chunk or max(2, options.length // 16)
    return options


def summary(rows: Sequence[Json], evaluated: Sequence[str]) -> str:
    """Return the table, with the paper's figures in parentheses."""
    lines = []
    for row in sorted(rows, key=lambda row: TRAINED.index(row["trained"])):
        paper = dict(zip(EVALUATED, PAPER[row["trained"]], strict=True))
        cells = [f"{100 * row['scores'][name]:.1f} ({paper[name]:.1f})" for name in evaluated if name in row["scores"]]
        lines.append([_name(row["trained"]), *cells, f"{row['seconds']:.0f}"])
    return table(["trained with", *(_name(name) for name in evaluated), "seconds"], lines)


def _name(rounds: str) -> str:
    return "full attention" if rounds == FULL else f"{rounds} round{'s' if rounds != '1' else ''}"


def main() -> None:
    """Train and evaluate what is not done yet, then write the table."""
    options = parsed()
    set_deterministic(True)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "rows.jsonl"
    setting = {
        name: getattr(options, name) for name in ("length", "chunk", "width", "heads", "steps", "batch", "lr", "seed")
    }
    done = {row["trained"] for row in rows_in([path]) if row["setting"] == setting}
    for rounds in options.trained:
        if rounds in done:
            continue
        began = time.perf_counter()
        network = train(options, rounds, options.out / f"trained-{rounds}")
        seconds = time.perf_counter() - began
        scores = evaluate(options, network)
        row = {"trained": rounds, "setting": setting, "seconds": round(seconds, 1), "scores": scores}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row | {"where": environment()}) + "\n")
    rows = [row for row in rows_in([path]) if row["setting"] == setting]
    what = f"{options.length} tokens, chunks of {options.chunk}, {options.steps:,} steps of {options.batch} sequences"
    text = f"{rows[-1]['where']}; {what}; accuracy in percent (the paper's, of 1,024 tokens, in parentheses)\n\n"
    text += summary(rows, options.evaluated) + "\n"
    (options.out / "table.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
