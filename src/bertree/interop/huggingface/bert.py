"""Tensor names of BERT and MegatronBERT, of RoBERTa with norms after and before each part, of ALBERT and DistilBERT of
Hugging Face, and the table of all families."""

from collections.abc import Sequence
from dataclasses import replace

from bertree.interop.huggingface.causal import CAUSAL
from bertree.interop.huggingface.family import TASK_CLASSES, Family, Row, layer_rows
from bertree.interop.huggingface.modernbert import MODERNBERT
from bertree.interop.huggingface.reformer import REFORMER
from bertree.interop.huggingface.xlnet import XLNET
from bertree.model.architecture import Transformer

_EMBEDDING_TABLES: tuple[Row, ...] = (
    ("encoder.embeddings.tokens", "embeddings.word_embeddings"),
    ("encoder.embeddings.positions", "embeddings.position_embeddings"),
    ("encoder.embeddings.segments", "embeddings.token_type_embeddings"),
)
_EMBEDDINGS: tuple[Row, ...] = (*_EMBEDDING_TABLES, ("encoder.embeddings.norm", "embeddings.LayerNorm"))


def _bert_layer(norm: str, last: str) -> tuple[Row, ...]:
    return layer_rows(
        "encoder.layer.{i}.",
        ("attention.self.query", "attention.self.key", "attention.self.value"),
        "attention.output.dense",
        norm,
        "intermediate.dense",
        "output.dense",
        last,
    )


_BERT_LAYER = _bert_layer("attention.output.LayerNorm", "output.LayerNorm")
_POOLER: Row = ("encoder.pooler", "pooler.dense")
_CLASSIFIER: Row = ("out", "classifier")


_TASK_HEADS: dict[str, tuple[Row, ...]] = {
    "sequence": (_CLASSIFIER,),
    "token": (_CLASSIFIER,),
    "span": (("out", "qa_outputs"),),
    "choice": (_CLASSIFIER,),
}
_BERT_CLASSES = {
    "LMHeadModel": ("mask",),
    **TASK_CLASSES,
    "ForPreTraining": ("mask", "pair"),
    "ForNextSentencePrediction": ("pair",),
}
_MEGATRON_CLASSES = {"ForCausalLM": ("mask",), **{k: v for k, v in _BERT_CLASSES.items() if k != "LMHeadModel"}}
_ROBERTA_CLASSES = {"ForCausalLM": ("mask",), **TASK_CLASSES}
_BERT_HEADS: dict[str, tuple[Row, ...]] = {
    "mask": (
        ("dense", "cls.predictions.transform.dense"),
        ("norm", "cls.predictions.transform.LayerNorm"),
        ("", "cls.predictions"),
    ),
    "pair": (("out", "cls.seq_relationship"),),
    **_TASK_HEADS,
}
_ROBERTA_HEADS: dict[str, tuple[Row, ...]] = {
    "mask": (("dense", "lm_head.dense"), ("norm", "lm_head.layer_norm"), ("", "lm_head")),
    **_TASK_HEADS,
    "sequence": (("dense", "classifier.dense"), ("out", "classifier.out_proj")),
}


def _reads_first(a: Transformer, heads: Sequence[str]) -> str:
    if a.causal and {"sequence", "choice", "pair"} & set(heads):
        return (
            "classifiers read the first token of a text, which sees no other with is_decoder = true; bertree reads "
            "the last"
        )
    return ""


_WORDS = ("embeddings.word_embeddings.weight",)
_TIED: dict[str, tuple[str, ...]] = {
    "cls.predictions.decoder.weight": _WORDS,
    "lm_head.decoder.weight": _WORDS,
    "predictions.decoder.weight": _WORDS,
    "vocab_projector.weight": _WORDS,
    "cls.predictions.decoder.bias": ("cls.predictions.bias",),
    "lm_head.decoder.bias": ("lm_head.bias",),
    "predictions.decoder.bias": ("predictions.bias",),
}
_IGNORED = (r"embeddings\.position_ids",)

_ENCODERS = (
    Family("bert", "Bert", "bert.", (*_EMBEDDINGS, *_BERT_LAYER, _POOLER), _BERT_HEADS, _BERT_CLASSES),
    Family(
        "megatron-bert",
        "MegatronBert",
        "bert.",
        (*_EMBEDDING_TABLES, *_bert_layer("attention.ln", "ln"), ("encoder.norm", "encoder.ln"), _POOLER),
        _BERT_HEADS,
        _MEGATRON_CLASSES,
    ),
    Family(
        "roberta",
        "Roberta",
        "roberta.",
        (*_EMBEDDINGS, *_BERT_LAYER, _POOLER),
        _ROBERTA_HEADS,
        _ROBERTA_CLASSES,
    ),
    Family(
        "roberta-prelayernorm",
        "RobertaPreLayerNorm",
        "roberta_prelayernorm.",
        (
            *_EMBEDDINGS,
            *_bert_layer("attention.LayerNorm", "intermediate.LayerNorm"),
            ("encoder.norm", "LayerNorm"),
            _POOLER,
        ),
        _ROBERTA_HEADS,
        _ROBERTA_CLASSES,
    ),
    Family(
        "albert",
        "Albert",
        "albert.",
        (
            *_EMBEDDINGS,
            ("encoder.embeddings.projection", "encoder.embedding_hidden_mapping_in"),
            *layer_rows(
                "encoder.albert_layer_groups.{i}.albert_layers.0.",
                ("attention.query", "attention.key", "attention.value"),
                "attention.dense",
                "attention.LayerNorm",
                "ffn",
                "ffn_output",
                "full_layer_layer_norm",
            ),
            ("encoder.pooler", "pooler"),
        ),
        {
            "mask": (
                ("dense", "predictions.dense"),
                ("norm", "predictions.LayerNorm"),
                ("", "predictions"),
            ),
            "pair": (("out", "sop_classifier.classifier"),),
            **_TASK_HEADS,
        },
        {**TASK_CLASSES, "ForPreTraining": ("mask", "pair")},
    ),
    Family(
        "distilbert",
        "DistilBert",
        "distilbert.",
        (
            *_EMBEDDINGS,
            *layer_rows(
                "transformer.layer.{i}.",
                ("attention.q_lin", "attention.k_lin", "attention.v_lin"),
                "attention.out_lin",
                "sa_layer_norm",
                "ffn.lin1",
                "ffn.lin2",
                "output_layer_norm",
            ),
        ),
        {
            "mask": (("dense", "vocab_transform"), ("norm", "vocab_layer_norm"), ("", "vocab_projector")),
            **_TASK_HEADS,
            "sequence": (("dense", "pre_classifier"), _CLASSIFIER),
            "choice": (("dense", "pre_classifier"), _CLASSIFIER),
        },
        TASK_CLASSES,
    ),
)
FAMILIES = {
    family.model_type: family
    for family in (
        *(replace(family, tied=_TIED, ignored=_IGNORED, problem=_reads_first) for family in _ENCODERS),
        *(*CAUSAL, XLNET, MODERNBERT, REFORMER),
    )
}
