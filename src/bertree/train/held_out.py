"""Evaluation on held-out text: the loss and other figures, and a few filled masks for people to read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from bertree.batch import Batch, PretrainingLabels
from bertree.data.preview import token_names
from bertree.data.stream import Stream
from bertree.model.network import Network
from bertree.objectives.objective import WeightedTerms
from bertree.objectives.pretraining import TERMS

Autocast = Callable[[], AbstractContextManager[object]]  # the precision in which a network is computed
SAMPLES, SHORT, LONG = 4, 12, 48  # texts shown, and how long they may be


class HeldOutText(Protocol):
    """Text that is evaluated in batches."""

    def one_epoch(self) -> Iterator[Batch]:
        """Yield all of it, always the same batches."""


@dataclass(frozen=True)
class HeldOutQuestion:
    """Terms of the loss and the text they are evaluated on."""

    terms: WeightedTerms
    text: HeldOutText
    tokens: int | None  # how much of it is read; None: all


def evaluate_questions(
    network: Network, questions: Sequence[HeldOutQuestion], autocast: Autocast, device: torch.device | None = None
) -> dict[str, float]:
    """Return the figures of all questions; `loss` is the weighted sum over all of them."""
    figures = {"loss": 0.0}
    for question in questions:
        part = evaluate_held_out(network, question.terms, question.text, question.tokens, autocast, device)
        figures |= part | {"loss": figures["loss"] + part["loss"]}
    return figures


def evaluate_held_out(
    network: Network,
    objective: WeightedTerms,
    text: HeldOutText,
    tokens: int | None,
    autocast: Autocast,
    device: torch.device | None = None,
) -> dict[str, float]:
    """Return the mean of each term over the first `tokens` of a text, or all of it, from an empty memory.

    Each term adds its accuracy and its other figures, for example the perplexity of `mlm`. `device`: where the network
    is computed, if not where its weights are kept.
    """
    device = device or next(network.parameters()).device
    sums: dict[str, list[float]] = {name: [0.0, 0.0, 0.0] for name in objective.terms}
    with _evaluation_mode(network):
        read, state = 0, None
        for batch in text.one_epoch():
            counts = objective.counts(batch)
            with autocast():
                losses, state = objective(network, batch.to(device), state if batch.continuation else None)
            for name, loss in losses.items():
                assert loss.correct is not None, "correct answers are counted where there are no gradients"
                for index, value in enumerate((float(loss.sum), float(loss.correct), counts[name])):
                    sums[name][index] += value
            read += batch.ids.numel()
            if tokens is not None and read >= tokens:
                break
    figures = {"loss": 0.0}
    for name, (total, correct, count) in sums.items():
        figures[name] = total / max(1, count)
        figures["loss"] += objective.weights[name] * figures[name]
        figures[TERMS[name].accuracy] = correct / max(1, count)
    for name in objective.terms:
        figures |= TERMS[name].more_figures(figures[name])
    return figures


class MaskSamples:
    """A few short held-out texts with masks, which show what the model has learned."""

    def __init__(self, stream: Stream) -> None:
        self._name = token_names(stream.store)
        self._stream = stream
        self._mask = stream.store.special["mask"]
        self.examples = list(self._find())

    def _find(self) -> Iterator[Batch]:
        count, examples = 0, self._stream.examples
        tries = [k * examples // SAMPLES + extra for extra in range(10) for k in range(SAMPLES)]  # all over the text
        for number in dict.fromkeys(number for number in tries if number < examples):
            example = self._stream.example(number)
            if example.ids.numel() < SHORT:
                continue
            if example.ids.numel() > LONG:
                example = _truncate(example, LONG)
            masked, _ = PretrainingLabels.of(example).predicted
            if bool((example.ids[masked] == self._mask).any()):
                yield example
                count += 1
            if count == SAMPLES:
                return

    def __call__(
        self, network: Network, autocast: Autocast = nullcontext, device: torch.device | None = None
    ) -> list[dict[str, Any]]:
        """Return each text with its masks, the true tokens and the network's predictions."""
        device = device or next(network.parameters()).device
        samples = []
        with _evaluation_mode(network):
            for example in self.examples:
                masked, targets = PretrainingLabels.of(example).predicted
                is_mask = example.ids[masked] == self._mask
                chosen, gold = masked[is_mask], targets[is_mask]
                with autocast():
                    logits = network.mask_logits(network(example.to(device)), chosen.to(device))
                best = logits.float().softmax(-1).max(-1)
                masks = [
                    {"gold": self._name(g), "predicted": self._name(p), "probability": round(chance, 4)}
                    for g, p, chance in zip(gold.tolist(), best.indices.tolist(), best.values.tolist(), strict=True)
                ]
                samples.append({"text": self._text(example), "masks": masks})
        return samples

    def _text(self, example: Batch) -> str:
        """Return a readable text; where masking put another token, the true one is shown."""
        masked, targets = PretrainingLabels.of(example).predicted
        ids = example.ids.clone()
        stays = ids[masked] != self._mask
        ids[masked[stays]] = targets[stays]
        words = []
        special = set(self._stream.store.special.values())
        for token in ids.tolist():
            if token == self._mask:
                words.append(" [MASK]")
            elif token not in special:
                gap = " " if self._stream.store.word_start[token] else ""
                words.append(gap + self._name(token))
        return "".join(words).strip()


def _truncate(example: Batch, length: int) -> Batch:
    """Return the first tokens of an example of one sequence."""
    masked, targets = PretrainingLabels.of(example).predicted
    keep = masked < length
    return Batch(
        ids=example.ids[:length],
        positions=example.positions[:length],
        segments=example.segments[:length],
        cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
        max_seqlen=length,
        labels=PretrainingLabels(masked[keep], targets[keep]),
    )


@contextmanager
def _evaluation_mode(network: Network) -> Iterator[None]:
    """Switch off gradients and dropout while the block runs."""
    training = network.training
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        network.train(training)
