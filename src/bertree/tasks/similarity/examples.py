"""Rows of files -> examples of a loss: triplets from labelled pairs, labelled pairs from triplets.

NLI as triplets: a premise, a sentence that follows from it, and one that contradicts it, as in SimCSE and in AllNLI of
sentence-transformers. Every entailed sentence makes one triplet, with the contradictions of its premise in turn.
"""

from collections.abc import Sequence

import numpy as np

from bertree import keyed_random
from bertree.errors import UserError
from bertree.objectives.embedding_losses import ROWS, EmbeddingLoss, default_loss
from bertree.tasks.columns import TextExample
from bertree.tasks.similarity.read import SentenceExample
from bertree.tasks.text import TextTask, text_task

SAME = ("entailment", "1", "true", "yes", "positive", "duplicate", "paraphrase", "equivalent")  # labels: it belongs
OTHER = ("contradiction", "0", "false", "no", "negative", "not_duplicate", "not_equivalent", "not_entailment")
LIMITS = (1.0, 5.0, 10.0, 100.0)  # usual ends of scales of scores
SPARE = 8  # draws for a negative that is none of the anchor's own


def examples_for_loss(examples: Sequence[SentenceExample], loss: type[EmbeddingLoss]) -> list[SentenceExample]:
    """Return the examples as the loss reads them; for losses on triplets or pairs, labelled pairs are converted."""
    kind, file = examples[0].kind, examples[0].file
    if kind in loss.reads:
        needs_negatives = kind == "triplet" and "pair" not in loss.reads
        return [example for example in examples if not needs_negatives or len(example.texts) > 2]
    if kind == "label" and {"triplet", "pair"} & set(loss.reads):
        return make_triplets(examples, bare="pair" in loss.reads)
    raise UserError(
        f"{file}: holds {ROWS[kind]}, but the loss '{loss.name}' needs {loss.needs}; try `loss={default_loss(kind)}`"
    )


def make_triplets(examples: Sequence[SentenceExample], bare: bool) -> list[SentenceExample]:
    """Convert labelled pairs to triplets; `bare`: also to pairs, where a premise has no contradiction."""
    same: dict[str, list[SentenceExample]] = {}
    other: dict[str, list[str]] = {}
    numbers = {label for example in examples if (label := str(example.gold)).isdecimal()}
    if not numbers <= {"0", "1"}:  # 0 is entailment in some files, and "no" in others
        raise UserError(
            f"{examples[0].file}: the labels are numbers ({', '.join(sorted(numbers)[:8])}), which do not say what "
            "belongs together; write entailment, neutral, contradiction, or 1 and 0"
        )
    for example in examples:
        label = str(example.gold).casefold()
        first, second = example.texts[:2]
        if label in SAME:
            same.setdefault(first, []).append(example)
        elif label in OTHER:
            other.setdefault(first, []).append(second)
    found = []
    for first, rows in same.items():
        negatives = other.get(first, [])
        for number, row in enumerate(rows):
            if negatives:
                found.append(row._replace(texts=(*row.texts[:2], negatives[number % len(negatives)]), gold=None))
            elif bare:
                found.append(row._replace(gold=None))
    if not found:
        known = ", ".join(sorted({str(example.gold) for example in examples})[:8])
        need = "say that two texts belong together (entailment, 1)"
        need += "" if bare else ", and for the same first text another row that one does not (contradiction, 0)"
        raise UserError(f"{examples[0].file}: the labels ({known}) must {need}")
    found.sort(key=lambda row: len(row.texts) < 3)  # what has a negative first: the first says what the rows are
    return found


def score_range(examples: Sequence[SentenceExample]) -> tuple[float, float]:
    """Return the lowest and highest possible score: the usual range that holds all scores."""
    values = [float(example.gold) for example in examples if not isinstance(example.gold, str | None)]
    least, most = min(values), max(max(values), -min(values))
    high = next((limit for limit in LIMITS if most <= limit), most)
    return (-high if least < 0 else 0.0), high


def cross_encoder_examples(
    examples: Sequence[SentenceExample], task: TextTask | None = None
) -> tuple[TextTask, list[TextExample]]:
    """Return a task that reads both texts at once, and its examples. Triplets and pairs become pairs labelled 1 or 0;
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
    drawn = keyed_random.bits(keyed_random.key(0, "negatives"), np.arange(len(examples) * SPARE)).reshape(
        -1, SPARE
    ) % len(examples)
    found: list[TextExample] = []
    for example, others in zip(examples, drawn.tolist(), strict=True):
        first, second, *negatives = example.texts
        if not negatives:
            texts = (examples[other].texts[1] for other in others)
            negatives = [text for text in texts if text not in own[first]][:1]
        for text, label in ((second, "1"), *((text, "0") for text in negatives)):
            found.append(TextExample(str(len(found)), first, text, label, example.file, example.line))
    return task, found
