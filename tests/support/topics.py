"""Sentences about one of four topics, which a tiny encoder learns to tell apart in seconds; as files of every kind."""

import random
from pathlib import Path

from tests.support.learnable import BAD, COLOURS, FILL, GOOD, PLACES, Row, write

TOPICS = (GOOD[:3], BAD[:3], PLACES[:3], COLOURS[:3])
REST = FILL[:4]
# Pairs in real words, and what people might say of them, from 0 to 5.
JUDGED = [
    ("A dog runs over the meadow.", "A hound is running across the grass.", 4.6),
    ("A dog runs over the meadow.", "The bank raised its rates.", 0.1),
    ("The ship left the harbour at dawn.", "At daybreak the vessel sailed out of port.", 4.4),
    ("The ship left the harbour at dawn.", "She bought a ship in a bottle.", 1.5),
    ("He is cooking soup.", "A man is making soup in the kitchen.", 4.0),
    ("He is cooking soup.", "The orchestra tuned its violins.", 0.2),
]


def about(draw: random.Random, *topics: int) -> str:
    """A text with a word or two of these topics."""
    words = [draw.choice(TOPICS[topic]) for topic in topics for _ in range(draw.randint(1, 2))]
    words += draw.choices(REST, k=draw.randint(0, 2))
    draw.shuffle(words)
    return " ".join(words)


def inference(count: int, seed: int = 0) -> list[Row]:
    """Something about the same topic follows, something about another contradicts, about both is neither."""
    draw, rows = random.Random(f"nli {seed}"), list[Row]()
    for _ in range(count // 3):
        topic, other = draw.sample(range(len(TOPICS)), 2)
        premise = about(draw, topic)
        for label, topics in (("entailment", (topic,)), ("contradiction", (other,)), ("neutral", (topic, other))):
            rows.append({"gold_label": label, "sentence1": premise, "sentence2": about(draw, *topics)})
    return rows


def scored(count: int, seed: int = 0) -> list[Row]:
    """From 0 to 5: how much of two texts is about the same."""
    draw, rows = random.Random(f"sts {seed}"), list[Row]()
    for _ in range(count):
        topic, other = draw.sample(range(len(TOPICS)), 2)
        score, second = draw.choice(((5.0, (topic,)), (2.5, (topic, other)), (0.0, (other,))))
        rows.append({"sentence1": about(draw, topic), "sentence2": about(draw, *second), "score": score})
    return rows


def triplets(count: int, seed: int = 0, negatives: int = 1) -> list[Row]:
    draw, rows = random.Random(f"triplets {seed}"), list[Row]()
    for _ in range(count):
        topic, *others = draw.sample(range(len(TOPICS)), 1 + negatives)
        row: Row = {"anchor": about(draw, topic), "positive": about(draw, topic)}
        rows.append(row | {f"negative{n or ''}": about(draw, other) for n, other in enumerate(others)})
    return rows


def pairs(count: int, seed: int = 0) -> list[Row]:
    return [{"question": row["anchor"], "answer": row["positive"]} for row in triplets(count, seed)]


def files(folder: Path) -> Path:
    """All of them."""
    write(folder / "nli" / "train.tsv", inference(720))
    write(folder / "nli" / "dev.jsonl", inference(60, 1))
    write(folder / "sts" / "train.csv", scored(480))
    write(folder / "sts" / "dev.parquet", scored(80, 1))
    write(folder / "triplets.jsonl", triplets(400))
    write(folder / "pairs.csv", pairs(480))
    return folder
