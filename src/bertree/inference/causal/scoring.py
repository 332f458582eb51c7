"""The loss of every token of sequences, given the tokens before it: sequence by sequence, or with a memory.

With a memory (Transformer-XL) documents are read segment by segment, and what was computed for earlier segments is not
computed again.

`attribute` ranks control codes, or texts given after them, by the likelihood that they give a text (CTRL's source
attribution). Every text is scored with every code and given text, so the cost is the product of all.

Shape letters: t tokens, h width, m predicted tokens, v vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertree.batch import Batch, Continuation
from bertree.console import bar, note
from bertree.errors import UserError, WrongArgument
from bertree.inference.causal.texts import check_left_to_right, position_limit, prefix_ids, reading_network
from bertree.inference.inputs import batch_by_length, map_jobs
from bertree.inference.loaded import LoadedModel
from bertree.model.encoder import State
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder

Losses = NDArray[np.float64]
# Tokens whose logits are computed at once: those of 50,000 entries take 50 MB, and 3 GB on a GPU.
TOKENS = {"cpu": 256, "cuda": 16384}
# How likely codes are before a text is read: the same for all, a weight for each, or the documents of a token store.
Prior = Mapping[str, float] | str | Path


@dataclass(frozen=True)
class ScoredTokens:
    """The predicted tokens of a sequence."""

    losses: Losses  # in nats
    right: NDArray[np.bool_]  # whether each is the most likely token
    first_right: bool = False  # whether the first is, among tokens that may be predicted


def score(
    model: LoadedModel,
    sequences: Sequence[Sequence[int]],
    first: Sequence[int],
    advance: Callable[[int], None] = lambda count: None,
    never: Sequence[int] = (),
) -> list[ScoredTokens]:
    """Return the losses of each sequence's tokens from `first` on, which must be 1 or more. Tokens are in the order in
    which the model reads.

    Sequences share packed batches. `advance` is called with the number of tokens that are done. `never`: tokens that
    `first_right` leaves out of the candidates."""
    device, network = model.device, reading_network(model)

    @torch.inference_mode()
    def work(rows: list[int]) -> tuple[list[int], list[ScoredTokens]]:
        batch = Batch.pack([sequences[row] for row in rows])
        inside_t, of_t = batch.positions, batch.sequence_ids
        first_s = torch.tensor([first[row] for row in rows])
        target_m = (inside_t >= first_s[of_t]).nonzero()[:, 0]
        counts = torch.bincount(of_t[target_m], minlength=len(rows)).tolist()
        batch, target_m = batch.to(device), target_m.to(device)
        hidden_th = network(batch)
        losses_m, right_m = token_losses(network, hidden_th, target_m - 1, batch.ids[target_m])
        scored = split_scores(losses_m, right_m, counts)
        if never:
            first_s = (batch.first + first_s.to(device)).long()
            logits_sv = network.mask_logits(hidden_th, first_s - 1)
            logits_sv[:, list(never)] = -torch.inf
            chosen = (logits_sv.argmax(1) == batch.ids[first_s]).tolist()
            scored = [replace(tokens, first_right=right) for tokens, right in zip(scored, chosen, strict=True)]
        return rows, scored

    by_row: dict[int, ScoredTokens] = {}
    with model.evaluating():
        for rows, scored in map_jobs(work, batch_by_length(list(map(len, sequences)), device), device):
            by_row.update(zip(rows, scored, strict=True))
            advance(sum(len(tokens.losses) for tokens in scored))
    return [by_row[row] for row in range(len(sequences))]


def token_losses(network: Network, hidden_th: Tensor, chosen_m: Tensor, targets_m: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of each target, predicted from a chosen token, and whether it is the most likely one (each m)."""
    size = TOKENS["cuda" if hidden_th.is_cuda else "cpu"]
    losses, right = [], []
    for rows_m, target_m in zip(chosen_m.split(size), targets_m.split(size), strict=True):
        logits_mv = network.mask_logits(hidden_th, rows_m).float()
        losses.append(F.cross_entropy(logits_mv, target_m, reduction="none"))
        right.append(logits_mv.argmax(1) == target_m)
    if not losses:
        return hidden_th.new_zeros(0), targets_m.new_zeros(0, dtype=torch.bool)
    return torch.cat(losses), torch.cat(right)


