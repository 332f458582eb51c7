"""Generation, token by token: logits -> the next token of every sequence -> logits; and beam search.

A chosen token depends on the logits, the seed, the prompt and the number of the continuation alone. So a sequence is
continued in the same way whatever else is in its batch (up to rounding: a batch of another size may add numbers in
another order).

Beam search continues the best partial texts by every token at each step and keeps the best of all. A text that ends
leaves the search; texts are compared by their log-probability per token.

Shape letters: s sequences, b beams, v vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

from bertree.inference.causal.decoders import Decoder, NotFinite
from bertree.inference.causal.sampling import Sampling, draw_numbers

LANES = {"cpu": 32, "cuda": 256}  # sequences at once
LEAVE = {"cpu": 0.75, "cuda": 0.5}  # complete sequences leave the batch when at most this share continues
READ_EVERY = {"cpu": 1, "cuda": 16}  # steps between reads of the chosen tokens: on a GPU a read waits for them


@dataclass
class GeneratedSequence:
    """A prompt and the tokens that follow it."""

    prompt: Sequence[int]
    number: int  # which continuation of this prompt
    most: int  # tokens at most
    ids: list[int] = field(default_factory=list)
    ended: bool = False  # by the end token, which is not among the ids

    @property
    def complete(self) -> bool:
        """Whether nothing follows."""
        return self.ended or len(self.ids) >= self.most


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How tokens are chosen."""

    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    end: int | None = None  # the token after which a sequence is complete
    never: tuple[int, ...] = ()  # tokens that are not chosen
    vocabulary: int | None = None  # nor are ids from here on

    def banned(self, size: int) -> Tensor | None:
        """Return -inf for tokens that are never chosen, else 0 (v); None if tokens are drawn or penalized."""
        if self.sampling.temperature > 0 or self.sampling.penalty != 1:
            return None
        banned_v = torch.zeros(size)
        banned_v[list(self.never)] = -torch.inf
        if self.vocabulary is not None:
            banned_v[self.vocabulary :] = -torch.inf
        return banned_v

    def allow(self, logits_sv: Tensor) -> Tensor:
        """Return the logits of the vocabulary, with -inf (in place) for tokens that are never chosen."""
        logits_sv = logits_sv[:, : self.vocabulary]
        if self.never:
            logits_sv.index_fill_(1, _on_device(self.never, logits_sv.device), -torch.inf)
        return logits_sv


@lru_cache(maxsize=8)
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers, device=device)


Seen = Callable[[int, int], None]  # called with the number of a sequence and each of its tokens


@torch.inference_mode()
def continue_all(
    make: Callable[[], Decoder],
    sequences: Sequence[GeneratedSequence],
    choice: Choice,
    on_gpu: bool,
    seen: Seen | None = None,
) -> None:
    """Continue sequences until each is complete, in groups that suit the device."""
    device = "cuda" if on_gpu else "cpu"
    for start in range(0, len(sequences), LANES[device]):
        group = sequences[start : start + LANES[device]]
        shown = None if seen is None else lambda row, token, start=start: seen(start + row, token)
        for _ in _Group(make(), group, choice, device, shown).run():
            pass


@torch.inference_mode()
def continue_one(
    make: Callable[[], Decoder], sequence: GeneratedSequence, choice: Choice, on_gpu: bool
) -> Iterator[None]:
    """Continue a sequence by one token per iteration."""
    yield from _Group(make(), [sequence], choice, "cuda" if on_gpu else "cpu", lambda row, token: None).run()


