"""The axes of a transformer, and what follows from single ones."""

from dataclasses import dataclass

from bertree.model.architecture.base import (
    MAX_ROWS,
    MAX_WIDTH,
    Architecture,
    above_zero,
    at_most,
    axis,
    bucket_counts,
    list_of,
    list_of_rising_numbers,
    not_negative,
    one_of,
    positive,
    probability,
    two_sizes,
)

SHARING = ("none", "attention", "ffn", "all")
ACTIVATIONS = ("gelu", "gelu-tanh", "relu", "silu")
ATTENTION = ("full", "causal", "local", "chunked", "lsh")
POSITIONS = ("learned", "axial", "sinusoidal", "relative", "rotary")
MEMORY_STARTS = ("none", "zeros")
SEGMENT_ENCODINGS = ("absolute", "relative")
SUMMARIES = ("first", "last", "mean")
FEED_FORWARD = ("plain", "gated")
NORMS = ("layer", "rms")
RESIDUALS = ("post-norm", "pre-norm", "reversible")
RESIDUAL_INITS = ("plain", "scaled")
DUPLICATES = ("once", "each")
APART = ("local", "chunked", "lsh")  # kinds of attention that look ahead or not, as the axis look_ahead says
MAX_ROUNDS = 64


@dataclass(frozen=True)
class TransformerAxes(Architecture):
    """The axes of a transformer encoder."""

    heads: int = axis(12, "attention heads", positive, at_most(MAX_WIDTH))
    head_width: int = axis(0, "width of one attention head; 0: width / heads", not_negative, at_most(MAX_WIDTH))
    attention: str = axis(
        "full",
        "tokens that a token sees: all of its sequence (full), itself and those before it (causal), those near it "
        "(local), those of its chunk and of neighboring chunks (chunked), or those that hash alike (lsh); "
        "full,local,local: in turn, from layer to layer",
        list_of(ATTENTION),
    )
    window: int = axis(64, "tokens that local attention sees to each side", positive, at_most(MAX_ROWS))
    look_ahead: bool = axis(True, "local, chunked and lsh attention see tokens after the query too")
    shared_qk: bool = axis(
        False,
        "queries are keys too, of unit length, and a token sees itself only if it sees no other; lsh is always so",
    )
    chunk_length: int = axis(64, "tokens of a chunk of chunked attention", positive, at_most(MAX_ROWS))
    chunks_before: int = axis(1, "chunks before its own that a token sees", not_negative, at_most(MAX_ROWS))
    chunks_after: int = axis(0, "chunks after its own that a token sees", not_negative, at_most(MAX_ROWS))
    lsh_chunk_length: int = axis(
        64, "tokens of a chunk of lsh attention, which are sorted by their hash", positive, at_most(MAX_ROWS)
    )
    lsh_chunks_before: int = axis(1, "the same as chunks_before, in lsh attention", not_negative, at_most(MAX_ROWS))
    lsh_chunks_after: int = axis(0, "the same as chunks_after, in lsh attention", not_negative, at_most(MAX_ROWS))
    buckets: str = axis(
        "0",
        "hashes of lsh attention: an even number, or two even factors such as 32,64; 0: from the length of each "
        "sequence, about two for each chunk",
        bucket_counts,
    )
    hashes: int = axis(1, "rounds of hashing, whose results are combined", positive, at_most(MAX_ROUNDS))
    eval_hashes: int = axis(
        0, "rounds of hashing outside of training; 0: as in training", not_negative, at_most(MAX_ROUNDS)
    )
    hash_seed: int = axis(0, "seed of the hashes outside of training; in training they are new at every step")
    duplicates: str = axis(
        "once",
        "how often a key counts that a query meets in several rounds of hashing: once, or each time, as Hugging Face "
        "has it",
        one_of(DUPLICATES),
    )
    embedding_projection: bool = axis(False, "linear map from E to H after the embeddings")
    embedding_scale: bool = axis(False, "token embeddings times the square root of the width")
    cutoffs: str = axis(
        "",
        "adaptive embeddings and softmax: ids at which the vocabulary, sorted by frequency, is cut into clusters, for "
        "example 20000,40000; empty: one table",
        list_of_rising_numbers,
    )
    embedding_divisor: int = axis(
        1, "factor by which the embeddings of each cluster are narrower than those of the cluster before", positive
    )
    output_projections: str = axis(
        "0",
        "clusters whose projection before the softmax is their own; the others use that of their embeddings",
        list_of_rising_numbers,
    )
    positions: str = axis(
        "learned",
        "how the order of tokens is encoded: a vector for each position, learned, learned as row and column of a grid "
        "(axial) or of sines and cosines (sinusoidal); "
        "scores by distance, as in Transformer-XL (relative); or queries and keys rotated by their position (rotary)",
        one_of(POSITIONS),
    )
    axial_shape: str = axis(
        "64,64",
        "rows and columns of axial positions: their product is the longest sequence, and the vector of a position is "
        "that of its row followed by that of its column",
        two_sizes,
    )
    axial_widths: str = axis(
        "",
        "widths of the vectors of a row and of a column, which sum to the embedding width; empty: two halves",
        two_sizes,
    )
    clamp: int = axis(
        0, "largest distance that relative positions distinguish; 0: no limit", not_negative, at_most(MAX_ROWS)
    )
    shared_position_bias: bool = axis(False, "the two biases of relative positions are the same in all layers")
    memory: int = axis(
        0,
        "tokens next to a segment, read before it, whose states it sees; 0: no memory",
        not_negative,
        at_most(MAX_ROWS),
    )
    memory_start: str = axis(
        "none",
        "what is in the memory before the first segment: nothing (none), or states of zeros, as Hugging Face has it",
        one_of(MEMORY_STARTS),
    )
    same_length: bool = axis(False, "every token sees as many tokens as the memory holds, itself included")
    rotary_base: float = axis(10_000.0, "base of the wavelengths of rotary positions", above_zero)
    local_rotary_base: float = axis(10_000.0, "the same, in local attention", above_zero)
    position_offset: int = axis(
        0, "rows of the position table that are never used, before position 0", not_negative, at_most(MAX_ROWS)
    )
    segments: int = axis(2, "number of segments (token types): 0, 1 or more", not_negative, at_most(MAX_ROWS))
    segment_encoding: str = axis(
        "absolute",
        "how segments are distinguished: by embeddings added to the tokens (absolute), or by scores of whether two "
        "tokens are in the same segment (relative)",
        one_of(SEGMENT_ENCODINGS),
    )
    query_stream: bool = axis(
        False, "a second stream predicts tokens from their positions, in any order of the tokens (XLNet)"
    )
    summary: str = axis(
        "first",
        "what represents a sequence: its first or last token (with causal attention always the last), or the mean of "
        "all",
        one_of(SUMMARIES),
    )
    sharing: str = axis("none", "what the layers share: none, attention, ffn or all", one_of(SHARING))
    groups: int = axis(1, "distinct layers among the shared ones")
    ffn: str = axis(
        "plain",
        "feed-forward: two linear layers (plain), or with a gate that multiplies the activation (gated)",
        one_of(FEED_FORWARD),
    )
    ffn_chunk: int = axis(
        0,
        "tokens that the feed-forward layers, and the MLM or LM head, compute at a time in training; 0: all",
        not_negative,
        at_most(MAX_ROWS),
    )
    activation: str = axis("gelu", "of the feed-forward layers", one_of(ACTIVATIONS))
    mask_activation: str = axis("gelu", "of the MLM head", one_of(ACTIVATIONS))
    mask_transform: bool = axis(True, "the MLM or LM head has a dense layer, an activation and a norm")
    tied_output: bool = axis(True, "the output matrix of the MLM or LM head is the token embeddings")
    mask_bias: bool = axis(True, "the MLM or LM head has a bias for each entry of the vocabulary")
    head_bias: bool = axis(True, "biases of the dense layers and norms in the heads")
    norm: str = axis(
        "layer", "norms of the encoder: layer norms, or by the root mean square alone (rms)", one_of(NORMS)
    )
    norm_bias: bool = axis(True, "biases of the encoder's layer norms; rms has none")
    attention_bias: bool = axis(True, "biases of the linear layers of attention")
    ffn_bias: bool = axis(True, "biases of the linear layers of feed-forward")
    residual: str = axis(
        "post-norm",
        "norms after attention and feed-forward (post-norm), or before them and once at the end (pre-norm; reversible: "
        "the same on two streams, from which the backward pass computes the states of each layer again)",
        one_of(RESIDUALS),
    )
    first_norm: bool = axis(True, "norm before the first layer's attention of a pre-norm or reversible model")
    final_norm: bool = axis(True, "norm after the last layer of a pre-norm or reversible model")
    residual_init: str = axis(
        "plain",
        "initial matrices that write into the residual: plain, or scaled by 1 / sqrt(2 layers)",
        one_of(RESIDUAL_INITS),
    )
    pooler: bool = axis(True, "dense + tanh on the token that represents a sequence, trained with the encoder")
    attention_dropout: float = axis(
        0.1, "on attention probabilities (above 0, training takes the padded kernel)", probability
    )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.head_width or self.width // self.heads

    @property
    def cluster_starts(self) -> tuple[int, ...]:
        """The first id of each cluster of the vocabulary, and the end of the last."""
        return (0, *(int(cut) for cut in self.cutoffs.split(",") if cut), self.vocab_size)

    def sharing_indices(self, component: str) -> tuple[int, ...]:
        """Return which stored copy of a component ("attention" or "ffn") each layer uses."""
        if self.sharing in (component, "all"):
            return tuple(int(depth / (self.layers / self.groups)) for depth in range(self.layers))
        return tuple(range(self.layers))

    @property
    def attention_kinds(self) -> tuple[str, ...]:
        """The kind of attention of each layer."""
        kinds = self.attention.split(",")
        return tuple(kinds[depth % len(kinds)] for depth in range(self.layers))

    @property
    def causal(self) -> bool:
        """True if no token sees those that are read after it (`direction` says in which order)."""
        return all(kind == "causal" or (kind in APART and not self.look_ahead) for kind in self.attention_kinds)

    @property
    def output_width(self) -> int:
        """Width of the hidden states after the last layer: that of both directions, if there are two."""
        return self.readers * self.reader_width

    @property
    def reader_width(self) -> int:
        """Width of what one direction contributes to a hidden state: that of both streams, if there are two."""
        return 2 * self.width if self.residual == "reversible" else self.width

    @property
    def axial_sizes(self) -> tuple[int, int]:
        """Rows and columns of axial positions."""
        rows, columns = (int(part) for part in self.axial_shape.split(","))
        return rows, columns

    @property
    def axial_vector_widths(self) -> tuple[int, int]:
        """Widths of the vectors of a row and of a column."""
        if not self.axial_widths:
            return self.embedding_width // 2, self.embedding_width - self.embedding_width // 2
        of_row, of_column = (int(part) for part in self.axial_widths.split(","))
        return of_row, of_column
