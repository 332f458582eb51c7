"""Reformer of Hugging Face: its configuration and tensor names.

Its "local" attention is `chunked` here. A key that a query meets in several rounds of hashing counts each time there
(`duplicates = each`). Its hash seed is kept, but rotations drawn from it are not those of transformers.
"""

from collections.abc import Sequence
from math import lcm
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.interop.huggingface.family import ACTIVATIONS, Family, FamilyConfig, Row, layer_rows, number, pattern
from bertree.interop.weights import Stored
from bertree.model.architecture import Transformer

_KINDS = {"local": "chunked", "lsh": "lsh"}
_DEFAULTS: Json = {  # of transformers, also for null
    "vocab_size": 320,
    "hidden_size": 256,
    "num_attention_heads": 12,
    "attention_head_size": 64,
    "feed_forward_size": 512,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.05,
    "initializer_range": 0.02,
    "num_hashes": 1,
    "lsh_attn_chunk_length": 64,
    "lsh_num_chunks_before": 1,
    "lsh_num_chunks_after": 0,
    "local_attn_chunk_length": 64,
    "local_num_chunks_before": 1,
    "local_num_chunks_after": 0,
    "chunk_size_feed_forward": 0,
    "attn_layers": ["local", "lsh"] * 3,
    "axial_pos_embds": True,
    "axial_pos_shape": [64, 64],
    "axial_pos_embds_dim": [64, 192],
    "max_position_embeddings": 4096,
    "is_decoder": False,
    "lsh_attention_probs_dropout_prob": 0.0,
    "local_attention_probs_dropout_prob": 0.05,
}
_KEYS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "head_width": "attention_head_size",
    "ffn_width": "feed_forward_size",
    "ffn_chunk": "chunk_size_feed_forward",
    "activation": "hidden_act",
    "norm_eps": "layer_norm_eps",
    "dropout": "hidden_dropout_prob",
    "init_std": "initializer_range",
    "hashes": "num_hashes",
    "lsh_chunk_length": "lsh_attn_chunk_length",
    "lsh_chunks_before": "lsh_num_chunks_before",
    "lsh_chunks_after": "lsh_num_chunks_after",
    "chunk_length": "local_attn_chunk_length",
    "chunks_before": "local_num_chunks_before",
    "chunks_after": "local_num_chunks_after",
}


def _read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    complete = _DEFAULTS | {key: value for key, value in config.items() if value is not None}
    kinds = _layers(complete["attn_layers"], where)
    # One axis here, two keys there: that of the layers that hash, if there are any.
    of_kind = "lsh" if "lsh" in kinds else "local"
    seed = complete.get("hash_seed")
    return {
        "layers": len(kinds),
        "attention": pattern([_KINDS[kind] for kind in kinds]),
        "look_ahead": not _flag(complete, "is_decoder", where),
        "buckets": _buckets(complete.get("num_buckets"), where),
        "hash_seed": 0 if seed is None else seed,
        "duplicates": "each",
        "attention_dropout": complete[f"{of_kind}_attention_probs_dropout_prob"],
        "classifier_dropout": complete.get("classifier_dropout", complete["hidden_dropout_prob"]),
        **{axis: complete[key] for axis, key in _KEYS.items() if key in _DEFAULTS and config.get(key) is None},
        **_positions(complete, where),
    }


def _layers(names: Any, where: str) -> list[str]:
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n in _KINDS for n in names):
        raise UserError(
            f"{where}: attn_layers: must be a list of {' and '.join(map(repr, _KINDS))}, one for each layer"
        )
    return names


def _flag(config: Json, key: str, where: str) -> bool:
    if type(config[key]) is not bool:
        raise UserError(f"{where}: {key}: must be true or false, not {config[key]!r}")
    return bool(config[key])


def _buckets(value: Any, where: str) -> str:
    factors = value if isinstance(value, list) else [0 if value is None else value]
    if not 1 <= len(factors) <= 2 or not all(type(factor) is int for factor in factors):
        raise UserError(f"{where}: num_buckets: must be a whole number, or a list of one or two, not {value!r}")
    if value is not None and not all(factor >= 2 and factor % 2 == 0 for factor in factors):
        raise UserError(f"{where}: num_buckets: each factor must be even and at least 2, not {value!r}")
    return ",".join(map(str, factors))


def _positions(config: Json, where: str) -> dict[str, Any]:
    if not _flag(config, "axial_pos_embds", where):
        longest = number(config, "max_position_embeddings", 0, where)
        return {"positions": "learned", "axial_shape": "64,64", "axial_widths": "", "max_positions": longest}
    (rows, columns), widths = (_two(config, key, where) for key in ("axial_pos_shape", "axial_pos_embds_dim"))
    width = number(config, "hidden_size", 0, where)
    if sum(widths) != width:
        raise UserError(f"{where}: axial_pos_embds_dim: {widths[0]} + {widths[1]} is not hidden_size, {width}")
    halves = widths == (width // 2, width - width // 2)
    return {
        "positions": "axial",
        "axial_shape": f"{rows},{columns}",
        "axial_widths": "" if halves else ",".join(map(str, widths)),
        "max_positions": rows * columns,
    }


def _two(config: Json, key: str, where: str) -> tuple[int, int]:
    value = config[key]
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and 1 <= n < 2**31 for n in value):
        raise UserError(f"{where}: {key}: must be two whole numbers of at least 1, not {value!r}")
    return value[0], value[1]