class _Group:
    """Sequences that are continued together. Lane i continues `group[lanes[i]]`."""

    def __init__(
        self, decoder: Decoder, group: Sequence[GeneratedSequence], choice: Choice, device: str, seen: Seen | None
    ) -> None:
        self.decoder, self.group, self.choice, self.device, self.seen = decoder, group, choice, device, seen
        self.lanes = list(range(len(group)))
        self.steps = max(sequence.most for sequence in group)
        self.read_every = READ_EVERY[device] if seen is None else 1
        self.finite: Tensor | None = None  # whether all logits so far were; read with the tokens

    def run(self) -> Iterator[None]:
        """Continue them to their ends; yield whenever chosen tokens were added to them."""
        logits_sv = self._read_prompts()
        draws_sk, used_sv = self._draws(logits_sv.device), self._used(logits_sv)
        waiting: list[Tensor] = []
        for step in range(self.steps):
            finite = logits_sv.amax().isfinite()
            self.finite = finite if self.finite is None else self.finite & finite
            ids_s = self._choose(logits_sv, None if draws_sk is None else draws_sk[:, step], used_sv)
            waiting.append(ids_s)
            most = {self.group[row].most for row in self.lanes}
            if len(waiting) >= self.read_every or step + 1 in most:
                self._add_tokens(waiting)
                left = [lane for lane, row in enumerate(self.lanes) if not self.group[row].complete]
                yield
                if not left:
                    return
                if len(left) <= LEAVE[self.device] * len(self.lanes) or (
                    step + 1 in most and len(left) < len(self.lanes)
                ):
                    self.lanes = [self.lanes[lane] for lane in left]
                    self.decoder.keep(left)
                    ids_s = ids_s[left]
                    draws_sk, used_sv = (x if x is None else x[left] for x in (draws_sk, used_sv))
            logits_sv = self.decoder.step(ids_s)

    def _read_prompts(self) -> Tensor:
        """Read every prompt once and return the logits of each sequence's first token."""
        prompts = list(dict.fromkeys(tuple(sequence.prompt) for sequence in self.group))
        capacity = max(len(sequence.prompt) + sequence.most for sequence in self.group)
        logits_sv = self.decoder.start(prompts, capacity)
        if len(prompts) == len(self.group):
            return logits_sv
        rows = [prompts.index(tuple(sequence.prompt)) for sequence in self.group]
        self.decoder.keep(rows)
        return logits_sv[rows]

    def _choose(self, logits_sv: Tensor, draws_s: Tensor | None, used_sv: Tensor | None) -> Tensor:
        ids_s = self.choice.sampling.choose(self.choice.allow(logits_sv), () if draws_s is None else draws_s, used_sv)
        if used_sv is not None:
            used_sv.scatter_(1, ids_s[:, None], True)
        return ids_s

    def _add_tokens(self, waiting: list[Tensor]) -> None:
        """Add the tokens that were chosen since the last read to the sequences."""
        if self.finite is not None and not bool(self.finite):
            raise NotFinite
        for ids in torch.stack(waiting).tolist():
            for row, token in zip(self.lanes, ids, strict=True):
                sequence = self.group[row]
                if sequence.complete:
                    continue
                sequence.ended = token == self.choice.end
                if not sequence.ended:
                    sequence.ids.append(token)
                    if self.seen is not None:
                        self.seen(row, token)
        waiting.clear()

    def _draws(self, device: torch.device) -> Tensor | None:
        """Return the random numbers of each sequence (s x steps); None if none are needed."""
        if self.choice.sampling.temperature == 0:
            return None
        seed, steps = self.choice.seed, self.steps
        drawn = [draw_numbers(seed, sequence.prompt, sequence.number, steps) for sequence in self.group]
        return torch.tensor(drawn, dtype=torch.float64, device=device)

    def _used(self, logits_sv: Tensor) -> Tensor | None:
        """Return which tokens occur in each prompt (s x v); None without a penalty."""
        if self.choice.sampling.penalty == 1:
            return None
        used_sv = torch.zeros_like(logits_sv[:, : self.choice.vocabulary], dtype=torch.bool)
        for row, sequence in enumerate(self.group):
            used_sv[row, list(sequence.prompt)] = True
        return used_sv


@dataclass(frozen=True)
class _Finished:
    score: float  # log-probability per token
    ids: list[int]
    ended: bool


@torch.inference_mode()
def search(
    decoder: Decoder, prompt: Sequence[int], most: int, beams: int, count: int, choice: Choice
) -> list[GeneratedSequence]:
    """Return the `count` best continuations of a prompt, the best first, of at most `most` tokens."""
    logits_bv = decoder.start([prompt], len(prompt) + most)
    decoder.keep([0] * beams)
    logits_bv = logits_bv.repeat(beams, 1)
    scores_b = torch.full((beams,), -torch.inf, device=logits_bv.device)
    scores_b[0] = 0.0  # all beams are the same at first
    texts: list[list[int]] = [[] for _ in range(beams)]
    finished: list[_Finished] = []
    for step in range(1, most + 1):
        if not bool(logits_bv.amax().isfinite()):
            raise NotFinite
        chosen = _best(logits_bv, scores_b, texts, prompt, choice, 2 * beams)
        continuing = [(score, lane, token) for score, lane, token in chosen if token != choice.end][:beams]
        for score, lane, token in chosen[:beams]:
            if token == choice.end:
                finished.append(_Finished(score / step, texts[lane], True))
        texts = [[*texts[lane], token] for _, lane, token in continuing]
        finished = sorted(finished, key=lambda text: -text.score)[:count]
        if step == most or (len(finished) == count and finished[-1].score >= continuing[0][0] / step):
            break
        decoder.keep([lane for _, lane, _ in continuing])
        scores_b = torch.tensor([score for score, _, _ in continuing], device=scores_b.device)
        logits_bv = decoder.step(torch.tensor([token for _, _, token in continuing], device=scores_b.device))
    if step == most:
        finished += [_Finished(score / step, ids, False) for (score, _, _), ids in zip(continuing, texts, strict=True)]
    best = sorted(finished, key=lambda text: -text.score)[:count]
    return [GeneratedSequence(prompt, number, most, text.ids, text.ended) for number, text in enumerate(best)]


def _best(
    logits_bv: Tensor, scores_b: Tensor, texts: list[list[int]], prompt: Sequence[int], choice: Choice, count: int
) -> list[tuple[float, int, int]]:
    """Return the best continuations by one token: score, beam and token."""
    logits_bv = choice.allow(logits_bv)
    logs_bv = logits_bv.float().log_softmax(1)
    if choice.sampling.penalty != 1:
        used_bv = torch.zeros_like(logs_bv, dtype=torch.bool)
        for lane, ids in enumerate(texts):
            used_bv[lane, [*prompt, *ids]] = True
        logs_bv = choice.sampling.penalize(logs_bv, used_bv)
    totals = (logs_bv + scores_b[:, None]).flatten()
    best = totals.topk(min(count, len(totals)))
    width = logs_bv.shape[1]
    return [(s, i // width, i % width) for s, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
