"""A fine-tuned teacher of a task: whether it fits the task, the order of its classes, its scores, their temperature.

The scores of the training units are computed once for all seeds and resumes, and saved in the run's folder: one
safetensors file with an identity in its header. A file with another identity or a damaged one is not used; the scores
are computed again.

Teacher and student may have different tokenizers if the head scores whole texts (sequence, choice): each reads its own
tokens, and the scores are matched by example. If the head scores tokens, both must read the same tokens.

The report shows what a temperature does to the teacher's answers on the dev split: distributions, entropy, calibration.
An answer is a softmax over the classes of a text or of a word, over the options of a question, or over the tokens of a
passage (start and end): whatever the head's scores compete in. A number has no distribution.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from bertree.config.names import resolve_model_path
from bertree.console import note
from bertree.errors import UserError
from bertree.files.atomic import write_atomically
from bertree.files.formats import Json
from bertree.finetuning.evaluate import EncodedSplit
from bertree.inference.load import load
from bertree.inference.model import Model
from bertree.interop.weights import weights_hash
from bertree.objectives.supervised import HEAD_KINDS
from bertree.report.calibration import calibrate
from bertree.report.history import Floats
from bertree.report.temperature import SoftenedExample, TemperatureEffect
from bertree.tasks.batches import Autocast, logits
from bertree.tasks.metrics import softmax
from bertree.tasks.registry import NAMELESS, with_model_layout
from bertree.tasks.task import INPUT_FIELDS, Logits, Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Tokenizer

SCORES_FILE = "teacher.safetensors"
ROWS, ABOUT = "scores", "about"  # one key in the header: of several, the library does not keep the order
TEMPERATURES = tuple(round(2 ** (step / 4), 3) for step in range(-12, 17))  # from 1/8 to 16
NUMBERS = 4_000_000  # most logits that are used
EXAMPLES, CLASSES = 6, 5  # that are shown
ROOM = 240  # characters of a text


@dataclass(frozen=True)
class Teacher:
    """A model that was fine-tuned for a task, with the names of its classes."""

    name: str
    model: Model
    labels: tuple[str, ...]

    @classmethod
    def load(cls, name: str, task: Task[Any]) -> "Teacher":
        """Load a teacher; refuse a model that was not fine-tuned for such a task."""
        if not resolve_model_path(name).is_dir():
            raise UserError(f"{name}: no such folder; a teacher is the folder of a run of bertree finetune, or a model")
        model = load(name)
        if "beam-span" in model.classes and task.head == "span":
            raise UserError(
                f"{name}: scores the end of an answer given its start (head=beam), so it has no score for each end; "
                "teach with a model that was fine-tuned with head=span"
            )
        do = f"fine-tune it first (bertree finetune, `task={task.name}`)"
        if task.head not in model.classes:
            raise UserError(f"{name}: has no '{task.head}' head, so it cannot teach {task.name}; {do}")
        if model.network.crf is not None:
            raise UserError(
                f"{name}: has a CRF, which scores whole sequences of tags and not single ones; "
                "teach with a model that was fine-tuned without one (crf=false)"
            )
        if model.tokenizer is None:
            raise UserError(f"{name}: has no tokenizer, so it cannot read the task's texts; put its files there")
        try:
            return cls(name, model, model.find_task(task.name).labels)
        except UserError as error:
            raise UserError(f"{name}: {error}; {do}") from None

    def labels_for(self, task: Task[Any], examples: Sequence[Any]) -> Sequence[str]:
        """Return the task's labels: those of the training examples or, if some are missing there, the teacher's."""
        try:
            labels = task.labels_in(examples)
        except UserError:  # no labels, or only one: the teacher knows the classes
            return task.labels or self.labels
        if task.regression or not labels or self._nameless(labels) or set(labels) == set(self.labels):
            return labels
        if set(labels) < set(self.labels):
            return self.labels
        unknown = next(label for label in labels if label not in self.labels)
        raise UserError(
            f"{self.name}: does not know the label '{unknown}' of the training examples, only "
            f"{', '.join(self.labels[:20])}; fine-tune it on this task first (bertree finetune, "
            f"`task={task.name}`)"
        )

    def _nameless(self, labels: Sequence[str]) -> bool:
        """Return whether its classes are as many as these and have only numbers for names."""
        return len(labels) == len(self.labels) and all(map(NAMELESS.fullmatch, self.labels))

    def order(self, task: Task[Any]) -> list[int] | None:
        """Return the teacher's column for each class of the task; None if the order is the same."""
        if set(task.labels) != set(self.labels):
            return None
        order = [self.labels.index(label) for label in task.labels]
        return order if order != list(range(len(order))) else None

    @property
    def tokenizer(self) -> Tokenizer:
        """The teacher's tokenizer."""
        return self.model.required_tokenizer

    @cached_property
    def digest(self) -> str:
        """SHA-256 of its weight files."""
        return weights_hash(Path(self.name))

    def longest(self, task: Task[Any]) -> int:
        """Return the maximum length it was fine-tuned with."""
        return self.model.sequence_length(usual=self.model.task_length or task.max_length)

    def check(self, task: Task[Any], student: str, tokenizer: Tokenizer, max_length: int) -> bool:
        """Return whether it can read the student's units; refuse two models that must share units and cannot."""
        same = tokenizer is self.tokenizer or tokenizer_hash(tokenizer) == tokenizer_hash(self.tokenizer)
        if not HEAD_KINDS[task.head].reads_tokens:
            return same and max_length == self.longest(task) and task == with_model_layout(task, self.model.task)
        most = self.model.architecture.longest_input
        if not same:
            raise UserError(
                f"{student}: reads with another tokenizer than {self.name}, and {task.name} scores single tokens, "
                "so their scores cannot be matched; name a student with the teacher's tokenizer (half, or a preset)"
            )
        if max_length > most:
            raise UserError(
                f"max_length {max_length}: the teacher has only {most} positions, and {task.name} scores single "
                f"tokens, so both must read the same windows; set max_length={most}"
            )
        return True

    def units(self, task: Task[Any], split: EncodedSplit[Any], mask: str) -> list[Unit]:
        """Encode a split with its own tokenizer, in the order of the student's units. `mask` is the mask token in the
        examples."""
        assert not HEAD_KINDS[task.head].reads_tokens
        own = self.tokenizer.special.get("mask") or self.tokenizer.special.get("unk") or ""
        examples = split.examples
        if mask and mask != own and isinstance(task, TextTask):
            pairs = [(e, None if e.pair is None else e.pair.replace(mask, own)) for e in examples]
            examples = [e._replace(text=e.text.replace(mask, own), pair=pair) for e, pair in pairs]
        units, _ = with_model_layout(task, self.model.task).units(examples, self.tokenizer, self.longest(task))
        by_example = {unit.example: unit for unit in units}
        return [by_example[unit.example] for unit in split.units]

    def logits_of(
        self, task: Task[Any], units: Sequence[Unit], autocast: Autocast, advance: Callable[[int], None]
    ) -> list[Logits]:
        """Return its logits, with the classes in the task's order."""
        scores = logits(self.model.network, task.head, units, autocast, advance)
        order = self.order(task)
        if order is not None:
            scores = [rows[:, order] for rows in scores]
        if not all(np.isfinite(rows).all() for rows in scores):
            raise UserError(f"{self.name}: gives scores that are not finite, so there is nothing to learn from it")
        return scores


