"""The task of sentence vectors: texts whose vectors are compared.

The training loss (`loss`) and the figures of the dev split (`dev_kind`) are independent: trained on the classes of NLI,
a model can be scored by the correlation of its cosines with STS. Only classes are scored with a head, the classifier
used in training.

Rows of files become examples of a loss: triplets from labeled pairs, labeled pairs from triplets. NLI as triplets: a
premise, a sentence that follows from it, and one that contradicts it, as in SimCSE and in AllNLI of
sentence-transformers. Every entailed sentence gives one triplet, with the contradictions of its premise in turn.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertree import keyed_random
from bertree.batch import IGNORED
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.objectives.embedding_losses import ROWS, EmbeddingLoss, default_loss, loss_named
from bertree.tasks import metrics, similarity_files
from bertree.tasks.columns import TextExample
from bertree.tasks.metrics import Statistic, correlation_statistic, label_statistics, score_statistics
from bertree.tasks.similarity_files import ColumnNames, SentenceExample
from bertree.tasks.task import INTERNAL, Logits, Splits, Task, Truncation, Unit, check_label_count
from bertree.tasks.text import METRICS, TOKENIZE_AT_ONCE, TextTask, text_task
from bertree.text.tokenizer import Tokenizer

# The scores of each kind of dev rows; the first is the metric.
FIGURES: dict[str, tuple[str, ...]] = {
    "score": ("spearman", "pearson"),
    "label": ("accuracy", "macro_f1"),
    "triplet": ("accuracy", "euclidean_accuracy"),
    "pair": ("mrr", "recall_at_1", "recall_at_10"),
}
POOL = 4096  # most candidates among which a positive is ranked
SAME_LABELS = ("entailment", "1", "true", "yes", "positive", "duplicate", "paraphrase", "equivalent")
DIFFERENT_LABELS = (
    "contradiction",
    "0",
    "false",
    "no",
    "negative",
    "not_duplicate",
    "not_equivalent",
    "not_entailment",
)
LIMITS = (1.0, 5.0, 10.0, 100.0)  # usual ends of scales of scores
NEGATIVE_DRAWS = 8  # for a negative that is not one of the anchor's positives


@dataclass(frozen=True)
class SimilarityTask(Task[SentenceExample]):
    """Sentence vectors, trained by a loss and scored by the kind of rows in the dev split."""

    loss: str = field(default="softmax", metadata=INTERNAL)
    dev_kind: str = field(default="label", metadata=INTERNAL)  # kind of rows in the dev split
    regression: bool = field(default=False, metadata=INTERNAL)
    low: float = field(default=0.0, metadata=INTERNAL)  # range of the scores in the training data
    high: float = field(default=1.0, metadata=INTERNAL)
    scale: tuple[float, float] = (0.0, 1.0)  # range of the scores in the dev split
    figures: tuple[str, ...] = FIGURES["label"]
    metric: str = "accuracy"
    prompt: str = field(default="", metadata=INTERNAL)  # the model puts it before every text
    columns: ColumnNames = field(default_factory=ColumnNames)

    head = "vector"

    @property
    def scored_head(self) -> str:
        return "compare" if self.dev_kind == "label" else "vector"

    def splits(self, data: Path) -> Splits:
        return similarity_files.find(data)

    def read(self, paths: Sequence[Path]) -> list[SentenceExample]:
        return similarity_files.read(paths, self.columns)

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
            batch = examples[start : start + TOKENIZE_AT_ONCE]
            texts = list(dict.fromkeys(text for example in batch for text in example.texts))
            sequences_of = tokenizer.encode_batch([self.prompt + text for text in texts], max_length)
            encoded = dict(zip(texts, sequences_of, strict=True))
            for example in batch:
                sequences = tuple(encoded[text] for text in example.texts)
                units.append(Unit(len(units), sequences, answer=self._answer(example, numbers, names, widest)))
        lost = [sum(sequence.dropped for sequence in unit.sequences) for unit in units]
        return units, Truncation(sum(map(bool, lost)), sum(lost))

    def _answer(self, example: SentenceExample, numbers: dict[str, int], names: dict[str, int], widest: int) -> Any:
        if isinstance(example.gold, str):
            if (number := numbers.get(example.gold)) is None:
                labels = ", ".join(self.labels[:20])
                line = f"{example.where}: label '{example.gold:.40}' is not among those of the training set ({labels})"
                raise UserError(line)
            return number
        if example.gold is not None:
            return (example.gold - self.low) / (self.high - self.low)
        named = [names.setdefault(text, len(names)) for text in example.texts]
        return tuple(named + [IGNORED] * (widest - len(named)))

    def predict(
        self, examples: Sequence[SentenceExample], units: Sequence[Unit], logits: Sequence[Logits]
    ) -> list[Json]:
        outputs = [np.asarray(rows, np.float64) for rows in logits]
        if self.dev_kind == "label":
            return [self._classified(example, rows[0]) for example, rows in zip(examples, outputs, strict=True)]
        if self.dev_kind == "pair":
            return _ranked(examples, outputs)
        return [self._compared(example, rows) for example, rows in zip(examples, outputs, strict=True)]

    def _classified(self, example: SentenceExample, scores: NDArray[np.float64]) -> Json:
        shares = metrics.softmax(scores)
        best = int(shares.argmax())
        line = _line(example) | {"predicted": self.labels[best], "score": float(shares[best])}
        return line | {"probabilities": dict(zip(self.labels, shares.tolist(), strict=True))}

    def _compared(self, example: SentenceExample, vectors: NDArray[np.float64]) -> Json:
        """Return a prediction: the cosine on the scale of the scores or, of a triplet, which text is nearer."""
        anchor, *candidates = _normalize(vectors)
        cosines = [float(anchor @ candidate) for candidate in candidates]
        if self.dev_kind == "score":
            low, high = self.scale
            cosine = cosines[0] - cosines[1] if len(cosines) > 1 else cosines[0]  # of a triplet, the difference
            return _line(example) | {"predicted": low + cosine * (high - low), "score": cosine}
        far = np.linalg.norm(vectors[1:] - vectors[0], axis=1)
        right = cosines[0] > max(cosines[1:], default=-np.inf)
        return _line(example) | {
            "gold": "positive",
            "predicted": "positive" if right else "negative",
            "score": abs(cosines[0] - max(cosines[1:], default=0.0)) / 2,
            "euclidean": bool(far[0] < min(far[1:], default=np.inf)),
        }

    def score(self, examples: Sequence[SentenceExample], predictions: Sequence[Json]) -> dict[str, float]:
        gold, predicted = [line["gold"] for line in predictions], [line["predicted"] for line in predictions]
        if self.dev_kind in ("score", "label"):
            return {name: METRICS[name](gold, predicted) for name in self.figures}
        if self.dev_kind == "triplet":
            right = [bool(line["euclidean"]) for line in predictions]
            return {"accuracy": metrics.accuracy(gold, predicted), "euclidean_accuracy": sum(right) / len(right)}
        ranks = np.array([line["rank"] for line in predictions], np.float64)
        shares = {f"recall_at_{k}": float((ranks <= k).mean()) for k in (1, 10)}
        return {"mrr": float((1 / ranks).mean())} | shares

    def statistics(self, examples: Sequence[SentenceExample], predictions: Sequence[Json]) -> dict[str, Statistic]:
        if self.dev_kind not in ("score", "label"):
            return score_statistics(self.score, examples, predictions)
        gold, predicted = [line["gold"] for line in predictions], [line["predicted"] for line in predictions]
        if self.dev_kind == "label":
            return label_statistics(self.figures, gold, predicted)
        return {kind: correlation_statistic(kind, gold, predicted) for kind in self.figures}

    def confidence(self, line: Json) -> float | None:
        return super().confidence(line) if self.dev_kind == "label" else None

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


def _normalize(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors of length 1; zero vectors stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    normalized: NDArray[np.float64] = vectors / np.where(lengths > 0, lengths, 1)
    return normalized


def _ranked(examples: Sequence[SentenceExample], vectors: Sequence[NDArray[np.float64]]) -> list[Json]:
    """Rank each positive among the second texts and negatives of its pool. Equal texts count once, and other positives
    of the same anchor are not ranked before it."""
    lines: list[Json] = []
    size = -(-len(examples) // max(1, -(-len(examples) // POOL)))  # pools of equal size are equally hard
    for start in range(0, len(examples), size or 1):
        pool, pool_vectors = examples[start : start + size], vectors[start : start + size]
        columns: dict[str, int] = {}  # of each candidate text
        own: dict[str, set[str]] = {}
        rows: list[NDArray[np.float64]] = []
        for example, row in zip(pool, pool_vectors, strict=True):
            own.setdefault(example.texts[0], {example.texts[0]}).add(example.texts[1])
            for text, vector in zip(example.texts[1:], row[1:], strict=True):
                if text not in columns:
                    columns[text] = len(rows)
                    rows.append(vector)
        texts = list(columns)
        cosines = _normalize(np.stack([row[0] for row in pool_vectors])) @ _normalize(np.stack(rows)).T
        for example, scores in zip(pool, cosines, strict=True):
            right = columns[example.texts[1]]
            score = scores[right]
            scores[[columns[text] for text in own[example.texts[0]] if columns.get(text, right) != right]] = -np.inf
            # Ties (and NaN) are ranked before it, or a model with constant vectors would be perfect.
            rank = len(texts) - int((scores < score).sum())
            wrong = np.where(np.arange(len(texts)) == right, -np.inf, scores)
            best = int(wrong.argmax()) if rank > 1 else right
            lines.append(
                {
                    "text": example.texts[0],
                    "gold": example.texts[1],
                    "predicted": texts[best],
                    "score": float(score),
                    "rank": rank,
                }
            )
    return lines


def examples_for_loss(examples: Sequence[SentenceExample], loss: type[EmbeddingLoss]) -> list[SentenceExample]:
    """Return the examples as the loss reads them; for losses on triplets or pairs, labeled pairs are converted."""
    kind, file = examples[0].kind, examples[0].file
    if kind == "text" and kind in loss.reads:  # each text with itself; one that occurs twice would be no wrong answer
        return [example._replace(texts=example.texts * 2) for example in {e.texts: e for e in examples}.values()]
    if kind in loss.reads:
        needs_negatives = kind == "triplet" and "pair" not in loss.reads
        return [example for example in examples if not needs_negatives or len(example.texts) > 2]
    if kind == "label" and {"triplet", "pair"} & set(loss.reads):
        return make_triplets(examples, bare="pair" in loss.reads)
    raise UserError(
        f"{file}: holds {ROWS[kind]}, but the loss '{loss.name}' needs {loss.needs}; try `loss={default_loss(kind)}`"
    )


def make_triplets(examples: Sequence[SentenceExample], bare: bool) -> list[SentenceExample]:
    """Convert labeled pairs to triplets; `bare`: also to pairs, where a premise has no contradiction."""
    same: dict[str, list[SentenceExample]] = {}
    different: dict[str, list[str]] = {}
    numbers = {label for example in examples if (label := str(example.gold)).isdecimal()}
    if not numbers <= {"0", "1"}:  # 0 is entailment in some files, and "no" in others
        raise UserError(
            f"{examples[0].file}: the labels are numbers ({', '.join(sorted(numbers)[:8])}), which do not say what "
            "belongs together; write entailment, neutral, contradiction, or 1 and 0"
        )
    for example in examples:
        label = str(example.gold).casefold()
        first, second = example.texts[:2]
        if label in SAME_LABELS:
            same.setdefault(first, []).append(example)
        elif label in DIFFERENT_LABELS:
            different.setdefault(first, []).append(second)
    triplets = []
    for first, rows in same.items():
        negatives = different.get(first, [])
        for number, row in enumerate(rows):
            if negatives:
                triplets.append(row._replace(texts=(*row.texts[:2], negatives[number % len(negatives)]), gold=None))
            elif bare:
                triplets.append(row._replace(gold=None))
    if not triplets:
        labels = ", ".join(sorted({str(example.gold) for example in examples})[:8])
        need = "say that two texts belong together (entailment, 1)"
        need += "" if bare else ", and for the same first text another row that one does not (contradiction, 0)"
        raise UserError(f"{examples[0].file}: the labels ({labels}) must {need}")
    triplets.sort(key=lambda row: len(row.texts) < 3)  # the first row decides the kind, so rows with a negative first
    return triplets


def score_range(examples: Sequence[SentenceExample]) -> tuple[float, float]:
    """Return the lowest and highest possible score: the usual range that holds all scores."""
    values = [float(example.gold) for example in examples if not isinstance(example.gold, str | None)]
    least, most = min(values), max(max(values), -min(values))
    high = next((limit for limit in LIMITS if most <= limit), most)
    return (-high if least < 0 else 0.0), high


def cross_encoder_examples(
    examples: Sequence[SentenceExample], task: TextTask | None = None
) -> tuple[TextTask, list[TextExample]]:
    """Return a task that reads both texts at once, and its examples. Triplets and pairs become pairs labeled 1 or 0;
    a row without negatives gets another row's second text as negative."""
    kind = examples[0].kind
    if task is None:
        task = text_task("regression" if kind == "score" else "classification", "sentence1", "sentence2", "label")
    if kind in ("label", "score"):
        return task, [
            TextExample(str(number), e.texts[0], e.texts[1], e.gold, e.file, e.line)
            for number, e in enumerate(examples)
        ]
    own: dict[str, set[str]] = {}
    for example in examples:
        own.setdefault(example.texts[0], {example.texts[0]}).add(example.texts[1])
    drawn = keyed_random.bits(keyed_random.key(0, "negatives"), np.arange(len(examples) * NEGATIVE_DRAWS)).reshape(
        -1, NEGATIVE_DRAWS
    ) % len(examples)
    pairs: list[TextExample] = []
    for example, candidates in zip(examples, drawn.tolist(), strict=True):
        first, second, *negatives = example.texts
        if not negatives:
            texts = (examples[number].texts[1] for number in candidates)
            negatives = [text for text in texts if text not in own[first]][:1]
        for text, label in ((second, "1"), *((text, "0") for text in negatives)):
            pairs.append(TextExample(str(len(pairs)), first, text, label, example.file, example.line))
    return task, pairs
