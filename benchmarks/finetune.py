"""Fine-tuning: scores and time of bertree and of transformers from the same weights, over several seeds, in one run.

    python -m benchmarks.finetune --model FOLDER --data ROOT --tasks sst-2 mrpc rte --seeds 3 --out rows.jsonl

Both sides get the same weights, the same tokens (bertree's: the tests show that they are transformers'), the same
batch size, rate, schedule, weight decay, clipping and epochs, dropout 0.1 and attention dropout 0; heads are drawn
and batches shuffled by each side's own generator. Both are measured on the dev split after every epoch by the same
code, and the best epoch counts. Theirs is a plain loop around `AutoModelFor...`, batches padded to their longest
sequence and made ahead by a thread, fused AdamW; on a GPU both are in bf16 autocast, theirs with whatever algorithms
are fastest, ours deterministic. Time is wall-clock from the first step to the last evaluation, everything
included: recording and the run's files on our side. Tokenising is left out on both.
"""

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import Figure, Results, argument_parser, synchronize
from bertree.finetuning.config import FineTuneConfig, FineTuneOptimSettings, FineTuneRunSettings, TrainSettings
from bertree.finetuning.evaluate import EncodedSplit
from bertree.finetuning.feed import steps_per_epoch
from bertree.finetuning.tuner import FineTuning, InitialModel
from bertree.inference.load import load
from bertree.tasks.batches import batches_by_length
from bertree.tasks.registry import make_task
from bertree.tasks.task import Logits, Task, Unit
from bertree.train.device_setup import DeviceSetup, set_deterministic
from bertree.train.feed import StepBatches, prefetch

# folder under the root, rate, epochs, tokens a sequence
TASKS = {
    "rte": ("glue/RTE", 1e-4, 3, 256),
    "mrpc": ("glue/MRPC", 1e-4, 3, 128),
    "sts-b": ("glue/STS-B", 1e-4, 3, 128),
    "cola": ("glue/CoLA", 1e-4, 3, 64),
    "ner": ("conll2003", 1e-4, 2, 128),
    "squad": ("squad", 1e-4, 2, 384),
    "sst-2": ("glue/SST-2", 5e-5, 1, 128),
}
CLASSES = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
}


def padded(units: Sequence[Unit], head: str, regression: bool) -> dict[str, torch.Tensor]:
    """The batch transformers reads."""
    longest = max(len(unit.sequences[0].ids) for unit in units)
    shape = len(units), longest
    ids, kinds, mask = (torch.zeros(shape, dtype=torch.int64) for _ in range(3))
    labels = torch.full(shape, -100)
    for row, unit in enumerate(units):
        (sequence,) = unit.sequences
        size = len(sequence.ids)
        ids[row, :size] = torch.tensor(sequence.ids)
        mask[row, :size] = 1
        if sequence.segments is not None:
            kinds[row, :size] = torch.tensor(sequence.segments)
        if head == "token":
            labels[row, torch.tensor(unit.chosen)] = torch.tensor(unit.answer)
    batch = {"input_ids": ids, "token_type_ids": kinds, "attention_mask": mask}
    if head == "token":
        return batch | {"labels": labels}
    if head == "span":
        places = torch.tensor([[unit.chosen[i] for i in unit.answer] for unit in units])  # type: ignore[index]
        return batch | {"start_positions": places[:, 0], "end_positions": places[:, 1]}
    kind = torch.float32 if regression else torch.int64
    return batch | {"labels": torch.tensor([unit.answer for unit in units], dtype=kind)}


def their_logits(model: Any, units: Sequence[Unit], head: str, device: str, autocast: Any) -> list[Logits]:
    """As bertree's `logits`, from transformers' model: batches of similar lengths."""
    logits: dict[int, Logits] = {}
    model.eval()
    with torch.no_grad():
        for rows in batches_by_length(units, 65536 if device == "cuda" else 4096):
            batch_units = [units[row] for row in rows]
            batch = padded([u._replace(answer=_none(u, head)) for u in batch_units], head, False)
            inputs = {k: batch[k].to(device) for k in ("input_ids", "token_type_ids", "attention_mask")}
            with autocast():
                out = model(**inputs)
            scores = torch.stack([out.start_logits, out.end_logits], -1) if head == "span" else out.logits
            for place, (row, unit) in enumerate(zip(rows, batch_units, strict=True)):
                chosen = scores[place][None] if head == "sequence" else scores[place, torch.tensor(unit.chosen)]
                logits[row] = chosen.float().cpu().numpy()
    model.train()
    return [logits[row] for row in range(len(units))]


def _none(unit: Unit, head: str) -> Any:
    return (0, 0) if head == "span" else [-100] * len(unit.chosen or ()) if head == "token" else 0


