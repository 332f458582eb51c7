"""A linear probe for sentence pairs, of a model that was not trained with them.

Logistic regression on states of the frozen model: that of the token which stands for the sequence, beside the mean of
all tokens. It is fitted on pairs of the training documents and scored on pairs of the held-out ones, which are those
that `evaluate` reads.
"""

from pathlib import Path

import torch
from torch import Tensor

from bertree.batch import PretrainingLabels
from bertree.data.held_out import split_held_out
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.finetuning.linear_head import fit_classifier
from bertree.finetuning.store_evaluation import BATCH_TOKENS, HELD_OUT_SHARE, LENGTH, SEED, TOKENS
from bertree.inference.model import Model
from bertree.model.pooling import mean_states
from bertree.tasks.batches import inference_autocast

TRAINING_PAIRS = 4096
PROBE = "_probe"  # ends the name of a figure that says a probe has made the others


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
