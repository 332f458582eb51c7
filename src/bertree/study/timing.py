"""Time in a study: training steps, a pass over texts, and the comparison of all pairs. Medians of several rounds.

Such a step runs alone (`definition.ALONE`). A pass begins with the texts, so tokenizing is part of it, and ends with
the states of the last layer: with a head of two classes it would take as long.
"""

import random
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bertree.config.overrides import parse
from bertree.embeddings.mining import closest_pairs
from bertree.embeddings.word_vectors import WordVectors, words_of
from bertree.errors import UserError
from bertree.finetuning.scored import read_scored
from bertree.inference.causal.texts import read_texts
from bertree.inference.load import make_model
from bertree.inference.model import Model
from bertree.interop.contents import Contents
from bertree.interop.padded import PaddedModel
from bertree.pretraining import recipe as recipes
from bertree.pretraining.pretrain import pretrain
from bertree.study.planned import PlannedStep
from bertree.tasks.registry import make_task
from bertree.tasks.task import Task
from bertree.text.tokenizer import Encoded

BATCH = 32  # texts that are read together where they are not packed by length
WARM_UP_STEPS = 3  # training steps that are not counted
PLAIN = (".raw", ".tokens")  # endings of plain text that only WikiText has
PAIRS = 100  # the most similar ones, which are looked for


def time_step(planned: PlannedStep, model: Model | None, out: Path) -> dict[str, float]:
    """Return the figures of a step `time`."""
    step = planned.step
    if step.measure == "training":
        return _time_training(planned, out)
    if step.measure == "perplexity":
        assert model is not None
        return _time_perplexity(planned, model)
    task = make_task(step.task) if step.task else None
    texts: Sequence[Any] = _texts(planned, task)
    if planned.glove is not None:
        texts = [text if isinstance(text, str) else f"{text.text} {text.pair or ''}" for text in texts]
        vectors = WordVectors.read(planned.glove, words_of(texts))
        seconds = _median(lambda: vectors.embed(texts), step.rounds)
        return {"seconds": seconds, "texts": float(len(texts)), "texts_per_s": len(texts) / seconds}
    assert model is not None
    if step.device:
        model.to(step.device)
    reader = TextReader(model, task, step.reading, step.sort)
    reader.read(texts[: 2 * BATCH])  # warms up
    seconds = _median(lambda: reader.read(texts), step.rounds)
    return {
        "seconds": seconds,
        "texts": float(len(texts)),
        "texts_per_s": len(texts) / seconds,
        "tokens_per_s": reader.tokens / seconds,
        "million_parameters": sum(weight.numel() for weight in model.network.parameters()) / 1e6,
        "rounds": float(step.rounds),
    }


def _texts(planned: PlannedStep, task: Task[Any] | None) -> list[Any]:
    """Return the texts of a file or the examples of a task's dev split."""
    step = planned.step
    if task is not None:
        splits = read_scored(task, planned.data[0], step.split or None, [])
        texts = [example for part in splits for example in part.examples]
    else:
        texts = read_texts(planned.data[0], lines=True)
    return texts[: step.texts] if step.texts else texts


