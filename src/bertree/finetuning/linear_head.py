"""A linear head on vectors that do not change, solved to its optimum: logistic regression, or ridge for scores.

The vectors are standardized, and the head is fitted with an L2 penalty whose strength cross-validation chooses among
the training examples: the strongest whose loss is within one standard error of the lowest, which predicts classes more
accurately than the lowest itself. With few examples that error is large; so at most a tenth may be lost of what the
lowest loss gains over an answer that is the same for every text. The loss is convex, so there is no learning rate, no
seed and no early stopping. Afterwards the standardization is folded into weights and bias: the head reads the vectors
as they are.

A rotation to the principal axes changes no solution, because the penalty does not depend on directions; but along
these axes the curvature is nearly diagonal, so L-BFGS needs some 15 iterations instead of hundreds. Everything is
computed in float64; vectors are stored in float32, which is all they have.

With few examples of a class, the nearest class mean, by its cosine, is the better rule: it has nothing to fit but the
means.

Shape letters: n examples, d width of a vector, c outputs.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bertree import keyed_random

STRENGTHS = tuple(10.0 ** (half / 2) for half in range(-9, 4))  # that are tried, from the strongest penalty on
FOLDS = 5
GIVEN_UP = 0.1  # share of the gain over a constant answer that a stronger penalty may lose
FEWEST = 10  # examples for which a strength is chosen; with fewer it is 1
ALL_FOLDS = 20_000  # examples up to which all folds are computed; with more, one is enough
WORSE = 2  # strengths in a row that are no better, after which weaker penalties are not tried
BLOCK = 8192  # rows whose float64 copy exists at once
CURVATURE = 0.25  # of the logistic loss, at most: p (1 - p)
ITERATIONS = 300
ROUGH, EXACT = 1e-4, 1e-6  # largest gradient at which a fit of a fold, and of all examples, ends
SAME_LENGTH = 1e-3  # relative difference up to which vectors count as of one length
FACTORS = tuple(2.0**power for power in range(-4, 7))  # of products with class means that are tried
NEVER = -1e4  # score of a class without examples
FLAT = 1e-6  # standard deviation, relative to the mean, below which a number counts as constant

# rows, targets, C, start, tolerance -> solution (c x (d + 1))
Fit = Callable[[Tensor, Tensor, float, Tensor | None, float], Tensor]


@dataclass(frozen=True, kw_only=True)
class LinearHead:
    """A fitted head, and how its strength was chosen; class means have none (0)."""

    weight: Tensor  # c x d, for vectors as they are
    bias: Tensor  # c
    strength: float = 0.0  # C as in scikit-learn: the weight of the summed loss against half the squared weights
    trials: tuple[tuple[float, float], ...] = ()  # each strength that was tried, and its mean loss on held-out examples
    folds: int = 0  # that the trials are computed on; 0: the strength was set


class PrincipalAxes:
    """Standardizes vectors and rotates them to the principal axes of the training examples.

    Vectors of one length are scaled by one number, because their directions were trained as they are; of others each
    number is scaled by its own deviation: those of plain encoders differ by orders of magnitude."""

    def __init__(self, vectors_nd: Tensor) -> None:
        count, width = vectors_nd.shape
        self.mean = sum((block.sum(0) for block in _blocks(vectors_nd)), torch.zeros(width).double()) / count
        squares_dd = torch.zeros(width, width).double()
        for block in _blocks(vectors_nd):
            squares_dd += (block - self.mean).T @ (block - self.mean)
        scale = (squares_dd.diagonal() / count).sqrt()
        lengths = vectors_nd.norm(dim=1)
        if float(lengths.max() - lengths.min()) < SAME_LENGTH * float(lengths.max()):
            scale = scale.square().mean().sqrt().expand(width)
        self.scale = torch.where(scale > FLAT * self.mean.abs().clamp(min=FLAT), scale, torch.inf)
        variances, self.axes_dd = torch.linalg.eigh(squares_dd / count / self.scale[:, None] / self.scale)
        self.variances = variances.clamp(min=0.0)

    def __call__(self, vectors_nd: Tensor) -> Tensor:
        """Return vectors along the axes, in float32."""
        return torch.cat([(((x - self.mean) / self.scale) @ self.axes_dd).float() for x in _blocks(vectors_nd)])

    def fold(self, solution: Tensor) -> tuple[Tensor, Tensor]:
        """Return weight and bias for vectors as they are, given those along the axes (c x (d + 1))."""
        weight_cd = solution[:, :-1] @ self.axes_dd.T / self.scale
        return weight_cd, solution[:, -1] - weight_cd @ self.mean


def fit_classifier(vectors_nd: Tensor, classes_n: Tensor, classes: int, strength: float | None = None) -> LinearHead:
    """Fit multinomial logistic regression. `strength`: None chooses it."""
    axes = PrincipalAxes(vectors_nd)

    def fit(rows_nd: Tensor, targets_n: Tensor, c: float, start: Tensor | None, tolerance: float) -> Tensor:
        return _fit_logistic(rows_nd, targets_n, classes, c, axes.variances, start, tolerance)

    def loss(outputs_nc: Tensor, targets_n: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(outputs_nc, targets_n, reduction="none")

    shares_c = torch.bincount(classes_n, minlength=classes).double() / max(len(classes_n), 1)
    constant = float(torch.special.entr(shares_c).sum())
    return _fit_head(axes, axes(vectors_nd), classes_n, fit, loss, constant, strength)


def fit_regression(vectors_nd: Tensor, scores_n: Tensor, strength: float | None = None) -> LinearHead:
    """Fit ridge regression; the strength is 1 / alpha, for scores of unit deviation. `strength`: None chooses it."""
    axes = PrincipalAxes(vectors_nd)
    mean, scale = scores_n.double().mean(), scores_n.double().std(correction=0).clamp(min=1e-12)

    def fit(rows_nd: Tensor, targets_n: Tensor, c: float, start: Tensor | None, tolerance: float) -> Tensor:
        return _fit_ridge(rows_nd, targets_n, c)

    def loss(outputs_n1: Tensor, targets_n: Tensor) -> Tensor:
        return (outputs_n1[:, 0] - targets_n).square()

    head = _fit_head(axes, axes(vectors_nd), (scores_n.double() - mean) / scale, fit, loss, 1.0, strength)
    return replace(head, weight=head.weight * scale, bias=head.bias * scale + mean)


def fit_class_means(vectors_nd: Tensor, classes_n: Tensor, classes: int) -> LinearHead:
    """Score each class by the product of the vector with the direction of the mean of the class's examples, so that the
    class of the largest cosine answers.

    The products have one factor, which decides how sure the answers are and changes none of them: the one of the lowest
    loss on the training examples, where each is left out of the mean of its own class."""
    x_nd, one_nc = vectors_nd.double(), torch.nn.functional.one_hot(classes_n, classes).double()
    sums_cd, counts_c = one_nc.T @ x_nd, one_nc.sum(0)
    means_cd = torch.nn.functional.normalize(sums_cd, dim=1)
    others_nd = torch.nn.functional.normalize(sums_cd[classes_n] - x_nd, dim=1)
    scores_nc = torch.where(one_nc > 0, (x_nd * others_nd).sum(1, keepdim=True), x_nd @ means_cd.T)
    bias_c = torch.where(counts_c > 0, 0.0, NEVER).double()
    several_n = counts_c[classes_n] > 1
    scores_nc, targets_n = scores_nc[several_n], classes_n[several_n]
    deviation = float(scores_nc.std()) if len(scores_nc) else 1.0
    losses = [
        float(torch.nn.functional.cross_entropy(scores_nc * factor / deviation + bias_c, targets_n))
        for factor in (FACTORS if len(scores_nc) else ())
    ]
    factor = FACTORS[losses.index(min(losses))] / deviation if losses else 1 / deviation
    return LinearHead(weight=factor * means_cd, bias=bias_c)


def _fit_head(
    axes: PrincipalAxes,
    rows_nd: Tensor,
    targets_n: Tensor,
    fit: Fit,
    loss: Callable[[Tensor, Tensor], Tensor],
    constant: float,
    strength: float | None,
) -> LinearHead:
    """Choose the strength by cross-validation, unless it is set, and fit all rows with it. `constant`: the loss of an
    answer that is the same for every row."""
    trials: list[tuple[float, float]] = []
    folds = 0
    if strength is None and len(rows_nd) >= FEWEST:
        folds = FOLDS if len(rows_nd) <= ALL_FOLDS else 1
        fold_n = _folds(targets_n)
        starts: list[Tensor | None] = [None] * folds
        best, margin, waited = float("inf"), 0.0, 0
        for c in STRENGTHS:
            losses = []
            for number in range(folds):
                held_n = fold_n == number
                solution = starts[number] = fit(rows_nd[~held_n], targets_n[~held_n], c, starts[number], ROUGH)
                losses.append(loss(_outputs(rows_nd[held_n], solution), targets_n[held_n]))
            losses_m = torch.cat(losses)
            trials.append((c, float(losses_m.mean())))
            waited += 1
            if trials[-1][1] < best:
                best, waited, margin = trials[-1][1], 0, float(losses_m.std()) / len(losses_m) ** 0.5
            if waited == WORSE:
                break
        margin = min(margin, GIVEN_UP * max(constant - best, 0.0))
        strength = next(c for c, mean in trials if mean <= best + margin)
    strength = 1.0 if strength is None else strength
    weight, bias = axes.fold(fit(rows_nd, targets_n, strength, None, EXACT))
    return LinearHead(weight=weight, bias=bias, strength=strength, trials=tuple(trials), folds=folds)


def _folds(targets_n: Tensor) -> Tensor:
    """Return the fold of each example: drawn at random, with the same share of every class, or of low and high scores,
    in each."""
    random = keyed_random.bits(keyed_random.key(0, "folds"), np.arange(len(targets_n)))
    order = np.lexsort((random, targets_n.numpy()))
    folds = np.empty(len(order), np.int64)
    folds[order] = np.arange(len(order)) % FOLDS
    return torch.from_numpy(folds)


def _fit_logistic(
    rows_nd: Tensor,
    classes_n: Tensor,
    classes: int,
    c: float,
    variances_d: Tensor,
    start: Tensor | None,
    tolerance: float,
) -> Tensor:
    """Minimize the cross-entropy plus the penalty by L-BFGS; return the solution along the axes (c x (d + 1))."""
    count, width = rows_nd.shape
    # Coordinates in which the loss is about equally curved in all directions.
    steps_d = torch.cat([(CURVATURE * variances_d + 1 / (c * count)).rsqrt(), torch.ones(1).double()])
    solution = torch.zeros(classes, width + 1).double() if start is None else start / steps_d
    solution.requires_grad_()
    few_blocks = list(_blocks(rows_nd)) if count <= BLOCK else None  # converted once
    optimizer = torch.optim.LBFGS(
        [solution], max_iter=ITERATIONS, tolerance_grad=tolerance, tolerance_change=0.0, line_search_fn="strong_wolfe"
    )

    def closure() -> float:
        scaled = solution.detach() * steps_d
        total, gradient = 0.0, torch.zeros_like(scaled)
        for number, block in enumerate(few_blocks or _blocks(rows_nd)):
            targets = classes_n[number * BLOCK : (number + 1) * BLOCK, None]
            log_shares = (block @ scaled[:, :-1].T + scaled[:, -1]).log_softmax(-1)
            total -= float(log_shares.gather(1, targets).sum())
            errors = log_shares.exp_().scatter_add_(1, targets, -torch.ones(targets.shape).double())
            gradient[:, :-1] += errors.T @ block
            gradient[:, -1] += errors.sum(0)
        gradient[:, :-1] += scaled[:, :-1] / c
        solution.grad = gradient * steps_d / count
        return (total + float(scaled[:, :-1].square().sum()) / (2 * c)) / count

    optimizer.step(closure)
    return solution.detach() * steps_d


def _fit_ridge(rows_nd: Tensor, scores_n: Tensor, c: float) -> Tensor:
    """Return the solution of ridge regression along the axes (1 x (d + 1)); the intercept has no penalty."""
    width = rows_nd.shape[1]
    squares, products = torch.zeros(width + 1, width + 1).double(), torch.zeros(width + 1).double()
    for number, block in enumerate(_blocks(rows_nd)):
        extended = torch.cat([block, torch.ones(len(block), 1).double()], 1)
        squares += extended.T @ extended
        products += extended.T @ scores_n[number * BLOCK : (number + 1) * BLOCK]
    penalty = torch.full((width + 1,), 1 / c).double()
    penalty[-1] = 0.0
    return torch.linalg.solve(squares + penalty.diag(), products)[None]


def _outputs(rows_nd: Tensor, solution: Tensor) -> Tensor:
    return torch.cat([block @ solution[:, :-1].T + solution[:, -1] for block in _blocks(rows_nd)])


def _blocks(rows_nd: Tensor) -> Iterator[Tensor]:
    """Yield the rows in float64, block by block."""
    for block in rows_nd.split(BLOCK):
        yield block.double()
