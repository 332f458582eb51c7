"""What studies measure of a trained model beside the figures of the verbs.

**A linear probe for sentence pairs**, of a model that was not trained with them: logistic regression on states of the
frozen model, that of the token which stands for the sequence, beside the mean of all tokens. It is fitted on pairs of
the training documents and scored on pairs of the held-out ones, which are those that `evaluate` reads.

**Relative effective context length**: how many tokens back a model reads (Dai et al., 2019, Appendix C).
A longer context counts for a model as far as it improves on the best model of a group with the shorter one. The length
grows in equal steps, as long as each lowers the perplexity by 1 % or more. It is computed for shares of the tokens:
those that the group predicts worst with the shorter context.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertree.batch import PretrainingLabels
from bertree.data.held_out import split_held_out
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.finetuning.linear_head import fit_classifier
from bertree.finetuning.store_evaluation import BATCH_TOKENS, HELD_OUT_SHARE, LENGTH, SEED, TOKENS
from bertree.inference.causal.scoring import Losses, score
from bertree.inference.causal.texts import TextMarks, check_left_to_right, position_limit
from bertree.inference.load import load
from bertree.inference.model import Model
from bertree.model.pooling import mean_states
from bertree.study.timing import read_documents
from bertree.tasks.batches import inference_autocast

TRAINING_PAIRS = 4096  # of a probe
PROBE = "_probe"  # ends the name of a figure that says a probe has made the others
GAIN = 0.01  # of a step of the context length that counts
SHARES = (10, 50, 100)  # percent of the tokens


@torch.no_grad()
def probe_pairs(model: Model, objective: str, store: Path) -> dict[str, float]:
    """Return the accuracy of a probe on pairs (nsp or sop), marked as such."""
    train, held_out = split_held_out(Store.open(store), HELD_OUT_SHARE, min_documents=2 if objective == "nsp" else 1)
    vectors, labels = _states(model, objective, train, pairs=TRAINING_PAIRS)
    with torch.enable_grad():
        head = fit_classifier(vectors, labels, 2)
    vectors, labels = _states(model, objective, held_out)
    right = (vectors @ head.weight.float().T + head.bias.float()).argmax(1) == labels
    return {
        f"{objective}_accuracy": float(right.float().mean()),
        f"{objective}_pairs": float(len(labels)),
        f"{objective}{PROBE}": 1.0,
    }


def _states(model: Model, objective: str, store: Store, pairs: int = 0) -> tuple[Tensor, Tensor]:
    """Return a vector and a label for each pair: of so many pairs, or of the tokens that an evaluation reads."""
    length = min(LENGTH, model.architecture.longest_input or LENGTH)
    size = max(BATCH_TOKENS, 6 * length)
    stream = Stream(store, format=f"segment-pair+{objective}", batch_tokens=size, max_length=length, seed=SEED)
    vectors: list[Tensor] = []
    labels: list[Tensor] = []
    read = 0
    with model.evaluating():
        for batch in stream.one_epoch():
            with inference_autocast(model.device):
                on_device = batch.to(model.device)
                hidden_th = model.network(on_device)
                first_sh = model.network.sequence_states(hidden_th, on_device)
                mean_sh = mean_states(hidden_th, on_device)
            vectors.append(torch.cat([first_sh, mean_sh], 1).float().cpu())
            pairs_s = PretrainingLabels.of(batch).pairs
            assert pairs_s is not None
            labels.append(pairs_s)
            read += batch.ids.numel()
            if sum(map(len, labels)) >= pairs if pairs else read >= TOKENS:
                break
    stacked, classes = torch.cat(vectors), torch.cat(labels)
    labeled = classes >= 0
    return stacked[labeled], classes[labeled]


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
