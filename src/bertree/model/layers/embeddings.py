"""Token ids -> input of the first layer: token, position and segment embeddings, characters; and the adaptive softmax.

Adaptive input embeddings and adaptive softmax (Grave et al. 2017; Baevski and Auli 2019) cut the vocabulary, sorted by
frequency, into clusters. Rarer clusters may have narrower embeddings, so that a large vocabulary costs few parameters.
A prediction chooses first among the frequent tokens and the clusters, then within a cluster, so that most targets never
touch the rare tokens.

Vectors made of the tokens' characters are those of ELMo: a CNN with highway layers (Kim et al. 2016). A table says how
each entry of the vocabulary is spelled; the tokenizer gives it to the network after both are loaded. Words outside the
vocabulary bring their characters in the batch. The CNN computes each distinct word of a batch once, and no more
characters than its longest word has: a filter sees the same in all of the padding.

Shape letters: t tokens, m chosen tokens, e embedding width, h width, v vocabulary, c segments or entries of a cluster
or characters, d distinct words, f filters.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertree.batch import Batch, SpelledWords
from bertree.errors import UserError
from bertree.model.kernels.operators import look_up
from bertree.model.kernels.triton_cross_entropy import linear_cross_entropy
from bertree.model.layers.positions import EmbeddedPositions

CHARACTERS = 261  # bytes, then the beginning and the end of a text, of a word, and padding
PADDING = CHARACTERS - 1


@dataclass(frozen=True)
class VocabularyClusters:
    """Clusters of a vocabulary: cluster i holds the ids from `starts[i]` up to `starts[i + 1]`.

    `widths` are those of the clusters' embeddings.
    """

    starts: tuple[int, ...]
    widths: tuple[int, ...]

    @classmethod
    def cut(cls, starts: tuple[int, ...], width: int, divisor: int) -> "VocabularyClusters":
        """Cut a vocabulary; `starts` ends with its size. Each cluster's embeddings are `divisor` times narrower than
        those of the cluster before."""
        return cls(starts, tuple(max(1, width // divisor**i) for i in range(len(starts) - 1)))

    def __len__(self) -> int:
        return len(self.widths)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Yield the first id and the end of each cluster."""
        return pairwise(self.starts)

    @property
    def same_width(self) -> bool:
        """Whether one table holds all clusters."""
        return len(set(self.widths)) == 1