def _median(work: Callable[[], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return median(seconds)


class TextReader:
    """Reads texts with a model: one by one, packed without padding, or in padded batches; by length or in their order.

    Packed texts that are sorted are read as everywhere in bertree: in batches of similar length.
    """

    def __init__(self, model: Model, task: Task[Any] | None, reading: str, sort: bool) -> None:
        self._model, self._task, self._reading, self._sort = model, task, reading, sort
        contents = Contents(model.architecture, model.network, model.tokenizer, max_length=model.limit)
        self._plain = make_model(contents)
        self._padded = PaddedModel(contents) if reading == "padded" else None
        usual = (model.task_length or task.max_length) if task else 0
        self._longest = model.sequence_length(usual=usual)
        self.tokens = 0  # of the last pass

    def read(self, texts: Sequence[Any]) -> None:
        """Read all texts."""
        if self._reading == "one":
            self.tokens = 0
            for text in texts:
                encoded = self._encode([text])
                self._plain.hidden([sequence.ids for sequence in encoded])
                self.tokens += sum(len(sequence.ids) for sequence in encoded)
            return
        encoded = self._encode(texts)
        self.tokens = sum(len(sequence.ids) for sequence in encoded)
        if self._reading == "packed" and self._sort:
            self._plain.hidden([sequence.ids for sequence in encoded])
            return
        if self._sort:
            encoded = sorted(encoded, key=lambda sequence: len(sequence.ids), reverse=True)
        for start in range(0, len(encoded), BATCH):
            batch = encoded[start : start + BATCH]
            if self._padded is None:
                self._plain.hidden([sequence.ids for sequence in batch])
            else:
                self._run_padded(self._padded, batch)

    def _encode(self, texts: Sequence[Any]) -> list[Encoded]:
        tokenizer = self._model.required_tokenizer
        if self._task is None:
            return list(tokenizer.encode_batch(texts, self._longest))
        units, _ = self._task.units(texts, tokenizer, self._longest)
        return [sequence for unit in units for sequence in unit.sequences]

    @torch.no_grad()
    def _run_padded(self, padded: PaddedModel, batch: Sequence[Encoded]) -> None:
        longest = max(len(sequence.ids) for sequence in batch)
        ids_bl = torch.zeros(len(batch), longest, dtype=torch.int64)
        mask_bl, segments_bl = torch.zeros_like(ids_bl), torch.zeros_like(ids_bl)
        for row, sequence in enumerate(batch):
            ids_bl[row, : len(sequence.ids)] = torch.tensor(sequence.ids)
            mask_bl[row, : len(sequence.ids)] = 1
            if sequence.segments is not None:
                segments_bl[row, : len(sequence.ids)] = torch.tensor(sequence.segments)
        inputs = [ids_bl, mask_bl, segments_bl][: len(padded.names)]
        padded(*(tensor.to(self._model.device) for tensor in inputs))


def _time_training(planned: PlannedStep, out: Path) -> dict[str, float]:
    """Train some steps of the recipe's longest phase; the first ones are not counted."""
    recipe = recipes.load(planned.recipe, planned.settings)
    phase = max(recipe.phases, key=lambda phase: phase.steps * phase.batch_tokens)
    steps = WARM_UP_STEPS + planned.step.rounds
    overrides = [
        *planned.settings,
        f"phases=[{{steps={steps}, max_length={phase.max_length}, batch_tokens={phase.batch_tokens}}}]",
        *("schedule.warmup=0", "run.minutes=0.0", "run.log_every=1", f"run.eval_every={steps + 1}"),
        *([f"run.device={device}"] if (device := planned.step.device or planned.device) else []),
    ]
    shutil.rmtree(out, ignore_errors=True)
    run = pretrain(planned.recipe, store=planned.store, out=out, overrides=overrides)
    rows = [row for row in run.history if row.get("kind") == "train"][WARM_UP_STEPS:]
    speed = median(row["tokens_per_s"] for row in rows)
    shutil.rmtree(out, ignore_errors=True)
    return {"tokens_per_s": speed, "seconds_per_step": phase.batch_tokens / speed, "rounds": float(len(rows))}


def _time_perplexity(planned: PlannedStep, model: Model) -> dict[str, float]:
    options = {override.key: override.value for override in map(parse, planned.settings)}
    texts = read_documents(planned.data[0], bool(options.pop("lines", False)))
    speeds = []
    for _ in range(planned.step.rounds):
        result = model.perplexity(texts, **options)
        speeds.append((result.seconds, result.speed))
    seconds, speed = (median(values) for values in zip(*speeds, strict=True))
    return {"seconds": seconds, "tokens_per_s": speed, "perplexity": result.perplexity}


def read_documents(path: Path, lines: bool) -> list[str]:
    """Return the texts of a file; WikiText's endings are plain text too."""
    return read_texts(path, lines=lines, format="text" if path.suffix in PLAIN else None)


def time_pairs(planned: PlannedStep, model: Model) -> dict[str, float]:
    """Return the time to compare all pairs of texts: by vectors measured, by a cross-encoder extrapolated."""
    step = planned.step
    if step.device:
        model.to(step.device)
    texts = list(dict.fromkeys(_texts(planned, None)))
    total = len(texts) * (len(texts) - 1) // 2
    if total < 1:
        raise UserError(f"{planned.data[0]}: holds fewer than two different texts")
    if step.cross:
        timed = min(step.timed, total)
        draw = random.Random(planned.seed)
        pairs = [tuple(draw.sample(texts, 2)) for _ in range(timed)]
        model.predict(pairs[:BATCH])
        seconds = total * _median(lambda: model.predict(pairs), 1) / timed
    else:
        timed = total
        seconds = _median(lambda: closest_pairs(model.embed(texts), PAIRS, 0.0), 1)
    figures = {"seconds": seconds, "hours": seconds / 3600, "texts": float(len(texts))}
    return figures | {"pairs": float(total), "timed_pairs": float(timed)}
