"""The terms of the pretraining loss, each with everything the rest of the package needs to know about it.

To add an objective, write a term and add it to `TERMS`, or in a program of your own to `register_objective`: its weight
becomes a setting (`objective.NAME`), the network gets its head, and training, evaluation and reports know its name.
"""

import math
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from bertree.batch import IGNORED, Batch, PretrainingLabels
from bertree.errors import UserError
from bertree.model.network import Network
from bertree.objectives.objective import Loss, Term, WeightedTerms, cross_entropy

EVALUATED = 8192  # tokens whose logits exist at the same time in evaluation: 1 GB with a vocabulary of 30,000


class PretrainingTerm(Term, Protocol):
    """A term of the pretraining loss."""

    name: str  # of its weight in a recipe and of its loss in the metrics
    label: str  # of its loss, for people
    weight: float  # unless a recipe sets another
    head: str  # of the network
    targets: str  # the field of `PretrainingLabels` that holds the gold labels; two terms cannot share one
    accuracy: str  # name of its accuracy in the metrics
    accuracy_label: str  # for people
    format: str  # ending of the names of the data formats that provide the targets; "": all do

    def more_figures(self, loss: float) -> dict[str, float]:
        """Return what evaluation reports in addition to mean loss and accuracy."""


PARTS = (*PretrainingTerm.__annotations__, "count", "loss", "more_figures")


class MaskedTokens:
    """MLM, LM, PLM: predict the masked tokens, the next ones, or some in a random order; the data stream chooses which.
    The head computes only those."""

    name, label, weight, head, targets = "mlm", "MLM loss", 1.0, "mask", "targets"
    accuracy, accuracy_label, format = "accuracy", "accuracy", ""

    def count(self, batch: Batch) -> int:
        """Count the tokens to predict."""
        _, targets_m = PretrainingLabels.of(batch).predicted
        return int((targets_m != IGNORED).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy over the vocabulary; the mean of both directions, if a network reads in two."""
        masked_m, targets_m = network.encoder.predictions(batch, *PretrainingLabels.of(batch).predicted)
        readers = network.encoder.readers
        if torch.is_grad_enabled():
            return Loss(network.mask_loss(hidden_th, masked_m, targets_m) / readers, None)
        total, correct = hidden_th.new_zeros((), dtype=torch.float32), targets_m.new_zeros(())
        for block_m, block_targets_m in zip(masked_m.split(EVALUATED), targets_m.split(EVALUATED), strict=True):
            loss = cross_entropy(network.mask_logits(hidden_th, block_m), block_targets_m)
            total, correct = total + loss.sum, correct + loss.correct  # type: ignore[operator]
        return Loss(total / readers, correct if readers == 1 else correct / readers)

    def more_figures(self, loss: float) -> dict[str, float]:
        """Return the perplexity."""
        return {"perplexity": math.exp(min(loss, 700.0))}  # above 709 it would overflow


class SentencePair:
    """NSP or SOP: predict whether two segments are as they stood in the text. The data decides which of the two."""

    weight, head, targets, accuracy_label = 0.0, "pair", "pairs", "pair accuracy"

    def __init__(self, name: str) -> None:
        self.name, self.label, self.accuracy, self.format = name, f"{name.upper()} loss", f"{name}_accuracy", name

    def count(self, batch: Batch) -> int:
        """Count the pairs that have a label."""
        return int((_pairs(batch) != IGNORED).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy over two classes."""
        return cross_entropy(network.class_logits("pair", hidden_th, batch), _pairs(batch))

    def more_figures(self, loss: float) -> dict[str, float]:
        """Return nothing more."""
        return {}


def _pairs(batch: Batch) -> Tensor:
    pairs_s = PretrainingLabels.of(batch).pairs
    assert pairs_s is not None, "the format must provide pairs"
    return pairs_s


TERMS: dict[str, PretrainingTerm] = {
    term.name: term for term in (MaskedTokens(), SentencePair("nsp"), SentencePair("sop"))
}
WEIGHTS = {name: term.weight for name, term in TERMS.items()}
LABELS = {name: term.label for name, term in TERMS.items()} | {
    term.accuracy: term.accuracy_label for term in TERMS.values()
}
# The names of the token loss where tokens are not masked, by the setting data.masking.
UNMASKED_LABELS = {"next": {"mlm": "LM loss"}, "permutation": {"mlm": "PLM loss"}}
LABELS["lm"] = "LM loss"  # that fine-tuning may add to a task's loss (objectives/supervised.py)
BUILT_IN = frozenset((*LABELS, "ce", "cos", "hidden", "relation", "vector"))  # with those of a teacher
OwnTerm = TypeVar("OwnTerm", bound=type)


def register_objective(objective: OwnTerm) -> OwnTerm:
    """Make a pretraining objective known by its name in this process: its weight is the setting `objective.NAME`, which
    is 0 unless a recipe sets it. Works as a decorator.

    The class is a `PretrainingTerm`, most simply a subclass of `MaskedTokens` with a `name` and a `loss`. Where there
    are no gradients, `loss` also counts the correct predictions."""
    title, kind = objective.__name__, vars(objective)
    name = kind.get("name")
    if not isinstance(name, str) or not name.isidentifier():
        raise UserError(f"{title}: name: must be a word, the NAME of the setting objective.NAME, not {name!r}")
    if name in BUILT_IN:
        raise UserError(f"{name}: there is such an objective already; choose another name")
    names = {"label": f"{name} loss", "accuracy": f"{name}_accuracy", "accuracy_label": f"{name} accuracy"}
    for field, value in ({"weight": 0.0} | names).items():
        if field not in kind:
            setattr(objective, field, value)
    try:
        term: Any = objective()
    except TypeError as error:
        raise UserError(f"{title}: cannot be created without arguments ({error})") from None
    missing = [part for part in PARTS if not hasattr(term, part)]
    if missing:
        raise UserError(f"{title}: has no {', '.join(missing)}; a subclass of MaskedTokens has all but the name")
    TERMS[name], WEIGHTS[name] = term, float(term.weight)
    LABELS.update({name: term.label, term.accuracy: term.accuracy_label})
    return objective


def pretraining_objective(**weights: float) -> WeightedTerms:
    """Return the weighted sum of terms; one that is left out, or has weight 0, is not computed."""
    used = {name: weight for name, weight in weights.items() if weight}
    return WeightedTerms({name: TERMS[name] for name in used}, used)