def _write(a: Transformer) -> Json:
    names = {ours: theirs for theirs, ours in _KINDS.items()}
    factors = [int(part) for part in a.buckets.split(",")]
    config: Json = {
        "attn_layers": [names[kind] for kind in a.attention_kinds],
        "num_hidden_layers": a.layers,
        "attention_head_size": a.head_size,
        "is_decoder": a.causal,
        # transformers pads a text to full chunks of attention, and fails if those of the feed-forward do not fit.
        "chunk_size_feed_forward": 0 if a.ffn_chunk and _chunk(a) % a.ffn_chunk else a.ffn_chunk,
        "num_buckets": None if factors == [0] else factors[0] if len(factors) == 1 else factors,
        "hash_seed": a.hash_seed or None,
        "lsh_attention_probs_dropout_prob": a.attention_dropout,
        "local_attention_probs_dropout_prob": a.attention_dropout,
        "classifier_dropout": a.classifier_dropout,
        "axial_pos_embds": a.positions == "axial",
        "max_position_embeddings": a.max_positions,
        "tie_word_embeddings": False,
    }
    if a.positions == "axial":
        config |= {"axial_pos_shape": list(a.axial_sizes), "axial_pos_embds_dim": list(a.axial_vector_widths)}
    return config


def _chunk(a: Transformer) -> int:
    """Return the length that transformers pads texts to a multiple of."""
    lengths = {"chunked": a.chunk_length, "lsh": a.lsh_chunk_length}
    return lcm(*(lengths[kind] for kind in a.attention_kinds))


def _different(a: Transformer) -> tuple[str, Any] | None:
    """Return an axis that has several values there, but not this one."""
    if not set(a.attention_kinds) <= set(_KINDS.values()):
        return "attention", " or ".join(_KINDS.values())
    if a.positions not in ("axial", "learned"):
        return "positions", "axial or learned"
    if a.causal and "lsh" in a.attention_kinds and a.lsh_chunks_after:
        return "lsh_chunks_after", 0
    return None


REFORMER_CONFIG = FamilyConfig(
    "reformer-enwik8",
    _KEYS,
    ACTIVATIONS,
    derived=(
        *("layers", "attention", "look_ahead", "buckets", "hash_seed", "duplicates", "eval_hashes"),
        *("positions", "axial_shape", "axial_widths", "max_positions"),
    ),
    read=_read,
    write=_write,
    different=_different,
)

_SELF = "encoder.layers.{i}.attention.self_attention."


def _axial(a: Transformer) -> tuple[Row, ...]:
    """Return the rows of axial positions, whose tables there have a dimension for each of rows and columns."""
    if a.positions != "axial":
        return ()
    (rows, columns), (of_row, of_column) = a.axial_sizes, a.axial_vector_widths
    name = "embeddings.position_embeddings.weights."
    return (
        ("encoder.embeddings.positions.rows.weight", Stored((name + "0",), shape=(rows, 1, of_row))),
        ("encoder.embeddings.positions.columns.weight", Stored((name + "1",), shape=(1, columns, of_column))),
    )


def _reads_first(a: Transformer, heads: Sequence[str]) -> str:
    if a.causal and "sequence" in heads:
        return (
            "ReformerForSequenceClassification reads the first token of a text, which sees no other with is_decoder = "
            "true; bertree reads the last"
        )
    return ""


REFORMER = Family(
    "reformer",
    "Reformer",
    "reformer.",
    (
        ("encoder.embeddings.tokens", "embeddings.word_embeddings"),
        ("encoder.embeddings.positions", "embeddings.position_embeddings.embedding"),
        ("encoder.stack.attention.{i}.part.qv.weight", Stored((_SELF + "query_key.weight", _SELF + "value.weight"))),
        *layer_rows(
            "encoder.layers.{i}.",
            ("attention.self_attention.query", "attention.self_attention.key", "attention.self_attention.value"),
            *("attention.output.dense", "attention.layer_norm"),
            *("feed_forward.dense.dense", "feed_forward.output.dense", "feed_forward.layer_norm"),
        ),
        ("encoder.norm", "encoder.layer_norm"),
    ),
    {
        "mask": (("output", "lm_head.decoder"), ("", "lm_head")),
        "sequence": (("dense", "classifier.dense"), ("out", "classifier.out_proj")),
        "span": (("out", "qa_outputs"),),
    },
    {
        "Model": (),
        "ModelWithLMHead": ("mask",),
        "ForMaskedLM": ("mask",),
        "ForSequenceClassification": ("sequence",),
        "ForQuestionAnswering": ("span",),
    },
    _axial,
    tied={"lm_head.decoder.bias": ("lm_head.bias",)},
    other_names={"lm_head.bias": "lm_head.decoder.bias"},
    problem=_reads_first,
    unapplied_bias="lm_head.bias",
)
