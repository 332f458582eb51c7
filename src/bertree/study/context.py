"""Relative effective context length: how many tokens back a model reads (Dai et al., 2019, Transformer-XL, Appendix C).

A longer context counts for a model as far as it improves on the best model of a group with the shorter one. The length
grows in equal steps, as long as each lowers the perplexity by 1 % or more. It is computed for shares of the tokens:
those that the group predicts worst with the shorter context.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from bertree.errors import UserError
from bertree.inference.causal.scoring import Losses, score
from bertree.inference.causal.texts import TextMarks, check_left_to_right, position_limit
from bertree.inference.load import load
from bertree.study.timing import read_documents

GAIN = 0.01  # of a step that counts
SHARES = (10, 50, 100)  # percent of the tokens


def context_lengths(
    models: Sequence[str], own: int, data: Path, device: str, step: int = 64, longest: int = 512, tokens: int = 1000
) -> dict[str, float]:
    """Return the length of one model of a group in tokens, for each share of so many tokens of a text file."""
    contexts = range(step, longest + 1, step)
    losses_mct = np.stack([token_losses(model, device, data, contexts, tokens) for model in models])
    lengths = {f"length_{share}": float(effective_length(losses_mct, own, contexts, share)) for share in SHARES}
    return lengths | {"tokens": float(losses_mct.shape[2])}


def effective_length(losses_mct: Losses, own: int, contexts: Sequence[int], share: int) -> int:
    """Return the length from losses of each model (m) with each context (c) at each token (t)."""
    for short in range(len(contexts) - 1):
        best_t = losses_mct[:, short].min(0)
        hardest = np.argsort(-best_t)[: max(1, len(best_t) * share // 100)]
        better_t = np.minimum(best_t, losses_mct[own, short + 1])
        if 1 - np.exp(better_t[hardest].mean() - best_t[hardest].mean()) < GAIN:
            return contexts[short]
    return contexts[-1]


@lru_cache(maxsize=32)  # every model of a group is compared with all
def token_losses(name: str, device: str, data: Path, contexts: range, tokens: int) -> Losses:
    """Return the losses of tokens at equal distances (contexts x tokens), each predicted from so many tokens before it,
    or from as many as the model has positions for."""
    model = load(name, device=device)
    check_left_to_right(model, "context")
    tokenizer = model.required_tokenizer
    ids = [token for encoding in tokenizer.encode_plain(read_documents(data, False)) for token in encoding.ids]
    if len(ids) <= contexts[-1]:
        raise UserError(f"context: the text has {len(ids):,} tokens, too few for a context of {contexts[-1]:,}")
    before = TextMarks.of(tokenizer, model.architecture).before
    most = (position_limit(model.architecture) or len(ids)) - len(before) - 1
    ends = np.unique(np.linspace(contexts[-1], len(ids) - 1, tokens).astype(int)).tolist()
    windows = [[*before, *ids[end - min(context, most) : end + 1]] for context in contexts for end in ends]
    scored = score(model, windows, [len(window) - 1 for window in windows])
    return np.array([window.losses[0] for window in scored]).reshape(len(contexts), len(ends))
