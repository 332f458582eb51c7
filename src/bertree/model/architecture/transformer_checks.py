"""The constraints on more than one axis of a transformer."""

from collections.abc import Iterator

from bertree.model.architecture.transformer_axes import TransformerAxes


def transformer_problems(a: TransformerAxes) -> list[str]:
    """Return each violated constraint on more than one axis."""
    found = []
    if a.width % a.heads and not a.head_width:
        found.append(f"heads: {a.heads} heads cannot divide a width of {a.width} evenly; or set head_width")
    if a.embedding_width != a.width and not (a.embedding_projection or a.cutoffs):
        found.append(
            f"embedding_width: {a.embedding_width} differs from width {a.width}, so embedding_projection must be true"
        )
    if a.sequence_head == "compare":
        found.append("sequence_head: compare reads the texts of a pair apart, which only body = bilstm does")
    if not a.first_norm and (a.residual == "post-norm" or a.sharing in ("attention", "all")):
        found.append("first_norm: only a pre-norm or reversible model whose attention is not shared can be without it")
    if a.positions != "learned" and a.position_offset:
        found.append(
            f"position_offset: {a.positions} positions have no table, so it must be 0, not {a.position_offset}"
        )
    if a.positions == "rotary" and a.head_size % 2:
        found.append(f"heads: rotary positions need heads of an even width, not {a.head_size}")
    if a.positions in ("sinusoidal", "relative") and a.width % 2:
        found.append(f"width: {a.positions} positions need an even width, not {a.width}")
    found += _memory_problems(a) + _stream_problems(a) + _cluster_problems(a) + _reformer_problems(a)
    if not 1 <= a.groups <= a.layers:
        found.append(f"groups: {a.groups} groups do not fit {a.layers} layers")
    if a.sharing == "none" and a.groups != 1:
        found.append(f"groups: {a.groups} has no meaning when nothing is shared (sharing = none)")
    kinds = () if found else set(zip(a.plan("attention"), a.attention_kinds, strict=True))
    if len(kinds) > len({stored for stored, _ in kinds}):
        found.append(f"sharing: layers with different attention ({a.attention}) cannot share it")
    return found


def _memory_problems(a: TransformerAxes) -> list[str]:
    found = []
    if a.positions != "relative":
        for name in ("memory", "clamp", "shared_position_bias"):
            if getattr(a, name):
                found.append(f"{name}: needs positions = relative, not {a.positions}")
    if a.memory and a.attention not in ("causal", "full"):
        found.append(f"memory: needs attention = causal or full, not {a.attention}")
    if not a.memory and a.same_length:
        found.append("same_length: has no meaning without a memory")
    if a.same_length and not a.causal:
        found.append(f"same_length: needs attention = causal, not {a.attention}")
    return found


def _stream_problems(a: TransformerAxes) -> list[str]:
    """Problems of what XLNet has beside Transformer-XL."""
    needs = []
    if a.segment_encoding == "relative":
        needs.append("segment_encoding: relative")
        if a.segments < 2:
            return [f"segments: there must be 2 or more to be told apart by scores, not {a.segments}"]
    if a.query_stream:
        needs.append("query_stream:")
    found = [f"{what} needs positions = relative, not {a.positions}" for what in needs]
    found = found if a.positions != "relative" else []
    if a.attention != "full":
        found += [f"{what} needs attention = full, not {a.attention}" for what in needs]
    return found


def _cluster_problems(a: TransformerAxes) -> list[str]:
    if not a.cutoffs:
        return ["embedding_divisor: has no meaning without cutoffs"] if a.embedding_divisor > 1 else []
    found = []
    if a.cluster_starts[-2] >= a.vocab_size:
        found.append(f"cutoffs: {a.cutoffs} must lie below the vocabulary size {a.vocab_size}")
    if a.embedding_projection:
        found.append("embedding_projection: clusters (cutoffs) have projections of their own")
    if a.mask_transform or not a.mask_bias:
        found.append("cutoffs: an adaptive softmax has a bias and no transform (mask_transform = false)")
    if a.embedding_norm or a.segments or a.positions == "learned":
        found.append("cutoffs: need embeddings without norm, segments and learned positions")
    if int(a.output_projections.split(",")[-1] or 0) >= len(a.cluster_starts) - 1:
        found.append(f"output_projections: {a.output_projections} names a cluster that is not there")
    return found


def _reformer_problems(a: TransformerAxes) -> list[str]:
    """Problems of what Reformer has."""
    return [*_attention_problems(a), *_axial_problems(a), *_output_problems(a)]


def _attention_problems(a: TransformerAxes) -> Iterator[str]:
    kinds = set(a.attention_kinds)
    if not a.look_ahead and "full" in kinds:
        causal = a.attention.replace("full", "causal")
        yield f"attention: full looks ahead, which look_ahead = false forbids; use {causal}"
    if a.shared_qk and not kinds & {"full", "causal", "lsh"}:
        yield f"shared_qk: has no meaning with attention = {a.attention}; it is for full and causal"
    if a.positions == "relative" and (a.shared_qk or kinds & {"chunked", "lsh"}):
        what = f"attention = {a.attention}" if kinds & {"chunked", "lsh"} else "shared_qk = true"
        yield f"positions: {what} has no scores by distance; use axial, learned or sinusoidal, not relative"
    if "chunked" in kinds and not a.look_ahead and a.chunks_after:
        yield f"chunks_after: no token sees a chunk after its own with look_ahead = false; use 0, not {a.chunks_after}"


def _axial_problems(a: TransformerAxes) -> Iterator[str]:
    if a.positions != "axial":
        return
    if not a.axial_shape:
        yield "axial_shape: must be two whole numbers of at least 1 divided by a comma, for example 64,64"
        return
    rows, columns = a.axial_sizes
    if a.max_positions != rows * columns:
        fits = f"{-(-a.max_positions // columns)},{columns}"
        yield (
            f"max_positions: axial_shape {a.axial_shape} has {rows * columns} places, not {a.max_positions}; set "
            f"axial_shape alone, for example {fits}"
        )
    if a.embedding_width < 2:
        yield f"embedding_width: axial positions have two parts of at least 1, but it is {a.embedding_width}"
    elif sum(a.axial_parts) != a.embedding_width:
        of_row = min(a.axial_parts[0], a.embedding_width - 1)
        yield (
            f"axial_widths: {a.axial_widths} sum to {sum(a.axial_parts)}, not to the embedding width "
            f"{a.embedding_width}; for example {of_row},{a.embedding_width - of_row}"
        )


def _output_problems(a: TransformerAxes) -> Iterator[str]:
    reversible = a.residual == "reversible"
    if reversible and a.memory:
        yield "memory: a reversible residual keeps no states of segments before; use memory = 0 or residual = pre-norm"
    if reversible and a.query_stream:
        yield "query_stream: needs residual = post-norm or pre-norm, not reversible"
    if a.cutoffs and (reversible or not a.tied_output):
        what = "residual = reversible" if reversible else "tied_output = false"
        yield f"cutoffs: an adaptive softmax reads the states of one stream by the embeddings; {what} has no such"
    if a.tied_output and not a.mask_transform and not a.cutoffs and a.output_width != a.embedding_width:
        yield (
            f"tied_output: the head's states have width {a.output_width}, but the token embeddings "
            f"{a.embedding_width}; set tied_output = false or mask_transform = true"
        )