@dataclass(frozen=True)
class TeacherScores:
    """A teacher's scores of training units, and its metrics on the dev splits."""

    rows: Sequence[Logits]  # one array per unit
    figures: Json  # the scores and their "intervals"

    @property
    def bytes(self) -> int:
        """Size on disk, without the header."""
        return sum(rows.nbytes for rows in self.rows)


def write_scores(out: Path, scores: TeacherScores, identity: str, classes: int) -> None:
    """Write the scores atomically."""
    together = np.concatenate([np.zeros((0, classes), np.float32), *scores.rows]).astype(np.float32)
    about = json.dumps({"identity": identity, "sha256": _digest(together), "figures": scores.figures})
    write_atomically(out / SCORES_FILE, save({ROWS: together}, metadata={ABOUT: about}))


def read_scores(out: Path, identity: str, sizes: Sequence[int], classes: int) -> TeacherScores | None:
    """Read the scores if they have this identity and are undamaged: `sizes` rows of `classes` for each unit."""
    path = out / SCORES_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, "numpy") as file:
            header = _header((file.metadata() or {}).get(ABOUT, ""))
            if header.get("identity") != identity:
                return None
            rows = file.get_tensor(ROWS) if ROWS in file.keys() else None  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        note(f"{path}: cannot be read ({error}); the teacher's scores are computed again")
        return None
    figures = header.get("figures")
    good = isinstance(figures, dict) and all(
        _are_intervals(value) if name == "intervals" else isinstance(value, int | float)
        for name, value in figures.items()
    )
    fits = rows is not None and rows.dtype == np.float32 and rows.shape == (sum(sizes), classes)
    if not good or rows is None or not fits or _digest(rows) != header.get("sha256"):
        note(f"{path}: is damaged; the teacher's scores are computed again")
        return None
    ends = np.cumsum(np.asarray(sizes, np.int64))
    return TeacherScores(np.split(rows, ends[:-1]) if len(sizes) else [], dict(header["figures"]))