class AdaptiveEmbeddings(nn.Module):
    """Token embeddings by cluster, projected to the width of the layers and scaled."""

    def __init__(self, clusters: VocabularyClusters, width: int, scale: float) -> None:
        super().__init__()
        self.clusters, self.scale = clusters, scale
        widths = clusters.widths[:1] if clusters.same_width else clusters.widths
        sizes = [clusters.starts[-1]] if clusters.same_width else [end - start for start, end in clusters]
        self.tables = nn.ModuleList(nn.Embedding(size, e) for size, e in zip(sizes, widths, strict=True))
        projected = not clusters.same_width or widths[0] != width
        self.projections = nn.ModuleList(nn.Linear(e, width, bias=False) for e in widths if projected)

    def forward(self, ids_t: Tensor) -> Tensor:
        """Return the embeddings of token ids (t x h)."""
        if self.clusters.same_width:
            rows_te: Tensor = self.tables[0](ids_t)
            return self.scale * (self.projections[0](rows_te) if self.projections else rows_te)
        parts, indices = [], []
        for (start, end), table, projection in zip(self.clusters, self.tables, self.projections, strict=True):
            indices.append(((ids_t >= start) & (ids_t < end)).nonzero()[:, 0])
            parts.append(projection(table(ids_t[indices[-1]] - start)))
        joined_th = torch.cat(parts)
        return self.scale * torch.empty_like(joined_th).index_copy(0, torch.cat(indices), joined_th)

    def table(self, cluster: int) -> Tensor:
        """Return the embeddings of a cluster (c x e)."""
        table = self.tables[0 if self.clusters.same_width else cluster]
        assert isinstance(table, nn.Embedding)
        start, end = self.clusters.starts[cluster : cluster + 2]
        return table.weight[start:end] if self.clusters.same_width else table.weight

    def projection(self, cluster: int) -> Tensor | None:
        """Return the matrix that projects a cluster's embeddings (h x e), if there is one."""
        if not self.projections:
            return None
        projection = self.projections[0 if self.clusters.same_width else cluster]
        assert isinstance(projection, nn.Linear)
        return projection.weight


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of tokens by cluster. Its output matrices are the token embeddings, passed in, never copied; or
    its own, if it is not `tied`.

    `own_projections`: clusters with a projection of their own; the others use the transposed one of the embeddings.
    """

    def __init__(
        self, clusters: VocabularyClusters, width: int, own_projections: Sequence[int] = (), tied: bool = True
    ) -> None:
        super().__init__()
        self.clusters = clusters
        self.output = None if tied else AdaptiveEmbeddings(clusters, width, 1.0)
        self.bias = nn.Parameter(torch.zeros(clusters.starts[-1]))
        self.cluster_weight = nn.Parameter(torch.zeros(len(clusters) - 1, clusters.widths[0]))
        self.cluster_bias = nn.Parameter(torch.zeros(len(clusters) - 1))
        self.projections = nn.ModuleDict(
            {str(i): nn.Linear(clusters.widths[i], width, bias=False) for i in own_projections}
        )

    def _output(self, hidden_mh: Tensor, embeddings: AdaptiveEmbeddings, cluster: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a cluster's logits are computed from: states, weight and bias. The first cluster's logits are
        followed by those of the other clusters."""
        embeddings = embeddings if self.output is None else self.output
        projection_he = embeddings.projection(cluster)
        if str(cluster) in self.projections:
            own = self.projections[str(cluster)]
            assert isinstance(own, nn.Linear)
            projection_he = own.weight
        state_me = hidden_mh if projection_he is None else hidden_mh @ projection_he
        start, end = self.clusters.starts[cluster : cluster + 2]
        weight_ce, bias_c = embeddings.table(cluster), self.bias[start:end]
        if cluster == 0:
            weight_ce, bias_c = torch.cat([weight_ce, self.cluster_weight]), torch.cat([bias_c, self.cluster_bias])
        return state_me, weight_ce, bias_c

    def _logits(self, hidden_mh: Tensor, embeddings: AdaptiveEmbeddings, cluster: int) -> Tensor:
        return F.linear(*self._output(hidden_mh, embeddings, cluster))

    def forward(self, hidden_mh: Tensor, embeddings: AdaptiveEmbeddings, pad_vocab: bool = False) -> Tensor:
        """Return the log-probabilities of all tokens (m x v), in float32; no vocabulary is padded."""
        first = self._logits(hidden_mh, embeddings, 0).float().log_softmax(-1)
        frequent = self.clusters.starts[1]
        parts = [first[:, :frequent]]
        for cluster in range(1, len(self.clusters)):
            within = self._logits(hidden_mh, embeddings, cluster).float().log_softmax(-1)
            parts.append(first[:, frequent + cluster - 1, None] + within)
        return torch.cat(parts, 1)

    def loss(self, hidden_mh: Tensor, embeddings: AdaptiveEmbeddings, targets_m: Tensor) -> Tensor:
        """Return the cross-entropy, summed over the targets that are not -100; a rare cluster computes its own targets
        only."""
        edges = torch.tensor(self.clusters.starts[1:-1], device=targets_m.device)
        cluster_m = torch.bucketize(targets_m, edges, right=True)  # an ignored target is in the first
        first_m = torch.where(cluster_m == 0, targets_m, self.clusters.starts[1] + cluster_m - 1)
        total = self._cluster_loss(hidden_mh, embeddings, 0, first_m)
        for cluster in range(1, len(self.clusters)):
            rows = (cluster_m == cluster).nonzero()[:, 0]
            within_m = targets_m[rows] - self.clusters.starts[cluster]
            total = total + self._cluster_loss(hidden_mh[rows], embeddings, cluster, within_m)
        return total

    def _cluster_loss(
        self, hidden_mh: Tensor, embeddings: AdaptiveEmbeddings, cluster: int, targets_m: Tensor
    ) -> Tensor:
        return linear_cross_entropy(*self._output(hidden_mh, embeddings, cluster), targets_m)


class TokenEmbeddings(nn.Embedding):
    """A vector for each entry of the vocabulary, times `scale`."""

    def __init__(self, vocab_size: int, width: int, scale: float = 1.0) -> None:
        super().__init__(vocab_size, width)
        self.scale = scale

    def forward(self, ids_t: Tensor) -> Tensor:
        """Look up token ids (t x e)."""
        rows_te = look_up(self.weight, ids_t)
        return rows_te if self.scale == 1.0 else rows_te * self.scale


