"""What a point of the design space costs: parameters, bytes, operations. Arithmetic, no torch.

Parameters are exact. Operations count a multiply-add as two and leave out norms, activations and
softmax (under one percent at these widths).

The memory model is for one training step of the packed encoder with its MLM head under bf16
autocast, not compiled, without activation checkpointing:

    state        16 bytes a parameter: fp32 weight, gradient and two Adam moments
    copies        2 bytes a parameter of a matrix product: the bf16 copy that autocast keeps for the step
    activations   what autograd keeps between forward and backward, listed term by term below
    logits        scores of the masked positions over the vocabulary: see LOGIT_BYTES

`benchmarks/memory.py` holds this against measured peaks.
"""

from dataclasses import asdict, dataclass

from bertree.model.architecture import Architecture

LENGTHS = (64, 128, 256, 320, 384, 512)
MASK_RATE = 0.15
STATE_BYTES = 16  # a parameter: fp32 weight + gradient + two moments
COPY_BYTES = 2  # a parameter of a linear layer: autocast's bf16 copy
LOGIT_BYTES = 14  # a logit at the peak: bf16 scores, fp32 copy, fp32 log-softmax, its fp32 gradient


@dataclass(frozen=True)
class Parameters:
    """Exact counts; a tensor shared by several layers or tied to another counts once."""

    embeddings: int  # tables, their norm, and the projection from E to H
    encoder: int
    pooler: int
    mlm_head: int  # without its output matrix, which is the token embedding

    @property
    def total(self) -> int:
        """The model without the MLM head, as people compare them."""
        return self.embeddings + self.encoder + self.pooler

    def as_dict(self) -> dict[str, int]:
        """The parts and the total, for `--json`."""
        return asdict(self) | {"total": self.total}


def _linear(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def parameters(a: Architecture) -> Parameters:
    """Count every parameter of the point."""
    rows = a.vocab_size + a.max_positions + a.position_offset + a.segments
    embeddings = rows * a.embedding_width + 2 * a.embedding_width
    if a.embedding_projection:
        embeddings += _linear(a.embedding_width, a.width)
    attention = 4 * _linear(a.width, a.width) + 2 * a.width
    ffn = _linear(a.width, a.ffn_width) + _linear(a.ffn_width, a.width) + 2 * a.width
    return Parameters(
        embeddings=embeddings,
        encoder=attention * len(set(a.plan("attention"))) + ffn * len(set(a.plan("ffn"))),
        pooler=_linear(a.width, a.width) if a.pooler else 0,
        mlm_head=_linear(a.width, a.embedding_width) + 2 * a.embedding_width + a.vocab_size,
    )


def forward_flops(a: Architecture, length: int) -> int:
    """Operations per token of one forward pass through the encoder at a sequence length."""
    linear = 4 * a.width**2 + 2 * a.width * a.ffn_width
    attention = 2 * length * a.width  # scores and weighted sum
    projection = a.embedding_width * a.width if a.embedding_projection else 0
    return 2 * (a.layers * (linear + attention) + projection)


def mask_head_flops(a: Architecture) -> int:
    """Operations per masked position of the MLM head."""
    return 2 * (a.width * a.embedding_width + a.embedding_width * a.vocab_size)


def training_flops(a: Architecture, length: int) -> int:
    """Operations per token of forward and backward (twice the forward), MLM head on 15 % of the tokens."""
    return round(3 * (forward_flops(a, length) + MASK_RATE * mask_head_flops(a)))


def activation_bytes(a: Architecture) -> int:
    """Bytes a token that autograd keeps for the encoder's backward pass.

    A packed batch has no term in length squared: the attention kernel keeps one number a head and query.
    """
    raise NotImplementedError
