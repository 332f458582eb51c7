"""Batch -> hidden states. The stack is given its parts and a sharing plan; a shared layer is stored once."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertree.batch import Batch
from bertree.model.architecture import Architecture
from bertree.model.attention import Attention
from bertree.model.bilstm import BiLstm
from bertree.model.parts import Embeddings, FeedForward, PostNorm, PreNorm


class Stack(nn.Module):
    """Blocks applied in order. `plan` names, for each depth, which stored attention and feed-forward to use."""

    def __init__(
        self, attention: Sequence[nn.Module], ffn: Sequence[nn.Module], plan: Sequence[tuple[int, int]]
    ) -> None:
        super().__init__()
        self.attention = nn.ModuleList(attention)
        self.ffn = nn.ModuleList(ffn)
        self.plan = tuple(plan)
        self.recompute = False  # in training, compute each block again for its backward pass instead of keeping it

    def forward(self, x_th: Tensor, batch: Batch) -> Iterator[Tensor]:
        """The hidden states after each block, one after the other."""
        for a, f in self.plan:
            if self.recompute and self.training and torch.is_grad_enabled():
                x_th = checkpoint(self._block, a, f, x_th, batch, use_reentrant=False)
            else:
                x_th = self._block(a, f, x_th, batch)
            yield x_th

    def _block(self, a: int, f: int, x_th: Tensor, batch: Batch) -> Tensor:
        mixed: Tensor = self.ffn[f](self.attention[a](x_th, batch), batch)
        return mixed


class LstmStack(Stack):
    """Layers of an LSTM from both ends, each reading what the one before it says of every token."""

    def __init__(self, layers: Sequence[BiLstm], dropout: float) -> None:
        super().__init__((), (), [(depth, depth) for depth in range(len(layers))])
        self.layers = nn.ModuleList(layers)
        self.dropout = nn.Dropout(dropout)  # between them; the embeddings have their own

    def forward(self, x_te: Tensor, batch: Batch) -> Iterator[Tensor]:
        """What was read up to each token after each layer. Nothing is computed twice: an LSTM keeps what it needs."""
        for depth, layer in enumerate(self.layers):
            x_te = layer(x_te if depth == 0 else self.dropout(x_te), batch)
            yield x_te


class Encoder(nn.Module):
    """Embeddings, stack, and optionally a norm of the last states (pre-norm leaves them without) and a pooler.

    `causal`: no token sees those after it, so what stands for a sequence is its last token, not its first.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        stack: Stack,
        norm: nn.LayerNorm | None,
        pooler: nn.Linear | None,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.embeddings = embeddings
        self.stack = stack
        self.norm = norm
        self.pooler = pooler

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """Hidden states at every depth: embeddings first, then each layer's (t x h); the last as `forward` gives it.

        Who stops early spares the layers above.
        """
        x_th = self.embeddings(batch)
        yield x_th
        for depth, state in enumerate(self.stack(x_th, batch), 1):
            is_last = depth == len(self.stack.plan)
            yield self.norm(state) if is_last and self.norm is not None else state

    def forward(self, batch: Batch) -> Tensor:
        """The last hidden states (t x h)."""
        x_th = self.embeddings(batch)
        for state in self.stack(x_th, batch):
            x_th = state
        return x_th if self.norm is None else self.norm(x_th)

    def seeing(self, batch: Batch) -> Tensor:
        """Index of the token of each sequence that has seen the whole of it (s, int64)."""
        return batch.last if self.causal else batch.first

    def whole(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """What stands for each sequence (s x h)."""
        return hidden_th[self.seeing(batch)]

    def pool(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """The pooler's reading of each sequence (s x h)."""
        assert self.pooler is not None, "this point of the design space has no pooler"
        pooled: Tensor = self.pooler(hidden_th[self.seeing(batch)]).tanh()
        return pooled


class LstmEncoder(Encoder):
    """Embeddings and LSTMs from both ends, after Tang et al. 2019. What stands for a text is what each direction says
    once it has read all of it.

    `compares`: the two texts of a pair are read apart, each as if it were alone, and u and v, what they come to, stand
    for the pair as [u, v, u * v, |u - v|]; no word of one sees the other. v of a single text is 0.
    """

    stack: LstmStack

    def __init__(self, embeddings: Embeddings, stack: LstmStack, compares: bool) -> None:
        super().__init__(embeddings, stack, None, None)
        self.compares = compares

    def states(self, batch: Batch) -> Iterator[Tensor]:
        """What the first layer reads (t x e), and what each layer says (t x h)."""
        return super().states(batch.apart() if self.compares else batch)

    def forward(self, batch: Batch) -> Tensor:
        """What was read up to each token, from the left and from the right (t x h)."""
        return super().forward(batch.apart() if self.compares else batch)

    def whole(self, hidden_th: Tensor, batch: Batch) -> Tensor:
        """What stands for each sequence (s x h, or s x 4h where pairs are compared)."""
        last = self.stack.layers[-1]
        assert isinstance(last, BiLstm)
        if not self.compares:
            return last.ends(hidden_th, batch)
        texts = batch.apart()
        ends_nh = last.ends(hidden_th, texts).masked_fill((texts.lengths == 0)[:, None], 0.0)
        u_sh, v_sh = ends_nh.unflatten(0, (-1, 2)).unbind(1)
        return torch.cat([u_sh, v_sh, u_sh * v_sh, (u_sh - v_sh).abs()], -1)


def build_encoder(a: Architecture) -> Encoder:
    """The encoder of a point in the design space, with fresh weights."""
    return _transformer(a) if a.body == "transformer" else _bilstm(a)


def _bilstm(a: Architecture) -> LstmEncoder:
    embeddings = Embeddings(
        tokens=nn.Embedding(a.vocab_size, a.embedding_width),
        positions=None,
        position_offset=0,
        segments=None,
        norm=nn.LayerNorm(a.embedding_width, eps=a.norm_eps) if a.embedding_norm else None,
        dropout=a.dropout,
        projection=None,
    )
    widths = [a.embedding_width] + [a.width] * (a.layers - 1)
    stack = LstmStack([BiLstm(width, a.width // 2) for width in widths], a.dropout)
    encoder = LstmEncoder(embeddings, stack, a.sequence_head == "compare")
    initialise(encoder, a.init_std)  # the LSTMs keep PyTorch's own, which follow their width
    return encoder


def _transformer(a: Architecture) -> Encoder:
    def norm(width: int) -> nn.LayerNorm:
        return nn.LayerNorm(width, eps=a.norm_eps)

    joined = {"post-norm": PostNorm, "pre-norm": PreNorm}[a.residual]
    attention_plan, ffn_plan = a.plan("attention"), a.plan("ffn")
    embeddings = Embeddings(
        tokens=nn.Embedding(a.vocab_size, a.embedding_width),
        positions=nn.Embedding(a.max_positions + a.position_offset, a.embedding_width),
        position_offset=a.position_offset,
        segments=nn.Embedding(a.segments, a.embedding_width) if a.segments else None,
        norm=norm(a.embedding_width) if a.embedding_norm else None,
        dropout=a.dropout,
        projection=nn.Linear(a.embedding_width, a.width) if a.embedding_projection else None,
    )
    causal = a.attention == "causal"
    attention = [Attention(a.width, a.heads, a.attention_dropout, causal) for _ in set(attention_plan)]
    ffn = [FeedForward(a.width, a.ffn_width, a.activation) for _ in set(ffn_plan)]
    encoder = Encoder(
        embeddings,
        Stack(
            [joined(part, norm(a.width), a.dropout) for part in attention],
            [joined(part, norm(a.width), a.dropout) for part in ffn],
            list(zip(attention_plan, ffn_plan, strict=True)),
        ),
        norm(a.width) if a.residual == "pre-norm" else None,
        nn.Linear(a.width, a.width) if a.pooler else None,
        causal,
    )
    initialise(encoder, a.init_std)
    if a.residual_init == "scaled":
        _scale([part.out for part in attention] + [part.down for part in ffn], (2 * a.layers) ** -0.5)
    return encoder


def _scale(writers: Sequence[nn.Linear], factor: float) -> None:
    """Smaller matrices where the residual is written, so that a sum over all depths starts as large as one term."""
    with torch.no_grad():
        for linear in writers:
            linear.weight.mul_(factor)


def initialise(module: nn.Module, std: float) -> None:
    """BERT's initial weights: normal matrices, zero biases, norms that do nothing."""
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.Linear | nn.Embedding):
                part.weight.normal_(0.0, std)
            if isinstance(part, nn.Linear) and part.bias is not None:
                part.bias.zero_()