def _are_intervals(value: object) -> bool:
    pairs = value.values() if isinstance(value, dict) else [None]
    return all(isinstance(pair, list) and len(pair) == 2 and {*map(type, pair)} <= {int, float} for pair in pairs)


def _digest(rows: Logits) -> str:
    return hashlib.sha256(np.ascontiguousarray(rows).tobytes()).hexdigest()


def _header(text: str) -> Json:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def temperature_effect(
    head: str,
    labels: Sequence[str],
    split: EncodedSplit[Any],
    units: Sequence[Unit],
    logits: Sequence[Logits],
    used: float,
) -> TemperatureEffect:
    """Return the effect on the answers of a split, at many temperatures and the one that is used. Of a large split only
    the first answers are used. `labels` are the names of the head's classes, if they have names."""
    temperatures = tuple(sorted({*TEMPERATURES, used}))
    rows = list(_answers(head, units, logits))
    widest = max(len(row) for row, _, _ in rows)
    rows = rows[: max(1, NUMBERS // widest)]
    logits_nc = np.full((len(rows), widest), -np.inf)
    for logits_c, (row, _, _) in zip(logits_nc, rows, strict=True):
        logits_c[: len(row)] = row
    gold_n = np.array([gold for _, gold, _ in rows])
    largest_n = np.log(np.maximum(np.isfinite(logits_nc).sum(1), 2))
    labeled = gold_n >= 0
    entropy, errors = [], []
    for temperature in temperatures:
        shares_nc = softmax(logits_nc / temperature)
        entropy_n = -(shares_nc * np.log(np.where(shares_nc > 0, shares_nc, 1))).sum(1) / largest_n
        entropy.append(float(entropy_n.mean()))
        right_n = (shares_nc.argmax(1) == gold_n).astype(np.float64)
        calibration = calibrate(shares_nc.max(1)[labeled], right_n[labeled])
        errors += [calibration.error] if calibration else []
        if temperature == 1:
            order = np.argsort(entropy_n, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, EXAMPLES).astype(int))]  # from the surest answer on
    examples = [
        _example(labels, split.examples[rows[n][2]], logits_nc[n], int(gold_n[n]), temperatures)
        for n in (() if HEAD_KINDS[head].reads_tokens else chosen)
    ]
    return TemperatureEffect(
        temperatures=temperatures,
        entropy=tuple(entropy),
        calibration_error=tuple(errors),
        answers=len(rows),
        examples=tuple(examples),
    )


def _answers(head: str, units: Sequence[Unit], logits: Sequence[Logits]) -> Iterator[tuple[Logits, int, int]]:
    """Yield each answer's scores, the index of the gold one (negative: not known), and the number of its example."""
    for unit, scores in zip(units, logits, strict=True):
        rows = scores.T if HEAD_KINDS[head].competing else scores
        golds = [-1] * len(rows) if unit.answer is None else np.atleast_1d(unit.answer).tolist()
        yield from ((row, gold, unit.example) for row, gold in zip(rows, golds, strict=True))


def _example(
    labels: Sequence[str], example: Any, logits_c: Floats, gold: int, temperatures: Sequence[float]
) -> SoftenedExample:
    values = (getattr(example, name, None) for name in INPUT_FIELDS)
    texts = [value for value in values if isinstance(value, str) and value]
    names = labels or example.options
    shares_tc = np.array([softmax(logits_c[: len(names)] / temperature) for temperature in temperatures])
    likeliest = np.argsort(-logits_c[: len(names)], kind="stable")[: CLASSES if len(names) > CLASSES + 1 else None]
    classes, shares = [names[n] for n in likeliest], [shares_tc[:, n] for n in likeliest]
    if len(classes) < len(names):
        classes.append(f"{len(names) - len(classes)} others")
        shares.append(1 - shares_tc[:, likeliest].sum(1))
    return SoftenedExample(
        texts=tuple(text[:ROOM] + ("…" if len(text) > ROOM else "") for text in texts),
        gold=names[gold] if gold >= 0 else None,
        classes=tuple(classes),
        shares=tuple(tuple(np.clip(of_class, 0, 1).tolist()) for of_class in shares),
    )
