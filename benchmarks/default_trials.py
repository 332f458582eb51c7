"""Trials on vectors of a frozen model: pooling, centring, and a linear layer trained by ranking at several scales.

    python -m benchmarks.default_trials default --nli nli.jsonl.xz --questions questions.jsonl.xz --sts STS-B/dev.tsv \\
        --search squadshifts.json --held lambada_test.jsonl --held agnews/test.tsv --table result.md

The states of all texts are computed once, so a trial takes seconds on a CPU: they show directions, not what training
the whole encoder gives. Measured are Spearman's correlation on --sts, recall of the context of a question among those
of --search (some hundred questions), and cosines of sentences from different documents beside those of paraphrases
(score 4 or more). The search questions must not be among --questions.
"""

import argparse
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.common import environment, table
from benchmarks.default_table import SAME, sentences_of
from bertree.errors import BertreeWarning
from bertree.inference.load import Model, load
from bertree.objectives.embedding_math import ranking_errors
from bertree.tasks.metrics import spearman
from bertree.tasks.similarity.read import ColumnNames, SentenceExample, read
from bertree.tasks.squad.read import read as read_squad

POOLINGS = ("mean", "cls", "max")
ROWS, QUESTIONS = 2000, 800  # of each kind of pairs to learn from; to search with
BATCH, EPOCHS, RATE = 256, 6, 1e-3
HEAD = ("vectors", "STS-B dev", "recall@1", "recall@5", "unrelated", "95 %", "paraphrases", "above")


@dataclass
class Trials:
    """States of all texts under each pooling, and what is measured on."""

    numbers: dict[str, int]
    pooled: dict[str, Tensor]
    learned: dict[str, list[tuple[str, ...]]]
    pairs: Sequence[SentenceExample]
    asked: Sequence[tuple[str, str]]  # question, context
    held: Sequence[str]

    def rows(self, texts: Sequence[str]) -> Tensor:
        """The numbers of texts."""
        return torch.tensor([self.numbers[text] for text in texts])

    def measured(self, name: str, vectors: Tensor) -> list[object]:
        """A line of the table."""
        unit = F.normalize(vectors, dim=-1)
        sides = [unit[self.rows([pair.texts[side] for pair in self.pairs])] for side in (0, 1)]
        cosines, gold = (sides[0] * sides[1]).sum(1), [float(pair.gold or 0) for pair in self.pairs]
        contexts = list(dict.fromkeys(context for _, context in self.asked))
        places = {context: number for number, context in enumerate(contexts)}
        right = torch.tensor([places[context] for _, context in self.asked])
        scores = unit[self.rows([question for question, _ in self.asked])] @ unit[self.rows(contexts)].T
        ranks = (scores >= scores.gather(1, right[:, None])).sum(1)
        apart = unit[self.rows(self.held)]
        unrelated = (apart @ apart.T)[*torch.triu_indices(len(apart), len(apart), 1)]
        same, limit = cosines[torch.tensor(gold) >= SAME], unrelated.quantile(0.95)
        recall = [f"{100 * float((ranks <= k).float().mean()):.1f}" for k in (1, 5)]
        spread = [f"{float(value):.2f}" for value in (unrelated.mean(), limit, same.mean())]
        above = f"{100 * float((same > limit).float().mean()):.0f} %"
        return [name, f"{100 * spearman(gold, cosines.tolist()):.1f}", *recall, *spread, above]

    def centred(self, pooling: str) -> tuple[Tensor, Tensor, Tensor]:
        """Vectors less their mean, and the axes and variances of those that are learned from."""
        vectors = self.pooled[pooling]
        some = vectors[self.rows([row[0] for rows in self.learned.values() for row in rows])]
        variances, axes = torch.linalg.eigh(torch.cov((some - some.mean(0)).T))
        return vectors - some.mean(0), axes, variances.clamp(min=1e-4 * float(variances.max()))

    def trained(
        self, pooling: str, scale: float, kinds: Sequence[str], symmetric: bool = False, negatives: bool = True
    ) -> Tensor:
        """Vectors after a linear layer that was trained by ranking, from the identity."""
        vectors = self.pooled[pooling]
        draw = torch.Generator().manual_seed(0)
        weight = torch.eye(vectors.shape[1]).requires_grad_()
        bias = torch.zeros(vectors.shape[1], requires_grad=True)
        optimizer = torch.optim.AdamW([weight, bias], lr=RATE, weight_decay=0.0)
        width = 3 if negatives else 2
        tables = [torch.stack([self.rows(row[:width]) for row in self.learned[kind]]) for kind in kinds]
        rows_qw = torch.cat(tables)
        steps = EPOCHS * len(rows_qw) // BATCH
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
            some_qw = rows_qw[torch.randperm(len(rows_qw), generator=draw)[:BATCH]]
            table_qwd = vectors[some_qw] @ weight + bias
            optimizer.zero_grad()
            ranking_errors(table_qwd, some_qw, scale, symmetric).mean().backward()
            optimizer.step()
        return (vectors @ weight + bias).detach()


