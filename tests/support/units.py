"""Random units of every kind of head, and a small network that reads them."""

import random

import torch

from bertree.model.architecture import Transformer
from bertree.model.network import Network, build
from bertree.tasks.task import Unit
from bertree.text.tokenizer import Encoded

CLASSES = {"sequence": 3, "token": 4, "span": 2, "beam-span": 0, "choice": 1}  # of each head
# Heads, and whether they predict a number.
HEADS = [
    ("sequence", False),
    ("sequence", True),
    ("token", False),
    ("span", False),
    ("beam-span", False),
    ("choice", False),
]
VOCAB, OPTIONS = 50, 4


def units(head: str, count: int, seed: int, regression: bool = False, longest: int = 40) -> list[Unit]:
    """Return random units for a head, some without an answer."""
    draw = random.Random(f"{head} {seed}")

    def sequence() -> Encoded:
        length = draw.randint(3, longest)
        ids = [draw.randrange(3, VOCAB) for _ in range(length)]
        return Encoded(ids, draw.choice([None, [0] * (length // 2) + [1] * (length - length // 2)]), 0)

    def unit(number: int) -> Unit:
        sequences = tuple(sequence() for _ in range(draw.randint(2, OPTIONS) if head == "choice" else 1))
        chosen: list[int] | None = None
        answer: object
        if head == "sequence":
            answer = draw.uniform(-1, 1) if regression else draw.randrange(3)
        elif head == "choice":
            answer = draw.randrange(len(sequences))
        else:
            length = len(sequences[0].ids)
            chosen = sorted(draw.sample(range(length), draw.randint(1, length)))
            ends = sorted(draw.choices(range(len(chosen)), k=2))
            answer = tuple(ends) if head != "token" else [draw.choice([0, 1, 2, 3, -100]) for _ in chosen]
        return Unit(number, sequences, chosen, None if draw.random() < 0.2 else answer)

    return [unit(number) for number in range(count)]


def network(**axes: object) -> Network:
    """Return a small network with every head."""
    torch.manual_seed(0)
    small = {"vocab_size": VOCAB, "width": 16, "heads": 2, "layers": 2, "max_positions": 64, "init_std": 0.2}
    none = dict.fromkeys(("dropout", "attention_dropout", "classifier_dropout"), 0.0)
    return build(Transformer().with_values(small | none | axes), CLASSES).eval()


def regression_network(**axes: object) -> Network:
    """Return the same with one number as the output of the sequence head."""
    model = network(**axes)
    model.heads["sequence"].out = torch.nn.Linear(16, 1)
    return model
