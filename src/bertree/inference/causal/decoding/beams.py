"""Beam search: the likeliest continuations of a prompt that a search of some width finds.

Every step continues the best partial texts by every token and keeps the best of all. A text that ends leaves the
search; texts are compared by their log-probability per token.

Shape letters: b beams, v vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertree.inference.causal.decoding.decoder import Decoder
from bertree.inference.causal.decoding.loop import Choice, Continued


@dataclass(frozen=True)
class _Found:
    score: float  # log-probability per token
    ids: list[int]
    ended: bool


@torch.inference_mode()
def search(
    decoder: Decoder, prompt: Sequence[int], most: int, beams: int, count: int, choice: Choice
) -> list[Continued]:
    """Return the `count` best continuations of a prompt, the best first, of at most `most` tokens."""
    logits_bv = decoder.start([prompt], len(prompt) + most)
    decoder.keep([0] * beams)
    logits_bv = logits_bv.repeat(beams, 1)
    scores_b = torch.full((beams,), -torch.inf, device=logits_bv.device)
    scores_b[0] = 0.0  # all beams are the same at first
    texts: list[list[int]] = [[] for _ in range(beams)]
    found: list[_Found] = []
    for step in range(1, most + 1):
        chosen = _best(logits_bv, scores_b, texts, prompt, choice, 2 * beams)
        going = [(score, lane, token) for score, lane, token in chosen if token != choice.end][:beams]
        for score, lane, token in chosen[:beams]:
            if token == choice.end:
                found.append(_Found(score / step, texts[lane], True))
        texts = [[*texts[lane], token] for _, lane, token in going]
        found = sorted(found, key=lambda one: -one.score)[:count]
        if step == most or (len(found) == count and found[-1].score >= going[0][0] / step):
            break
        decoder.keep([lane for _, lane, _ in going])
        scores_b = torch.tensor([score for score, _, _ in going], device=scores_b.device)
        logits_bv = decoder.step(torch.tensor([token for _, _, token in going], device=scores_b.device))
    if step == most:
        found += [_Found(score / step, ids, False) for (score, _, _), ids in zip(going, texts, strict=True)]
    best = sorted(found, key=lambda one: -one.score)[:count]
    return [Continued(prompt, number, most, one.ids, one.ended) for number, one in enumerate(best)]


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
    both = (logs_bv + scores_b[:, None]).flatten()
    best = both.topk(min(count, len(both)))
    width = logs_bv.shape[1]
    return [(s, i // width, i % width) for s, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]