def pooled_states(model: Model, texts: Sequence[str]) -> dict[str, Tensor]:
    """The states of each text, pooled in each way."""
    found: dict[str, list[Tensor]] = {name: [] for name in POOLINGS}
    for start in range(0, len(texts), 512):
        for states in model.hidden(texts[start : start + 512]):
            for name, vector in zip(POOLINGS, (states.mean(0), states[0], states.amax(0)), strict=True):
                found[name].append(vector)
    return {name: torch.stack(vectors) for name, vectors in found.items()}


def lines_of(trials: Trials) -> list[list[object]]:
    """All trials."""
    both = tuple(trials.learned)
    lines = [trials.measured(f"{name}, as it is", trials.pooled[name]) for name in POOLINGS]
    centred, axes, variances = trials.centred("mean")
    lines.append(trials.measured("mean, centred", centred))
    for power in (0.25, 0.5):
        whitened = centred @ axes @ torch.diag(variances**-power) @ axes.T
        lines.append(trials.measured(f"mean, centred, variances to the power of {1 - 2 * power:g}", whitened))
    for scale in (10, 20, 30, 50, 100):
        lines.append(trials.measured(f"mean, layer, scale {scale}", trials.trained("mean", scale, both)))
    lines.append(trials.measured("the same at 20, symmetric", trials.trained("mean", 20, both, symmetric=True)))
    lines.append(trials.measured("the same, no hard negatives", trials.trained("mean", 20, both, negatives=False)))
    lines += [trials.measured(f"the same, {kind} alone", trials.trained("mean", 20, [kind])) for kind in both]
    lines += [trials.measured(f"{name}, layer, scale 20", trials.trained(name, 20, both)) for name in POOLINGS[1:]]
    return lines


def main() -> None:
    """Compute the states, then the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a model folder, or: default")
    parser.add_argument("--nli", type=Path, required=True, help="triplets of benchmarks/pairs.py")
    parser.add_argument("--questions", type=Path, required=True, help="triplets of benchmarks/pairs.py")
    parser.add_argument("--sts", type=Path, required=True, help="STS-B's dev split")
    parser.add_argument("--search", type=Path, required=True, help="questions on contexts, in SQuAD's form")
    parser.add_argument("--held", type=Path, action="append", required=True, help="texts: .txt, .jsonl, .tsv (text)")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", BertreeWarning)
    draw = random.Random(0)
    asked = [(example.question, example.context) for example in read_squad([options.search], impossible=False)]
    asked = draw.sample(asked, min(QUESTIONS, len(asked)))
    measured = {text for pair in asked for text in pair}
    learned: dict[str, list[tuple[str, ...]]] = {}
    for name, path in (("nli", options.nli), ("questions", options.questions)):
        rows = [
            row.texts for row in read([path], ColumnNames()) if len(row.texts) == 3 and row.texts[0] not in measured
        ]
        learned[name] = draw.sample(rows, min(ROWS, len(rows)))
    pairs, held = read([options.sts], ColumnNames()), sentences_of(options.held)
    texts = list(dict.fromkeys([*measured, *held, *(text for pair in pairs for text in pair.texts)]))
    texts = list(dict.fromkeys([*texts, *(text for rows in learned.values() for row in rows for text in row)]))
    numbers = {text: number for number, text in enumerate(texts)}
    trials = Trials(numbers, pooled_states(load(options.model), texts), learned, pairs, asked, held)
    page = f"{table(HEAD, lines_of(trials))}\n\n- {len(texts):,} texts; {environment()}\n"
    print(page)
    if options.table:
        options.table.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
