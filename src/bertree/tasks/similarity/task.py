"""The task of sentence vectors: texts whose vectors are compared.

The loss it is trained with (`loss`) and what the dev split is scored by (`dev_kind`) are independent: trained on the
classes of NLI, it can be scored by the correlation of its cosines with STS. Only classes are scored with a head, the
classifier it is trained with.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertree.batch import IGNORED
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.objectives.embedding_losses import loss_named
from bertree.tasks import metrics
from bertree.tasks.similarity import read as read_sentences
from bertree.tasks.similarity.examples import score_range
from bertree.tasks.similarity.read import ColumnNames, SentenceExample
from bertree.tasks.task import Logits, Splits, Task, Truncation, Unit, check_label_count
from bertree.tasks.text import TOKENIZE_AT_ONCE
from bertree.text.tokenizer import Tokenizer

# The scores of each kind of dev rows; the first is the metric.
FIGURES: dict[str, tuple[str, ...]] = {
    "score": ("spearman", "pearson"),
    "label": ("accuracy", "macro_f1"),
    "triplet": ("accuracy", "euclidean_accuracy"),
    "pair": ("mrr", "recall_at_1", "recall_at_10"),
}
POOL = 4096  # candidates among which a positive is ranked, at most


@dataclass(frozen=True)
class SimilarityTask(Task[SentenceExample]):
    """Sentence vectors, trained by a loss and scored by the kind of rows in the dev split."""

    loss: str = "softmax"
    dev_kind: str = "label"  # kind of rows in the dev split
    regression: bool = False
    low: float = 0.0  # range of the scores in the training data
    high: float = 1.0
    scale: tuple[float, float] = (0.0, 1.0)  # and in the dev split
    figures: tuple[str, ...] = FIGURES["label"]
    metric: str = "accuracy"
    prompt: str = ""  # the model puts it before every text
    columns: ColumnNames = field(default_factory=ColumnNames)

    head = "vector"

    @property
    def scored_head(self) -> str:
        return "compare" if self.dev_kind == "label" else "vector"

    def splits(self, data: Path) -> Splits:
        return read_sentences.find(data)

    def read(self, paths: Sequence[Path]) -> list[SentenceExample]:
        return read_sentences.read(paths, self.columns)

    def parse(self, record: str | Json, where: str = "input") -> SentenceExample:
        raise UserError("a model of sentence vectors predicts nothing; ask for vectors (bertree embed) or similarities")

    def group(self, example: SentenceExample) -> str | None:
        return example.texts[0]

    def with_dev_kind(self, examples: Sequence[SentenceExample]) -> tuple[Self, list[SentenceExample]]:
        """Return the task scored by the kind of most dev rows, and the rows of that kind; pairs may have negatives."""
        kind = Counter(example.kind for example in examples).most_common(1)[0][0]
        kept = [example for example in examples if kind == "pair" or example.kind == kind]
        scale = score_range(kept) if kind == "score" else self.scale
        return replace(self, dev_kind=kind, figures=FIGURES[kind], metric=FIGURES[kind][0], scale=scale), kept

    def units(
        self, examples: Sequence[SentenceExample], tokenizer: Tokenizer, max_length: int
    ) -> tuple[list[Unit], Truncation]:
        numbers = {label: number for number, label in enumerate(self.labels)}
        names: dict[str, int] = {}
        widest = max((len(example.texts) for example in examples), default=0)
        units: list[Unit] = []
        for start in range(0, len(examples), TOKENIZE_AT_ONCE):
            some = examples[start : start + TOKENIZE_AT_ONCE]
            given = list(dict.fromkeys(text for example in some for text in example.texts))
            read = tokenizer.encode([self.prompt + text for text in given], max_length)
            encoded = dict(zip(given, read, strict=True))
            for example in some:
                sequences = tuple(encoded[text] for text in example.texts)
                units.append(Unit(len(units), sequences, answer=self._answer(example, numbers, names, widest)))
        lost = [sum(sequence.dropped for sequence in unit.sequences) for unit in units]
        return units, Truncation(sum(map(bool, lost)), sum(lost))

    def _answer(self, example: SentenceExample, numbers: dict[str, int], names: dict[str, int], widest: int) -> Any:
        if isinstance(example.gold, str):
            if (number := numbers.get(example.gold)) is None:
                known = ", ".join(self.labels[:20])
                line = f"{example.where}: label '{example.gold:.40}' is not among those of the training set ({known})"
                raise UserError(line)
            return number
        if example.gold is not None:
            return (example.gold - self.low) / (self.high - self.low)
        named = [names.setdefault(text, len(names)) for text in example.texts]
        return tuple(named + [IGNORED] * (widest - len(named)))

    def predict(
        self, examples: Sequence[SentenceExample], units: Sequence[Unit], logits: Sequence[Logits]
    ) -> list[Json]:
        answers = [np.asarray(given, np.float64) for given in logits]
        if self.dev_kind == "label":
            return [self._classified(example, given[0]) for example, given in zip(examples, answers, strict=True)]
        if self.dev_kind == "pair":
            return _ranked(examples, answers)
        return [self._compared(example, given) for example, given in zip(examples, answers, strict=True)]

    def _classified(self, example: SentenceExample, scores: NDArray[np.float64]) -> Json:
        shares = metrics.softmax(scores)
        best = int(shares.argmax())
        line = _line(example) | {"predicted": self.labels[best], "score": float(shares[best])}
        return line | {"probabilities": dict(zip(self.labels, shares.tolist(), strict=True))}

    def _compared(self, example: SentenceExample, vectors: NDArray[np.float64]) -> Json:
        """Return a prediction: the cosine on the scale of the scores or, of a triplet, which text is nearer."""
        cosines = [float(_units(vectors)[0] @ other) for other in _units(vectors)[1:]]
        if self.dev_kind == "score":
            low, high = self.scale
            return _line(example) | {"predicted": low + cosines[0] * (high - low), "score": cosines[0]}
        far = np.linalg.norm(vectors[1:] - vectors[0], axis=1)
        right = cosines[0] > max(cosines[1:], default=-np.inf)
        return _line(example) | {
            "gold": "positive",
            "predicted": "positive" if right else "negative",
            "score": abs(cosines[0] - max(cosines[1:], default=0.0)) / 2,
            "euclidean": bool(far[0] < min(far[1:], default=np.inf)),
        }

    def score(self, examples: Sequence[SentenceExample], predictions: Sequence[Json]) -> dict[str, float]:
        gold, said = [line["gold"] for line in predictions], [line["predicted"] for line in predictions]
        if self.dev_kind == "score":
            return {"spearman": metrics.spearman(gold, said), "pearson": metrics.pearson(gold, said)}
        if self.dev_kind == "label":
            return {"accuracy": metrics.accuracy(gold, said), "macro_f1": metrics.macro_f1(gold, said)}
        if self.dev_kind == "triplet":
            right = [bool(line["euclidean"]) for line in predictions]
            return {"accuracy": metrics.accuracy(gold, said), "euclidean_accuracy": sum(right) / len(right)}
        ranks = np.array([line["rank"] for line in predictions], np.float64)
        shares = {f"recall_at_{k}": float((ranks <= k).mean()) for k in (1, 10)}
        return {"mrr": float((1 / ranks).mean())} | shares

    def labels_in(self, examples: Sequence[SentenceExample]) -> tuple[str, ...]:
        labels = tuple(sorted({example.gold for example in examples if isinstance(example.gold, str)}))
        check_label_count(labels, examples[0].file)
        return labels

    def check_training(self, examples: Sequence[SentenceExample]) -> None:
        if "label" in loss_named(self.loss).reads and len(self.labels) < 2:
            raise UserError(f"{examples[0].file}: all rows have the same label '{examples[0].gold}'")


def _line(example: SentenceExample) -> Json:
    line: Json = {"text": example.texts[0], "pair": example.texts[1]}
    if len(example.texts) > 2:
        line["negatives"] = list(example.texts[2:])
    return line if example.gold is None else line | {"gold": example.gold}


def _units(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors of length 1; zero vectors stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    found: NDArray[np.float64] = vectors / np.where(lengths > 0, lengths, 1)
    return found


def _ranked(examples: Sequence[SentenceExample], vectors: Sequence[NDArray[np.float64]]) -> list[Json]:
    """Rank each positive among the second texts and negatives of its pool. Equal texts count once, and other positives
    of the same anchor are not ranked before it."""
    lines: list[Json] = []
    size = -(-len(examples) // max(1, -(-len(examples) // POOL)))  # pools of equal size are equally hard
    for start in range(0, len(examples), size or 1):
        some, given = examples[start : start + size], vectors[start : start + size]
        places: dict[str, int] = {}
        own: dict[str, set[str]] = {}
        rows: list[NDArray[np.float64]] = []
        for example, row in zip(some, given, strict=True):
            own.setdefault(example.texts[0], {example.texts[0]}).add(example.texts[1])
            for text, vector in zip(example.texts[1:], row[1:], strict=True):
                if text not in places:
                    places[text] = len(rows)
                    rows.append(vector)
        texts = list(places)
        cosines = _units(np.stack([row[0] for row in given])) @ _units(np.stack(rows)).T
        for example, scores in zip(some, cosines, strict=True):
            right = places[example.texts[1]]
            theirs = [places[text] for text in own[example.texts[0]] if text in places and places[text] != right]
            mine = scores[right]
            scores[theirs] = -np.inf
            # Ties (and NaN) are ranked before it, or a model with constant vectors would be perfect.
            rank = len(texts) - int((scores < mine).sum())
            others = np.where(np.arange(len(texts)) == right, -np.inf, scores)
            best = int(others.argmax()) if rank > 1 else right
            said: Json = {"gold": example.texts[1], "predicted": texts[best], "score": float(mine), "rank": rank}
            lines.append({"text": example.texts[0]} | said)
    return lines
