"""Tensor names of bertree and of Hugging Face: one table per family, used in both directions.

A row pairs one module of bertree with one of Hugging Face; weight and bias follow. Queries, keys and values are one
tensor here and three there, so that row pairs one name with three, stacked along the rows. `{i}` is the number of a
stored layer.
"""

from collections.abc import Iterable
from dataclasses import dataclass

Row = tuple[str, str | tuple[str, str, str]]

_EMBEDDING_TABLES: tuple[Row, ...] = (
    ("encoder.embeddings.tokens", "embeddings.word_embeddings"),
    ("encoder.embeddings.positions", "embeddings.position_embeddings"),
    ("encoder.embeddings.segments", "embeddings.token_type_embeddings"),
)
_EMBEDDINGS: tuple[Row, ...] = (*_EMBEDDING_TABLES, ("encoder.embeddings.norm", "embeddings.LayerNorm"))
_ATTENTION, _FFN = "encoder.stack.attention.{i}.", "encoder.stack.ffn.{i}."


def _layer(base: str, qkv: tuple[str, str, str], out: str, norm: str, up: str, down: str, last: str) -> tuple[Row, ...]:
    query, key, value = (base + name for name in qkv)
    return (
        (_ATTENTION + "part.qkv", (query, key, value)),
        (_ATTENTION + "part.out", base + out),
        (_ATTENTION + "norm", base + norm),
        (_FFN + "part.up", base + up),
        (_FFN + "part.down", base + down),
        (_FFN + "norm", base + last),
    )


def _bert_layer(norm: str, last: str) -> tuple[Row, ...]:
    return _layer(
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


@dataclass(frozen=True)
class Family:
    """Tensor and class names of one `model_type` of Hugging Face."""

    model_type: str
    title: str  # prefix of its class names
    prefix: str  # of the encoder's names in models that have a head
    encoder: tuple[Row, ...]
    heads: dict[str, tuple[Row, ...]]  # rows relative to `heads.NAME.`
    classes: dict[str, tuple[str, ...]]  # class name without the title -> heads

    def head_rows(self, head: str) -> Iterable[Row]:
        """Return the rows of one head, with bertree's full names."""
        return ((f"heads.{head}.{ours}" if ours else f"heads.{head}", theirs) for ours, theirs in self.heads[head])

    def class_name(self, heads: Iterable[str]) -> str | None:
        """Return the Hugging Face class with exactly these heads, or None."""
        wanted = set(heads)
        return next((self.title + name for name, has in self.classes.items() if set(has) == wanted), None)

    def heads_of(self, class_name: str) -> tuple[str, ...] | None:
        """Return the heads of a class of the family; None for an unknown class."""
        return self.classes.get(class_name.removeprefix(self.title))


_CLASSES: dict[str, tuple[str, ...]] = {
    "Model": (),
    "ForMaskedLM": ("mask",),
    "ForSequenceClassification": ("sequence",),
    "ForTokenClassification": ("token",),
    "ForQuestionAnswering": ("span",),
    "ForMultipleChoice": ("choice",),
}
_TASK_HEADS: dict[str, tuple[Row, ...]] = {
    "sequence": (_CLASSIFIER,),
    "token": (_CLASSIFIER,),
    "span": (("out", "qa_outputs"),),
    "choice": (_CLASSIFIER,),
}
_BERT_CLASSES = {**_CLASSES, "ForPreTraining": ("mask", "pair"), "ForNextSentencePrediction": ("pair",)}
_BERT_HEADS: dict[str, tuple[Row, ...]] = {
    "mask": (
        ("dense", "cls.predictions.transform.dense"),
        ("norm", "cls.predictions.transform.LayerNorm"),
        ("", "cls.predictions"),
    ),
    "pair": (("out", "cls.seq_relationship"),),
    **_TASK_HEADS,
}

FAMILIES = {
    family.model_type: family
    for family in (
        Family("bert", "Bert", "bert.", (*_EMBEDDINGS, *_BERT_LAYER, _POOLER), _BERT_HEADS, _BERT_CLASSES),
        Family(
            "megatron-bert",
            "MegatronBert",
            "bert.",
            (*_EMBEDDING_TABLES, *_bert_layer("attention.ln", "ln"), ("encoder.norm", "encoder.ln"), _POOLER),
            _BERT_HEADS,
            _BERT_CLASSES,
        ),
        Family(
            "roberta",
            "Roberta",
            "roberta.",
            (*_EMBEDDINGS, *_BERT_LAYER, _POOLER),
            {
                "mask": (("dense", "lm_head.dense"), ("norm", "lm_head.layer_norm"), ("", "lm_head")),
                **_TASK_HEADS,
                "sequence": (("dense", "classifier.dense"), ("out", "classifier.out_proj")),
            },
            _CLASSES,
        ),
        Family(
            "albert",
            "Albert",
            "albert.",
            (
                *_EMBEDDINGS,
                ("encoder.embeddings.projection", "encoder.embedding_hidden_mapping_in"),
                *_layer(
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
            {**_CLASSES, "ForPreTraining": ("mask", "pair")},
        ),
        Family(
            "distilbert",
            "DistilBert",
            "distilbert.",
            (
                *_EMBEDDINGS,
                *_layer(
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
            _CLASSES,
        ),
    )
}
# Tensors that a file may have beside the one they are tied to; they must be copies of it.
TIED = {
    "cls.predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "lm_head.decoder.weight": "embeddings.word_embeddings.weight",
    "predictions.decoder.weight": "embeddings.word_embeddings.weight",
    "vocab_projector.weight": "embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "lm_head.decoder.bias": "lm_head.bias",
    "predictions.decoder.bias": "predictions.bias",
}
# A buffer that older releases stored; not needed.
IGNORED = ("embeddings.position_ids",)


def hf_tensor_names(
    family: Family, heads: Iterable[str], ours: Iterable[str], prefixed: bool = True
) -> dict[str, tuple[str, ...]]:
    """Return for each tensor name of bertree the one or three Hugging Face names it is stored under.

    A model with a head stores its encoder below a prefix, a bare encoder does not; `prefixed=False` leaves it out.
    """
    prefix = family.prefix if (heads := tuple(heads)) and prefixed else ""
    table = {name: _prefixed(prefix, other) for name, other in family.encoder}
    for head in heads:
        table |= {name: _prefixed("", other) for name, other in family.head_rows(head)}
    found = {}
    for name in ours:
        module, leaf = name.rsplit(".", 1)
        words = module.split(".")
        number = next((word for word in words if word.isdigit()), "")
        template = ".".join("{i}" if word.isdigit() else word for word in words)
        found[name] = tuple(f"{other}.{leaf}".replace("{i}", number) for other in table[template])
    return found


def _prefixed(prefix: str, names: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(prefix + name for name in ((names,) if isinstance(names, str) else names))