def theirs(
    model: str,
    task: Task[Any],
    train: EncodedSplit[Any],
    dev: EncodedSplit[Any],
    config: FineTuneConfig,
    seed: int,
    device: str,
) -> tuple[float, float]:
    """Best score and seconds of transformers."""
    import transformers

    torch.use_deterministic_algorithms(False)
    torch.manual_seed(seed)
    labels: dict[str, Any] = {} if task.head == "span" else {"num_labels": task.classes}
    if task.regression:
        labels["problem_type"] = "regression"
    transformers.logging.set_verbosity_error()
    network = getattr(transformers, CLASSES[task.head]).from_pretrained(
        model, attention_probs_dropout_prob=0.0, **labels
    )
    network.to(device).train()
    decayed = [p for p in network.parameters() if p.ndim >= 2]
    others = [p for p in network.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}],
        lr=config.optim.lr,
        eps=config.optim.eps,
        fused=True,
    )
    size, epochs = config.train.batch, int(config.train.epochs)
    epoch = steps_per_epoch(len(train.units), size)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, int(0.1 * epoch * epochs), epoch * epochs)

    def autocast() -> Any:
        return torch.autocast("cuda", torch.bfloat16) if device == "cuda" else contextlib.nullcontext()

    orders = [np.random.default_rng((seed, number)).permutation(len(train.units)) for number in range(epochs)]

    def prepared(step: int) -> StepBatches:
        rows = orders[step // epoch][step % epoch * size :][:size]
        batch = padded([train.units[row] for row in rows], task.head, task.regression)
        return {key: t.pin_memory() if device == "cuda" else t for key, t in batch.items()}  # type: ignore[return-value]

    best = -1.0
    synchronize()
    began = time.perf_counter()
    steps: Iterator[Any] = prefetch(prepared, 0, epoch * epochs)
    for step, batch in enumerate(steps, 1):
        with autocast():
            loss = network(**{key: value.to(device, non_blocking=True) for key, value in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % epoch == 0:
            logits = their_logits(network, dev.units, task.head, device, autocast)
            predictions = task.predict(dev.examples, dev.units, logits)
            best = max(best, task.score(dev.examples, predictions)[task.metric])
    synchronize()
    return best, time.perf_counter() - began


def ours(tuner: FineTuning, seed: int) -> tuple[float, float]:
    """Best score and seconds of bertree."""
    set_deterministic(True)
    with tempfile.TemporaryDirectory() as place, contextlib.redirect_stdout(None):
        synchronize()
        began = time.perf_counter()
        trained = tuner.run(Path(place), seed, False, [])
        synchronize()
        return trained.best_score, time.perf_counter() - began


def prepared(name: str, model: str, root: Path, device: str, limit: int, epochs_instead: int = 0) -> FineTuning:
    """A task's splits as both sides read them, and how they are trained on."""
    folder, rate, epochs, longest = TASKS[name]
    task = make_task(name)
    start = load(model)
    assert start.tokenizer is not None
    paths = task.splits(root / folder)
    examples = task.read(paths["train"])
    task = task.with_labels(task.labels_in(examples))
    dev_examples = task.read(paths["dev"])
    if limit:
        examples, dev_examples = examples[:limit], dev_examples[: limit // 4]
    train, dev = (
        EncodedSplit(split_examples, task.units(split_examples, start.tokenizer, longest)[0])
        for split_examples in (examples, dev_examples)
    )
    config = FineTuneConfig(
        train=TrainSettings(epochs=epochs_instead or epochs, batch=32, max_length=longest, patience=0),
        optim=FineTuneOptimSettings(lr=rate, eps=1e-8),
        run=FineTuneRunSettings(log_every=50, device=device),
    )
    return FineTuning(
        task=task,
        initial=InitialModel(architecture=start.architecture, network=start.network, labels=()),
        train=train,
        dev=dev,
        config=config,
        device_setup=DeviceSetup.from_settings(config.run),
        identity=name,
    )


def main() -> None:
    """Run the tasks and write the table."""
    parser = argument_parser(__doc__)
    parser.add_argument("--model", required=True, help="a BERT folder in Hugging Face's layout")
    parser.add_argument("--data", type=Path, required=True, help="folder with glue/, squad/, conll2003/")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--limit", type=int, default=0, help="first so many training examples, a quarter as many of dev"
    )
    parser.add_argument("--epochs", type=int, default=0, help="in place of the task's own")
    options = parser.parse_args()
    results = Results(f"finetune/{options.device}", options.out, ["transformers", "tokenizers"])
    for name in options.tasks:
        tuner = prepared(name, options.model, options.data, options.device, options.limit, options.epochs)
        runs: dict[str, list[tuple[float, float]]] = {"bertree": [], "transformers": []}
        for seed in range(options.seeds):
            runs["bertree"].append(ours(tuner, seed))
            runs["transformers"].append(
                theirs(options.model, tuner.task, tuner.train, tuner.dev, tuner.config, seed, options.device)
            )
            print(name, seed, {side: values[-1] for side, values in runs.items()}, flush=True)
        results.add(name, **figures(tuner, runs))
    results.print_table()


def figures(tuner: FineTuning, runs: dict[str, list[tuple[float, float]]]) -> dict[str, Figure]:
    """Return mean and deviation of the scores, and the median seconds, of both sides."""
    scores = {side: [100 * score for score, _ in values] for side, values in runs.items()}
    seconds = {side: statistics.median(time for _, time in values) for side, values in runs.items()}
    row: dict[str, Figure] = {
        "epochs": tuner.config.train.epochs,
        "metric": tuner.task.metric,
        "train_examples": len(tuner.train.examples),
        "dev_examples": len(tuner.dev.examples),
        "times_transformers": round(seconds["transformers"] / seconds["bertree"], 2),
    }
    for side, prefix in (("bertree", ""), ("transformers", "transformers_")):
        row[f"{prefix}score_percent"] = round(statistics.mean(scores[side]), 1)
        if len(scores[side]) > 1:
            row[f"{prefix}score_percent_deviation"] = round(statistics.stdev(scores[side]), 1)
        row[f"{prefix}seconds"] = round(seconds[side], 1)
    return row


if __name__ == "__main__":
    main()
