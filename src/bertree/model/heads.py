"""Heads: hidden states, or vectors of two texts -> logits. Each gets only the positions it needs.

Shape letters: m chosen positions, h width, e embedding width, v vocabulary, c classes, q pairs of texts or questions,
w width of a grid, d width of a vector.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertree.batch import IGNORED
from bertree.errors import UserError, suggest
from bertree.model.layers.feed_forward import ACTIVATION

ROUND = 64
NEVER = -30000.0  # a logit whose probability is 0; half precision can represent it
NO_PROBABILITY = -1e9  # the same in fp32
STARTS = 5  # candidates for an answer's first token, for each of which a `BeamSpanHead` scores the last tokens


class MaskHead(nn.Module):
    """MLM or LM: logits over the vocabulary. Its output matrix is the token embedding, passed in, never copied; or its
    own, if it is not `tied`.

    `transform`: a dense layer, an activation and a norm come first, with biases or without (`transform_bias`). `bias`:
    one for each entry of the vocabulary. `chunk`: states whose logits exist at the same time in training; 0: all.
    """

    def __init__(
        self,
        width: int,
        embedding_width: int,
        vocab_size: int,
        *,
        activation: str,
        norm_eps: float,
        transform: bool = True,
        bias: bool = True,
        transform_bias: bool = True,
        tied: bool = True,
        chunk: int = 0,
    ) -> None:
        super().__init__()
        self.chunk = chunk
        self.dense = nn.Linear(width, embedding_width, bias=transform_bias) if transform else None
        self.norm = nn.LayerNorm(embedding_width, eps=norm_eps, bias=transform_bias) if transform else None
        self.output = None if tied else nn.Linear(embedding_width if transform else width, vocab_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None
        self.vocab_size = vocab_size
        self.activation = ACTIVATION[activation]

    def matrix(self, tokens: nn.Embedding) -> Tensor:
        """Return the output matrix (v x e)."""
        return tokens.weight if self.output is None else self.output.weight

    def forward(self, hidden_mh: Tensor, tokens: nn.Embedding, pad_vocab: bool = False) -> Tensor:
        """Return logits for the hidden states of the chosen positions (m x v).

        `pad_vocab`: on a GPU, pad the vocabulary to a multiple of 64 with entries whose probability is 0. Matrices of
        an odd size (BERT's vocabulary has 30,522 entries) are multiplied several times slower.
        """
        matrix_ve = self.matrix(tokens)
        bias_v: Tensor | None = self.bias
        spare = -self.vocab_size % ROUND if pad_vocab and matrix_ve.is_cuda else 0
        if spare:
            bias_v = matrix_ve.new_zeros(self.vocab_size) if bias_v is None else bias_v
            matrix_ve, bias_v = F.pad(matrix_ve, (0, 0, 0, spare)), F.pad(bias_v, (0, spare), value=NEVER)
        return F.linear(self.transform(hidden_mh), matrix_ve, bias_v)

    def transform(self, hidden_mh: Tensor) -> Tensor:
        """Return what is multiplied by the output matrix (m x e)."""
        if self.dense is None or self.norm is None:
            return hidden_mh
        transformed_me: Tensor = self.norm(self.activation(self.dense(hidden_mh)))
        return transformed_me

    def loss(self, hidden_mh: Tensor, tokens: nn.Embedding, targets_m: Tensor) -> Tensor:
        """Return the cross-entropy, summed over the targets that are not -100.

        The logits of a chunk are computed again in the backward pass."""
        if not 0 < self.chunk < len(targets_m):
            return self._loss(hidden_mh, tokens, targets_m)
        again = partial(checkpoint, self._loss, use_reentrant=False, preserve_rng_state=False)
        chunks = zip(hidden_mh.split(self.chunk), targets_m.split(self.chunk), strict=True)
        return torch.stack([again(some_mh, tokens, wanted_m) for some_mh, wanted_m in chunks]).sum()

    def _loss(self, hidden_mh: Tensor, tokens: nn.Embedding, targets_m: Tensor) -> Tensor:
        logits_mv = self(hidden_mh, tokens, pad_vocab=True)
        return F.cross_entropy(logits_mv.float(), targets_m, ignore_index=IGNORED, reduction="sum")


class ClassHead(nn.Module):
    """A logit per class for each input state: a token's or a sequence's.

    With `dense` the head first transforms the state (RoBERTa, DistilBERT), with `norm` it also norms it (ModernBERT).
    `reads`: the input states: each token's ("tokens"), the pooler's output ("pooled"), one state per sequence
    ("sequence"), or the text's vector ("vector").
    """

    def __init__(
        self,
        out: nn.Linear,
        reads: str,
        dropout: float,
        *,
        dense: nn.Linear | None = None,
        activation: str = "tanh",
        input_dropout: float = 0.0,
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.reads = reads
        self.input_dropout = nn.Dropout(input_dropout)
        self.dense = dense
        self.norm = norm
        self.activation = ACTIVATION[activation]
        self.dropout = nn.Dropout(dropout)
        self.out = out

    def forward(self, x_h: Tensor) -> Tensor:
        """Return logits (... x c)."""
        if self.dense is not None:
            x_h = self.activation(self.dense(self.input_dropout(x_h)))
        if self.norm is not None:
            x_h = self.norm(x_h)
        logits: Tensor = self.out(self.dropout(x_h))
        return logits


class Grid(NamedTuple):
    """Cells of rows of scores in a grid of questions x `width`: the scores of a question share a softmax."""

    cells: Tensor  # m, int64, counted row by row
    questions: int
    width: int

    @property
    def question(self) -> Tensor:
        """Question of each row (m)."""
        return self.cells // max(1, self.width)

    @property
    def rows(self) -> Tensor:
        """Row in each cell (q x w); 0 in an empty one."""
        rows_m = torch.arange(len(self.cells), device=self.cells.device)
        return rows_m.new_zeros(self.questions * self.width).index_put((self.cells,), rows_m).view(-1, self.width)

    def scatter(self, scores_m: Tensor) -> Tensor:
        """Scatter rows of scores into their cells (q x w ...), in fp32; empty cells have probability 0."""
        shape = (self.questions * self.width, *scores_m.shape[1:])
        empty = scores_m.new_full(shape, NO_PROBABILITY, dtype=torch.float32)
        return empty.index_put((self.cells,), scores_m.float()).unflatten(0, (self.questions, self.width))

    def log_shares(self, scores_m: Tensor) -> Tensor:
        """Return the log-probability of each row among those of its question (m)."""
        return self.scatter(scores_m).log_softmax(1).flatten()[self.cells]


class BeamSpanHead(nn.Module):
    """XLNet's head for questions: the first token of an answer, its last token given the first, and whether there is an
    answer at all, given what is likely to be first.

    It reads the tokens that can be first or last; the first of them stands for "no answer".
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.start = nn.Linear(width, 1)
        self.end_dense = nn.Linear(2 * width, width)
        self.end_norm = nn.LayerNorm(width, eps=eps)
        self.end_out = nn.Linear(width, 1)
        self.answer_dense = nn.Linear(2 * width, width)
        self.answer_out = nn.Linear(width, 1, bias=False)

    def start_logits(self, states_mh: Tensor) -> Tensor:
        """Return a logit for each token as the first of the answer (m)."""
        return self.start(states_mh)[:, 0]

    def end_logits(self, states_mh: Tensor, starts_qh: Tensor, question_m: Tensor) -> Tensor:
        """Return a logit for each token as the last of the answer, given the state of its question's first (m)."""
        own_hh, given_hh = self.end_dense.weight.chunk(2, 1)
        # The product of the two states side by side, without writing them side by side for every token.
        given_mh = F.linear(starts_qh, given_hh, self.end_dense.bias)[question_m]
        x_mh = (F.linear(states_mh, own_hh) + given_mh).tanh()
        return self.end_out(self.end_norm(x_mh))[:, 0]

    def answer_logits(self, starts_qh: Tensor, none_qh: Tensor) -> Tensor:
        """Return a logit for each question that it has no answer (q)."""
        x_qh = self.answer_dense(torch.cat([starts_qh, none_qh], -1)).tanh()
        return self.answer_out(x_qh)[:, 0]

    def forward(self, states_mh: Tensor, grid: Grid) -> Tensor:
        """Return what a search for answers needs of each token, in fp32 (m x (3 + `STARTS`)): its log-probability as
        the first; its rank among the best first tokens, from 1, or 0; the logit of "no answer", which a question's
        tokens share; and its log-probability as the last for each of these first tokens."""
        rows_qw, question_m = grid.rows, grid.question
        first_m = grid.log_shares(self.start_logits(states_mh))
        first_qw = grid.scatter(first_m)
        best_qk = first_qw[:, 1:].topk(min(STARTS, grid.width - 1)).indices + 1  # "no answer" is not the first of one
        rank_qw = torch.zeros_like(first_qw)
        lasts = []
        for rank, column_q in enumerate(best_qk.unbind(1), 1):
            rank_qw = rank_qw.scatter(1, column_q[:, None], float(rank))
            starts_qh = states_mh[rows_qw.gather(1, column_q[:, None])[:, 0]]
            last_m = grid.log_shares(self.end_logits(states_mh, starts_qh, question_m))
            there_q = first_qw.gather(1, column_q[:, None])[:, 0] > NO_PROBABILITY / 2  # not an empty cell
            lasts.append(torch.where(there_q[question_m], last_m, 0.0))
        lasts += [torch.zeros_like(first_m)] * (STARTS - len(lasts))
        shared_mh = first_m.exp()[:, None] * states_mh.float()
        starts_qh = shared_mh.new_zeros(grid.questions, states_mh.shape[1]).index_add(0, question_m, shared_mh)
        none_q = self.answer_logits(starts_qh.to(states_mh.dtype), states_mh[rows_qw[:, 0]]).float()
        return torch.stack([first_m, rank_qw.flatten()[grid.cells], none_q[question_m], *lasts], -1)


PAIR_FEATURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "u": lambda u, v: u,
    "v": lambda u, v: v,
    "|u-v|": lambda u, v: (u - v).abs(),
    "u*v": lambda u, v: u * v,
}