class Embeddings(nn.Module):
    """Sum of token, position and segment embeddings, then norm, dropout and a projection to the width of the layers.

    Positions, segments, norm and projection are optional.
    """

    def __init__(
        self,
        *,
        tokens: nn.Module,
        dropout: float,
        positions: EmbeddedPositions | None = None,
        segments: nn.Embedding | None = None,
        norm: nn.Module | None = None,
        projection: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.tokens = tokens
        self.positions = positions
        self.segments = segments
        self.norm = norm
        self.dropout = nn.Dropout(dropout)
        self.projection = projection

    def forward(self, batch: Batch) -> Tensor:
        """Return the input of the first layer (t x h)."""
        x_te: Tensor = self.tokens(batch.ids)
        if self.segments is not None:
            x_te = x_te + _segment_rows(self.segments.weight, batch.segments)
        if self.positions is not None:
            x_te = x_te + self.positions.embed(batch)
        x_te = self.dropout(x_te if self.norm is None else self.norm(x_te))
        return self.to_stream(x_te if self.projection is None else self.projection(x_te))

    @staticmethod
    def to_stream(x_te: Tensor) -> Tensor:
        """Return the input of the layers in their precision."""
        # Under autocast the residual stream has the precision of the products: half the memory, half the traffic.
        kind = x_te.device.type
        return x_te.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x_te


def _segment_rows(table_ce: Tensor, segments_t: Tensor) -> Tensor:
    """Look up segment embeddings. With one or two segments the gradient is a plain sum, not a scatter."""
    if len(table_ce) == 1:
        return table_ce[0]
    if len(table_ce) == 2:
        return torch.where(segments_t[:, None] == 0, table_ce[0], table_ce[1])
    return F.embedding(segments_t, table_ce)


class CharacterCnn(nn.Module):
    """Characters of words -> vectors. `filters`: length and number of each kind."""

    def __init__(
        self, width: int, *, characters: int, character_width: int, filters: Sequence[tuple[int, int]], highways: int
    ) -> None:
        super().__init__()
        self.characters, self.longest_filter = characters, max(length for length, _ in filters)
        total = sum(count for _, count in filters)
        self.table = nn.Embedding(CHARACTERS, character_width)
        self.filters = nn.ModuleList(nn.Conv1d(character_width, count, length) for length, count in filters)
        self.highways = nn.ModuleList(nn.Linear(total, 2 * total) for _ in range(highways))
        self.projection = nn.Linear(total, width)
        self.spelling: Tensor | None  # vocabulary x c, int16
        self.register_buffer("spelling", None, persistent=False)

    def open_highways(self) -> None:
        """Let the highways start by passing on what they read."""
        with torch.no_grad():
            for highway in self.highways:
                assert isinstance(highway, nn.Linear)
                highway.bias.chunk(2)[1].fill_(1.0)

    def spell(self, table_vc: Tensor) -> None:
        """Set the characters of the vocabulary."""
        assert table_vc.shape[1] == self.characters
        self.spelling = table_vc.to(self.table.weight.device)

    def forward(self, ids_t: Tensor, spelled: SpelledWords | None) -> Tensor:
        """Return the vectors of tokens (t x e); those that are spelled are not read from the table."""
        if self.spelling is None:
            raise UserError("the model reads the characters of its tokens, so it needs its tokenizer; give one")
        distinct_d, word_t = ids_t.unique(return_inverse=True)
        characters_dc = self.spelling[distinct_d].long()
        if spelled is not None:
            word_t = word_t.index_copy(0, spelled.tokens, len(distinct_d) + spelled.words)
            characters_dc = torch.cat([characters_dc, spelled.characters.long()])
        return look_up(self.vectors(characters_dc), word_t)

    def vectors(self, characters_dc: Tensor) -> Tensor:
        """Return the vectors of words (d x e)."""
        longest = int((characters_dc != PADDING).sum(1).amax()) if len(characters_dc) else 0
        characters_dc = characters_dc[:, : max(longest, 1) + self.longest_filter]
        x_dce = look_up(self.table.weight, characters_dc.flatten()).unflatten(0, characters_dc.shape)
        x_dec = x_dce.transpose(1, 2)
        x_df = torch.cat([conv(x_dec).max(-1).values for conv in self.filters], -1).relu()
        for highway in self.highways:
            new_df, gate_df = highway(x_df).chunk(2, -1)
            gate_df = gate_df.sigmoid()
            x_df = gate_df * x_df + (1 - gate_df) * new_df.relu()
        vectors_de: Tensor = self.projection(x_df)
        return vectors_de


class CharacterEmbeddings(Embeddings):
    """Vectors of the tokens' characters and dropout, in place of a table of tokens."""

    def __init__(self, cnn: CharacterCnn, dropout: float) -> None:
        super().__init__(tokens=cnn, dropout=dropout)

    def forward(self, batch: Batch) -> Tensor:
        """Return the input of the first layer (t x e)."""
        return self.to_stream(self.dropout(self.tokens(batch.ids, batch.spelled)))


def spell_network(network: nn.Module, table_vc: Tensor) -> None:
    """Give the characters of the vocabulary to the CNNs of a network that has any."""
    for module in network.modules():
        if isinstance(module, CharacterCnn):
            module.spell(table_vc)


def copy_spelling(network: nn.Module, source: nn.Module) -> None:
    """Give the characters of the vocabulary that one network knows to another."""
    tables = [module.spelling for module in source.modules() if isinstance(module, CharacterCnn)]
    if tables and tables[0] is not None:
        spell_network(network, tables[0])
