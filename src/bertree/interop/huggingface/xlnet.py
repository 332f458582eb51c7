"""XLNet of Hugging Face: its configuration and tensor names.

Its attention has matrices of three dimensions (width, heads, width of a head), and biases of positions and segments in
every layer. How training data is laid out (`reuse_len`, `bi_data`, `use_mems_train`) is no part of a model here.
"""

from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.interop.huggingface.family import ACTIVATIONS, Family, FamilyConfig, Row, number
from bertree.interop.weights import Stored
from bertree.model.architecture import Transformer

_LAYER, _ATTENTION, _FFN = "layer.{i}.rel_attn.", "encoder.stack.attention.{i}.", "encoder.stack.ffn.{i}."
_SUMMARIES = ("first", "last")
_BEAM = 5  # starts, and ends of each, that Hugging Face's search for answers keeps


def _read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    width, heads = number(config, "d_model", base.width, where), number(config, "n_head", base.heads, where)
    if config.get("d_head") is not None and number(config, "d_head", 0, where) * heads != width:
        raise UserError(f"{where}: d_head: must be d_model / n_head, not {config['d_head']}")
    if config.get("summary_type", "last") not in _SUMMARIES:
        names = " or ".join(map(repr, _SUMMARIES))
        raise UserError(f"{where}: summary_type: {config['summary_type']!r} has no equal here, only {names}")
    dropout = config.get("dropout")
    return {
        "attention_dropout": base.dropout if dropout is None else dropout,
        "clamp": max(0, number(config, "clamp_len", -1, where)),
        "summary": config.get("summary_type", "last"),
    }


def _write(a: Transformer) -> Json:
    return {
        "d_head": a.head_size,
        "mem_len": a.memory or None,
        "clamp_len": a.clamp or -1,
        "summary_type": a.summary,
        "summary_use_proj": True,
        "summary_activation": "tanh",
        "start_n_top": _BEAM,
        "end_n_top": _BEAM,
        "attn_type": "bi",
        "untie_r": True,
        "reuse_len": None,
        "bi_data": False,
        "same_length": False,
    }


XLNET_CONFIG = FamilyConfig(
    "xlnet-large",
    {
        "vocab_size": "vocab_size",
        "width": "d_model",
        "layers": "n_layer",
        "heads": "n_head",
        "ffn_width": "d_inner",
        "activation": "ff_activation",
        "memory": "mem_len",
        "norm_eps": "layer_norm_eps",
        "dropout": "dropout",
        "classifier_dropout": "summary_last_dropout",
        "init_std": "initializer_range",
    },
    ACTIVATIONS,
    {
        "attn_type": ("bi",),
        "summary_use_proj": (True,),
        "summary_activation": ("tanh",),
        "summary_proj_to_labels": (False,),
        "summary_first_dropout": (0,),
        "tie_word_embeddings": (True,),
    },
    derived=("clamp", "summary", "segments", "max_positions"),
    read=_read,
    write=_write,
    defaults={"mem_len": 512},
)


def _matrices(a: Transformer) -> tuple[Row, ...]:
    """Return the rows of tensors whose shapes differ from ours."""
    shape = (a.width, a.heads, a.head_size)

    def turned(*names: str) -> Stored:
        return Stored(tuple(_LAYER + name for name in names), transposed=True, shape=shape)

    return (
        (_ATTENTION + "part.qkv.weight", turned("q", "k", "v")),
        (_ATTENTION + "part.positions.project.weight", turned("r")),
        (_ATTENTION + "part.out.weight", Stored((_LAYER + "o",), shape=shape)),
        ("encoder.query_start", Stored(("mask_emb",), shape=(1, 1, a.width))),
    )


_SUMMARY: tuple[Row, ...] = (("dense", "sequence_summary.summary"), ("out", "logits_proj"))
XLNET = Family(
    "xlnet",
    "XLNet",
    "transformer.",
    (
        ("encoder.embeddings.tokens", "word_embedding"),
        (_ATTENTION + "part.positions.content_bias", _LAYER + "r_w_bias"),
        (_ATTENTION + "part.positions.distance_bias", _LAYER + "r_r_bias"),
        (_ATTENTION + "part.positions.segment_bias", _LAYER + "r_s_bias"),
        (_ATTENTION + "part.positions.segment_vectors", _LAYER + "seg_embed"),
        (_ATTENTION + "norm", _LAYER + "layer_norm"),
        (_FFN + "part.up", "layer.{i}.ff.layer_1"),
        (_FFN + "part.down", "layer.{i}.ff.layer_2"),
        (_FFN + "norm", "layer.{i}.ff.layer_norm"),
    ),
    {
        "mask": (("", "lm_loss"),),
        "sequence": _SUMMARY,
        "choice": _SUMMARY,
        "token": (("out", "classifier"),),
        "span": (("out", "qa_outputs"),),
        "beam-span": (
            ("start", "start_logits.dense"),
            ("end_dense", "end_logits.dense_0"),
            ("end_norm", "end_logits.LayerNorm"),
            ("end_out", "end_logits.dense_1"),
            ("answer_dense", "answer_class.dense_0"),
            ("answer_out", "answer_class.dense_1"),
        ),
    },
    {
        "Model": (),
        "LMHeadModel": ("mask",),
        "ForSequenceClassification": ("sequence",),
        "ForTokenClassification": ("token",),
        "ForMultipleChoice": ("choice",),
        "ForQuestionAnsweringSimple": ("span",),
        "ForQuestionAnswering": ("beam-span",),
    },
    _matrices,
    tied={"lm_loss.weight": ("word_embedding.weight",)},
)
