"""How the next token is chosen from the logits: temperature, top-k, top-p and CTRL's penalty for repetition.

Each choice uses one random number, a hash of the seed, the prompt and the step. So a text's continuation does not
depend on the rest of its batch. generation.py and continuation.py call it.

Shape letters: s sequences, v vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertree import keyed_random
from bertree.errors import UserError

HOTTEST = 1e30  # temperatures are clamped to this and its inverse: float32 cannot divide by others
MOST_PENALTY = 1000.0  # far beyond useful values; CTRL has 1.2


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. Temperature 0 always takes the most likely token."""

    temperature: float = 1.0
    top_k: int = 0  # only the k most likely tokens; 0: all
    top_p: float = 1.0  # only the most likely tokens that together have this probability
    penalty: float = 1.0  # above 1: tokens that occurred before are less likely

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature: must be 0 or more, not {self.temperature}")
        if self.top_k < 0:
            raise UserError(f"top_k: must be 0 (all tokens) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p: must be above 0 and at most 1, not {self.top_p}")
        if not 1 / MOST_PENALTY <= self.penalty <= MOST_PENALTY:
            bounds = f"{1 / MOST_PENALTY:g} to {MOST_PENALTY:g}"
            raise UserError(f"penalty: must be from {bounds}, not {self.penalty}; 1 is none, CTRL has 1.2")

    def probabilities(self, logits_sv: Tensor, seen_sv: Tensor | None = None) -> Tensor:
        """Return the probability with which each token is chosen (s x v). `seen_sv`: tokens that occurred before."""
        logits_sv = self.penalize(logits_sv.float(), seen_sv)
        if self.temperature == 0:
            return torch.zeros_like(logits_sv).scatter_(1, logits_sv.argmax(1, keepdim=True), 1.0)
        logits_sv = logits_sv / min(max(self.temperature, 1 / HOTTEST), HOTTEST)
        if 0 < self.top_k < logits_sv.shape[1]:
            least_s1 = logits_sv.topk(self.top_k).values[:, -1:]
            logits_sv = logits_sv.masked_fill(logits_sv < least_s1, -math.inf)
        if self.top_p < 1:
            logits_sv = self._keep_most_likely(logits_sv)
        return logits_sv.softmax(1)

    def choose(self, logits_sv: Tensor, draws_s: Sequence[float] | Tensor, seen_sv: Tensor | None = None) -> Tensor:
        """Choose the next token of each sequence (s), given a number in [0, 1) for each."""
        if self.temperature == 0:
            return most_likely(self.penalize(logits_sv.float(), seen_sv))
        cumulative_sv = self.probabilities(logits_sv, seen_sv).double().cumsum(1)
        # The last sum may be a little less than 1, and a token of probability 0 must not be chosen.
        draws_s = torch.as_tensor(draws_s, dtype=torch.float64, device=logits_sv.device)
        drawn_s1 = draws_s[:, None] * cumulative_sv[:, -1:]
        # Logits that are not finite give no valid token; the caller refuses them, but the device must not fail first.
        return torch.searchsorted(cumulative_sv, drawn_s1, right=True)[:, 0].clamp(max=logits_sv.shape[1] - 1)

    def penalize(self, logits_sv: Tensor, seen_sv: Tensor | None) -> Tensor:
        """Divide the logits of tokens that occurred before by the penalty; negative ones are multiplied instead."""
        if self.penalty == 1 or seen_sv is None:
            return logits_sv
        lower_sv = torch.where(logits_sv > 0, logits_sv / self.penalty, logits_sv * self.penalty)
        return torch.where(seen_sv, lower_sv, logits_sv)

    def _keep_most_likely(self, logits_sv: Tensor) -> Tensor:
        """Drop the tokens beyond the most likely ones that together have probability `top_p`; one always remains."""
        ordered_sv, ids_sv = logits_sv.sort(dim=1, descending=True, stable=True)
        likelier_sv = ordered_sv.softmax(1).cumsum(1).roll(1, 1)  # probability of all tokens likelier than each
        likelier_sv[:, 0] = -1.0  # the most likely token is below any `top_p`, however small
        dropped_sv = torch.zeros_like(likelier_sv, dtype=torch.bool).scatter_(1, ids_sv, likelier_sv >= self.top_p)
        return logits_sv.masked_fill(dropped_sv, -math.inf)


def most_likely(logits_sv: Tensor) -> Tensor:
    """Return the most likely token of each sequence (s). On a CPU numpy finds it five times as fast as torch."""
    return logits_sv.argmax(1) if logits_sv.is_cuda else torch.from_numpy(logits_sv.numpy().argmax(1))


def draw_numbers(seed: int, prompt_ids: Sequence[int], number: int, steps: int) -> list[float]:
    """Return a number in [0, 1) for each step of continuation `number` of a prompt."""
    key = keyed_random.key(seed, "generate", number, *prompt_ids)
    # The upper 53 of 64 bits: all that a float64 can hold.
    bits: list[float] = (keyed_random.bits(key, np.arange(steps)) >> np.uint64(11)).astype(np.float64).tolist()
    return [value / 2**53 for value in bits]