def parse_concat(text: str) -> tuple[str, ...]:
    """Parse the features of a pair classifier: "u,v,|u-v|", also in brackets and with spaces."""
    names = tuple(name for name in text.replace(" ", "").strip("()").split(",") if name)
    for name in names:
        if name not in PAIR_FEATURES:
            raise UserError(f"concat: unknown part '{name}', {suggest(name, PAIR_FEATURES)}")
    if not names or len(set(names)) < len(names):
        raise UserError(f"concat: '{text}' must name each part once, for example u,v,|u-v|")
    return names


class PairClassifier(nn.Module):
    """A linear classifier on features of two sentence vectors, in fp32 like the vectors.

    Sentence-BERT is trained with it on sentence pairs; afterwards it is discarded.
    """

    def __init__(self, width: int, classes: int, features: Sequence[str], std: float = 0.02) -> None:
        super().__init__()
        self.features = tuple(features)
        self.out = nn.Linear(len(self.features) * width, classes)
        nn.init.normal_(self.out.weight, std=std)
        nn.init.zeros_(self.out.bias)

    def forward(self, u_qd: Tensor, v_qd: Tensor) -> Tensor:
        """Return logits (q x c)."""
        with torch.autocast(u_qd.device.type, enabled=False):
            joined = torch.cat([PAIR_FEATURES[name](u_qd, v_qd) for name in self.features], -1)
            logits: Tensor = self.out(joined.to(self.out.weight.dtype))
            return logits
