"""Tensor names of Hugging Face's left-to-right models: GPT-1, GPT-2, CTRL and Transformer-XL.

The linear layers of the two GPTs are transposed there, with queries, keys and values in one. Transformer-XL's names are
those of transformers 4.37, the last release that runs it.
"""

from itertools import pairwise

from bertree.interop.huggingface.family import Family, Row
from bertree.interop.weights import Stored
from bertree.model.architecture import Transformer

_ATTENTION, _FFN = "encoder.stack.attention.{i}.", "encoder.stack.ffn.{i}."


def _transposed(name: str) -> Stored:
    return Stored((name,), transposed=True)


def _gpt(tokens: str, positions: str) -> tuple[Row, ...]:
    return (
        ("encoder.embeddings.tokens", tokens),
        ("encoder.embeddings.positions", positions),
        (_ATTENTION + "part.qkv", _transposed("h.{i}.attn.c_attn")),
        (_ATTENTION + "part.out", _transposed("h.{i}.attn.c_proj")),
        (_ATTENTION + "norm", "h.{i}.ln_1"),
        (_FFN + "part.up", _transposed("h.{i}.mlp.c_fc")),
        (_FFN + "part.down", _transposed("h.{i}.mlp.c_proj")),
        (_FFN + "norm", "h.{i}.ln_2"),
    )


_CTRL: tuple[Row, ...] = (
    ("encoder.embeddings.tokens", "w"),
    (
        _ATTENTION + "part.qkv",
        ("h.{i}.multi_head_attention.Wq", "h.{i}.multi_head_attention.Wk", "h.{i}.multi_head_attention.Wv"),
    ),
    (_ATTENTION + "part.out", "h.{i}.multi_head_attention.dense"),
    (_ATTENTION + "norm", "h.{i}.layernorm1"),
    (_FFN + "part.up", "h.{i}.ffn.0"),
    (_FFN + "part.down", "h.{i}.ffn.2"),
    (_FFN + "norm", "h.{i}.layernorm2"),
    ("encoder.norm", "layernorm"),
)
_XL: tuple[Row, ...] = (
    ("encoder.embeddings.tokens", "word_emb.emb_layers.0"),
    ("encoder.embeddings.tokens.tables.{i}", "word_emb.emb_layers.{i}"),
    ("encoder.embeddings.tokens.projections.{i}.weight", "word_emb.emb_projs.{i}"),
    (_ATTENTION + "part.qkv", "layers.{i}.dec_attn.qkv_net"),
    (_ATTENTION + "part.out", "layers.{i}.dec_attn.o_net"),
    (_ATTENTION + "part.positions.project", "layers.{i}.dec_attn.r_net"),
    (_ATTENTION + "norm", "layers.{i}.dec_attn.layer_norm"),
    (_FFN + "part.up", "layers.{i}.pos_ff.CoreNet.0"),
    (_FFN + "part.down", "layers.{i}.pos_ff.CoreNet.3"),
    (_FFN + "norm", "layers.{i}.pos_ff.layer_norm"),
)


def _xl_rows(a: Transformer) -> tuple[Row, ...]:
    """Return the rows of position biases, which layers may share, and of output biases, if each cluster has a table."""
    layer = "" if a.shared_position_bias else "layers.{i}.dec_attn."
    rows: tuple[Row, ...] = (
        (_ATTENTION + "part.positions.content_bias", layer + "r_w_bias"),
        (_ATTENTION + "part.positions.distance_bias", layer + "r_r_bias"),
    )
    if a.embedding_divisor == 1:
        return rows
    sizes = tuple(end - start for start, end in pairwise(a.cluster_starts))
    biases = tuple(f"crit.out_layers.{i}.bias" for i in range(len(sizes)))
    return (*rows, ("heads.mask.bias", Stored(biases, rows=sizes)))


_CLASSES: dict[str, tuple[str, ...]] = {
    "Model": (),
    "LMHeadModel": ("mask",),
    "ForSequenceClassification": ("sequence",),
}
_GPT_CLASSES = {**_CLASSES, "DoubleHeadsModel": ("mask",)}  # its second head is not read
_SCORE: dict[str, tuple[Row, ...]] = {"mask": (), "sequence": (("out", "score"),)}

CAUSAL = (
    Family(
        "openai-gpt",
        "OpenAIGPT",
        "transformer.",
        _gpt("tokens_embed", "positions_embed"),
        _SCORE,
        _GPT_CLASSES,
        tied={"lm_head.weight": ("tokens_embed.weight",)},
        ignored=(r"h\.\d+\.attn\.bias", "position_ids"),
    ),
    Family(
        "gpt2",
        "GPT2",
        "transformer.",
        (*_gpt("wte", "wpe"), ("encoder.norm", "ln_f")),
        {**_SCORE, "token": (("out", "classifier"),), "span": (("out", "qa_outputs"),)},
        {**_GPT_CLASSES, "ForTokenClassification": ("token",), "ForQuestionAnswering": ("span",)},
        tied={"lm_head.weight": ("wte.weight",)},
        ignored=(r"h\.\d+\.attn\.(masked_)?bias",),
    ),
    Family(
        "ctrl",
        "CTRL",
        "transformer.",
        _CTRL,
        {"mask": (("", "lm_head"),), "sequence": (("out", "classifier"),)},
        _CLASSES,
        tied={"lm_head.weight": ("w.weight",)},
    ),
    Family(
        "transfo-xl",
        "TransfoXL",
        "transformer.",
        _XL,
        {
            "mask": (
                ("", "crit.out_layers.0"),
                ("projections.{i}.weight", "crit.out_projs.{i}"),
                ("cluster_weight", "crit.cluster_weight"),
                ("cluster_bias", "crit.cluster_bias"),
            ),
            "sequence": (("out", "score"),),
        },
        _CLASSES,
        _xl_rows,
        tied={
            "crit.out_layers.{i}.weight": ("word_emb.emb_layers.{i}.weight",),
            "crit.out_projs.{i}": ("word_emb.emb_projs.{i}", "word_emb.emb_projs.0"),
            "layers.{i}.dec_attn.r_w_bias": ("r_w_bias",),
            "layers.{i}.dec_attn.r_r_bias": ("r_r_bias",),
        },
        ignored=(r"pos_emb\.inv_freq",),
        other_names={"r_w_bias": "layers.0.dec_attn.r_w_bias", "r_r_bias": "layers.0.dec_attn.r_r_bias"},
    ),
)
