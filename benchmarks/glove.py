"""Mean word vectors under a trained head: what a text is worth without any encoder. A baseline given a fair chance.

The vector of a text is the mean of its words' vectors; of a pair, [u, v, u * v, |u - v|]. Features are standardised
on the training split. Heads: logistic regression (ridge for scores) with five strengths of L2, solved to the end,
and a small network with three weight decays, looked at three times; the best of the fourteen on the dev split counts.
That is more choice than a fine-tuned model has with its best epoch, and errs on the side of the baseline.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertree.tasks.columns import TextExample

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of L2, beside the mean loss
DECAYS = (0.0, 0.1, 1.0)  # of weights, times the rate, a step
LOOKS = (5, 10, 20)  # epochs
HIDDEN, DROPOUT, BATCH, RATE = 128, 0.3, 128, 1e-3


Score = Callable[[NDArray[np.float32]], float]  # of what a head says about the dev split


class Embeds(Protocol):
    """Word vectors, or a model."""

    def embed(self, texts: list[str], /) -> NDArray[np.float32]:
        """A row a text."""
        ...


def features(vectors: Embeds, examples: Sequence[TextExample]) -> Tensor:
    """One row an example."""
    first = vectors.embed([example.text for example in examples])
    if examples[0].pair is None:
        return torch.from_numpy(first)
    second = vectors.embed([example.pair or "" for example in examples])
    return torch.from_numpy(np.concatenate([first, second, first * second, np.abs(first - second)], 1))


def best_head(
    train: Tensor, answers: Tensor, dev: Tensor, classes: int, score: Score, seed: int
) -> tuple[float, str, NDArray[np.float32]]:
    """The best score of all heads, which head it was, and what it says. `classes` 1: the answers are scores."""
    mean, deviation = train.mean(0), train.std(0).clamp(min=1e-6)
    train, dev = (train - mean) / deviation, (dev - mean) / deviation
    best = (-np.inf, "", np.zeros(0, np.float32))
    for strength in STRENGTHS:
        solve = _ridge if classes == 1 else _logistic
        said = solve(train.double(), answers, dev.double(), classes, strength).float().numpy()
        best = max(best, (score(said), f"linear, L2 {strength:g}", said), key=lambda found: found[0])
    for decay in DECAYS:
        for epoch, said in zip(LOOKS, _network(train, answers, dev, classes, decay, seed), strict=True):
            name = f"network of {HIDDEN}, decay {decay:g}, epoch {epoch}"
            best = max(best, (score(said), name, said), key=lambda found: found[0])
    return best


def _ridge(train: Tensor, answers: Tensor, dev: Tensor, classes: int, strength: float) -> Tensor:
    centre = answers.double().mean()
    gram = train.T @ train / len(train) + strength * torch.eye(train.shape[1], dtype=train.dtype)
    return (dev @ torch.linalg.solve(gram, train.T @ (answers.double() - centre) / len(train)) + centre)[:, None]


def _logistic(train: Tensor, answers: Tensor, dev: Tensor, classes: int, strength: float) -> Tensor:
    weight = torch.zeros(train.shape[1], classes, dtype=train.dtype, requires_grad=True)
    bias = torch.zeros(classes, dtype=train.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> float:
        optimizer.zero_grad()
        value = nn.functional.cross_entropy(train @ weight + bias, answers) + strength / 2 * weight.square().sum()
        value.backward()
        return value.item()

    optimizer.step(loss)
    return (dev @ weight + bias).detach()


def _network(
    train: Tensor, answers: Tensor, dev: Tensor, classes: int, decay: float, seed: int
) -> Iterator[NDArray[np.float32]]:
    """What a small network says about the dev split at each look."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = (nn.Linear(train.shape[1], HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(HIDDEN, classes))
        network = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=decay)
        for epoch in range(1, LOOKS[-1] + 1):
            network.train()
            for rows in torch.randperm(len(train)).split(BATCH):
                said, wanted = network(train[rows]), answers[rows]
                squared = nn.functional.mse_loss
                loss = squared(said[:, 0], wanted) if classes == 1 else nn.functional.cross_entropy(said, wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if epoch not in LOOKS:
                continue
            network.eval()
            with torch.no_grad():
                found: NDArray[np.float32] = network(dev).numpy()
            yield found