@torch.inference_mode()
def token_logs(
    model: LoadedModel, ids: Sequence[int], first: int, k: int
) -> list[tuple[float, list[tuple[int, float]]]]:
    """Return the log-probability of each token from `first` on, which must be 1 or more, and the k likeliest tokens in
    its place with theirs."""
    network, size = reading_network(model), TOKENS["cuda" if model.device.type == "cuda" else "cpu"]
    logs: list[tuple[float, list[tuple[int, float]]]] = []
    with model.evaluating():
        batch = Batch.pack([ids]).to(model.device)
        hidden_th = network(batch)
        for rows_m in torch.arange(first - 1, len(ids) - 1, device=model.device).split(size):
            logs_mv = network.mask_logits(hidden_th, rows_m).float().log_softmax(1)
            own_m = logs_mv.gather(1, batch.ids[rows_m + 1].long()[:, None])[:, 0].tolist()
            best = logs_mv.topk(min(k, logs_mv.shape[1]))
            likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
            pairs = (list(zip(ids, values, strict=True)) for ids, values in likeliest)
            logs += zip(own_m, pairs, strict=True)
    return logs


def split_scores(losses_m: Tensor, right_m: Tensor, counts: Sequence[int]) -> list[ScoredTokens]:
    """Split the scores of a batch by sequence."""
    ends = np.cumsum(counts)[:-1]
    losses = np.split(losses_m.double().cpu().numpy(), ends)
    right = np.split(right_m.cpu().numpy(), ends)
    return [ScoredTokens(*parts) for parts in zip(losses, right, strict=True)]


MOST_MEMORY = 1_000_000
SEGMENT = 128  # tokens
LANES = 32  # documents at once
Ints = NDArray[np.int64]


def check_memory(model: LoadedModel, memory: int | None) -> int:
    """Return the length of the memory, in tokens; UserError if the model cannot have one."""
    if getattr(model.architecture, "positions", "") != "relative":
        raise UserError(
            f"memory: {model.name} has no relative positions, so it cannot read on from a memory; leave it out, and "
            "give `context` and `stride`"
        )
    length = memory if memory is not None else int(getattr(model.architecture, "memory", 0))
    if length < 1:
        raise UserError(f"memory: {model.name} was trained without one; give its length in tokens, 1 or more")
    if length > MOST_MEMORY:
        raise UserError(f"memory: must be at most {MOST_MEMORY:,} tokens, not {length:,}")
    return length


def score_segments(
    model: LoadedModel,
    documents: Sequence[Sequence[int]],
    start: Sequence[int],
    memory: int,
    segment: int,
    advance: Callable[[int], None],
) -> tuple[Losses, Ints]:
    """Return the loss of every token of documents, and the number of tokens each was predicted from.

    Documents with the same number of segments are read together, each in its own lane.
    """
    lines = [[*start, *ids] for ids in documents]
    lines = [line for line in lines if len(line) > 1]
    count = lambda line: -(-(len(line) - 1) // segment)  # noqa: E731  the last token is predicted, not read
    losses, contexts = [], []
    for _, group in groupby(sorted(lines, key=count), count):
        together = list(group)
        for first in range(0, len(together), LANES):
            for segment_losses, context in _read(model, together[first : first + LANES], len(start), memory, segment):
                losses.append(segment_losses)
                contexts.append(context)
                advance(len(segment_losses))
    return np.concatenate(losses), np.concatenate(contexts)


@torch.inference_mode()
def _read(
    model: LoadedModel, lines: Sequence[Sequence[int]], skip: int, memory: int, segment: int
) -> Iterator[tuple[Losses, Ints]]:
    """Yield losses and numbers of tokens seen of each segment; nothing predicts one of the first `skip` tokens."""
    network = model.network
    assert isinstance(network.encoder, TransformerEncoder)
    state: State | None = network.encoder.start_memory(len(lines), memory)
    lanes = torch.arange(len(lines))
    for begin in range(0, max(map(len, lines)) - 1, segment):
        read = [line[begin : min(begin + segment, len(line) - 1)] for line in lines]
        wanted = np.concatenate([line[begin + 1 : begin + 1 + segment] for line in lines])
        position = np.concatenate([np.arange(len(ids)) for ids in read])
        continuation = Continuation(lanes, torch.full((len(lines),), begin == 0), len(lines))
        batch = replace(Batch.pack(read), continuation=continuation).to(model.device)
        with model.evaluating():
            output = network.encode(batch, state)
            chosen = np.flatnonzero(begin + position + 1 >= skip)
            chosen_m = torch.from_numpy(chosen).to(model.device)
            targets_m = torch.from_numpy(wanted[chosen]).to(model.device)
            losses_m, _ = token_losses(network, output.hidden, chosen_m, targets_m)
        state = output.state
        yield losses_m.double().cpu().numpy(), (position + 1 + min(begin, memory))[chosen]


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
