"""Which control code, or given text after it, a text belongs to (CTRL's source attribution): by the likelihood that
it gives the text.

`Model.attribute` calls it. Every text is scored with every code and given text, so the cost is the product of all.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertree.console import bar, note
from bertree.errors import UserError, WrongArgument
from bertree.inference.causal.scoring import score
from bertree.inference.causal.texts import check_left_to_right, position_limit, prefix_ids
from bertree.inference.loaded import LoadedModel

# How likely codes are before a text is read: the same for all, a weight for each, or the documents of a token store.
Prior = Mapping[str, float] | str | Path


@dataclass(frozen=True)
class CodeScore:
    """A control code and how likely it is."""

    code: str
    probability: float  # of the code, given the text
    log_likelihood: float  # of the text, given the code, in nats
    loss: float  # minus the log-likelihood, per token
    given: str = ""  # text after the code


@dataclass(frozen=True)
class Attribution(Sequence[CodeScore]):
    """The control codes for a text, the most likely first."""

    text: str
    codes: list[CodeScore]
    tokens: int  # of the text that were predicted

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, index: int) -> CodeScore:  # type: ignore[override]
        return self.codes[index]

    def __repr__(self) -> str:
        shown = ", ".join(f"{each.given or each.code} {each.probability:.3f}" for each in self.codes[:5])
        return f"<attribution of {self.tokens} tokens: {shown}{', ...' if len(self.codes) > 5 else ''}>"


def attribute(
    model: LoadedModel,
    texts: Sequence[str],
    codes: Iterable[str] | None = None,
    prior: Prior = "uniform",
    given: Iterable[str] = (),
) -> list[Attribution]:
    """Rank the control codes of each text, each with every given text; all share packed batches."""
    check_left_to_right(model, "attribute")
    if not model.controls:
        raise UserError(f"{model.name}: was not trained with control codes, so it cannot attribute a text to one")
    chosen = list(dict.fromkeys(model.controls if codes is None else [codes] if isinstance(codes, str) else codes))
    if not chosen:
        raise WrongArgument("codes: give at least one control code, or leave it out to compare all")
    following = list(dict.fromkeys([given] if isinstance(given, str) else given)) or [""]
    candidates = [(code, text) for code in chosen for text in following]
    prefixes = [prefix_ids(model, code, text) for code, text in candidates]
    weights = [weight for weight in prior_weights(chosen, prior) for _ in following]
    tokenized = _tokenize(model, texts, max(map(len, prefixes)))
    rows = [(prefix, ids) for ids in tokenized for prefix in prefixes]
    with bar("tokens", sum(len(ids) for _, ids in rows), speed="tokens") as progress:
        scored = score(model, [prefix + ids for prefix, ids in rows], [len(p) for p, _ in rows], progress.advance)
    totals = [-float(tokens.losses.sum()) for tokens in scored]
    attributions = []
    for number, (text, ids) in enumerate(zip(texts, tokenized, strict=True)):
        likelihoods = totals[number * len(candidates) : (number + 1) * len(candidates)]
        joint = [likelihood + weight for likelihood, weight in zip(likelihoods, weights, strict=True)]
        evidence = max(joint) + math.log(sum(math.exp(value - max(joint)) for value in joint))
        scores = [
            CodeScore(code, math.exp(value - evidence), likelihood, -likelihood / len(ids), after)
            for (code, after), likelihood, value in zip(candidates, likelihoods, joint, strict=True)
        ]
        attributions.append(Attribution(text, sorted(scores, key=lambda each: -each.probability), len(ids)))
    return attributions


def prior_weights(codes: Sequence[str], prior: Prior) -> list[float]:
    """Return the logarithms of the codes' prior probabilities, up to a constant."""
    if prior == "uniform":
        return [0.0 for _ in codes]
    if not isinstance(prior, Mapping):
        from bertree.data.store import Store  # loading a model does not need the package data

        controls = Store.open(prior).controls
        if not controls:
            raise UserError(f"{prior}: the store has no control codes, so it says nothing about how frequent they are")
        prior = {control.code: control.documents for control in controls}
    for code in codes:
        weight = prior.get(code)
        if not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise UserError(f"prior: the code '{code}' needs a weight above 0, not {weight!r}")
    return [math.log(prior[code]) for code in codes]


def _tokenize(model: LoadedModel, texts: Sequence[str], before: int) -> list[list[int]]:
    """Return the tokens of texts, truncated to what fits after a code of `before` tokens."""
    limit, cut, tokenized = position_limit(model.architecture), 0, []
    for text, encoding in zip(texts, model.required_tokenizer.encode_plain(texts), strict=True):
        ids = list(encoding.ids)
        if not ids:
            raise UserError(f"attribute: a text has no tokens: {text[:40]!r}")
        if limit is not None and len(ids) > limit - before:
            cut, ids = cut + 1, ids[: limit - before]
        tokenized.append(ids)
    if cut:
        note(f"{cut} of {len(texts)} texts cut to {limit} tokens, the positions of {model.name}")
    return tokenized
