"""GPT-1, GPT-2, CTRL and Transformer-XL of Hugging Face: their configurations and tensor names.

The linear layers of the two GPTs are transposed there, with queries, keys and values in one. Transformer-XL's names are
those of transformers 4.37, the last release that runs it.
"""

from itertools import pairwise
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.interop.huggingface.family import ACTIVATIONS, Family, FamilyConfig, Row, layer_rows, number
from bertree.interop.weights import Stored
from bertree.model.architecture import Transformer

# transformers knows these texts as CTRL's control codes.
CONTROL_CODES = (
    "Pregnancy", "Christianity", "Explain", "Fitness", "Saving", "Ask", "Ass", "Joke", "Questions", "Thoughts",
    "Retail", "Feminism", "Writing", "Atheism", "Netflix", "Computing", "Opinion", "Alone", "Funny", "Gaming",
    "Human", "India", "Joker", "Diet", "Legal", "Norman", "Tip", "Weight", "Movies", "Running", "Science", "Horror",
    "Confession", "Finance", "Politics", "Scary", "Support", "Technologies", "Teenage", "Event", "Learned", "Notion",
    "Wikipedia", "Books", "Extract", "Confessions", "Conspiracy", "Links", "Narcissus", "Relationship",
    "Relationships", "Reviews", "News", "Translation", "multilingual",
)  # fmt: skip
_GPT_KEYS = {
    "vocab_size": "vocab_size",
    "width": "n_embd",
    "layers": "n_layer",
    "heads": "n_head",
    "max_positions": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "init_std": "initializer_range",
}


def _gpt2_read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    inner = config.get("n_inner")
    return {"ffn_width": 4 * number(config, "n_embd", base.width, where)} if inner is None else {}


def _xl_read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    cutoffs = config.get("cutoffs", [20000, 40000, 200000])
    if not isinstance(cutoffs, list) or not all(type(cut) is int for cut in cutoffs):
        raise UserError(f"{where}: cutoffs: must be a list of ids")
    shared = config.get("proj_share_all_but_first", True)
    tied = config.get("tie_projs") or [False] + [bool(shared)] * len(cutoffs)
    if not isinstance(tied, list) or len(tied) < len(cutoffs) + 1:
        raise UserError(f"{where}: tie_projs: must say for each cluster whether its projection is tied")
    width = number(config, "d_model", 1024, where)
    divisor, narrow = number(config, "div_val", 4, where), config.get("d_embed", 1024) != width
    if not cutoffs and narrow:
        raise UserError(f"{where}: d_embed: must equal d_model, {width}, if the vocabulary is not cut (cutoffs)")
    if not cutoffs and divisor != 1:
        raise UserError(f"{where}: div_val: must be 1, not {divisor}, if the vocabulary is not cut (cutoffs)")
    own = [str(i) for i, value in enumerate(tied[: len(cutoffs) + 1]) if not value]
    pre_norm = bool(config.get("pre_lnorm", False))
    return {
        "cutoffs": ",".join(map(str, cutoffs)),
        "output_projections": ",".join(own) if cutoffs and (narrow or divisor != 1) else base.output_projections,
        "embedding_divisor": divisor,
        "clamp": max(0, number(config, "clamp_len", 1000, where)),
        "shared_position_bias": not config.get("untie_r", True),
        "residual": "pre-norm" if pre_norm else "post-norm",
        "final_norm": not pre_norm,
        "memory_start": "zeros",
    }


def _xl_write(a: Transformer) -> Json:
    cutoffs = list(a.cluster_starts[1:-1])
    own = a.output_projections.split(",")
    return {
        "cutoffs": cutoffs,
        "div_val": a.embedding_divisor,
        "tie_projs": [str(i) not in own for i in range(len(cutoffs) + 1)],
        "d_head": a.head_size,
        "clamp_len": a.clamp or -1,
        "untie_r": not a.shared_position_bias,
        "pre_lnorm": a.residual == "pre-norm",
        "attn_type": 0,
        "adaptive": True,
    }


CAUSAL_CONFIGS = {
    "openai-gpt": FamilyConfig(
        "gpt1",
        {**_GPT_KEYS, "activation": "afn"},
        {"gelu": "gelu-tanh", "relu": "relu"},
        derived=("ffn_width",),
        read=lambda config, base, where: {"ffn_width": 4 * number(config, "n_embd", base.width, where)},
        write=lambda a: {"embd_pdrop": a.dropout},
    ),
    "gpt2": FamilyConfig(
        "gpt2",
        {
            **_GPT_KEYS,
            "ffn_width": "n_inner",
            "activation": "activation_function",
            "classifier_dropout": "classifier_dropout",
        },
        ACTIVATIONS,
        {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False,),
            "add_cross_attention": (False,),
        },
        read=_gpt2_read,
        write=lambda a: {"embd_pdrop": a.dropout},
    ),
    "ctrl": FamilyConfig(
        "ctrl",
        {k: v for k, v in _GPT_KEYS.items() if k != "attention_dropout"} | {"ffn_width": "dff"},
        {},
        {"layer_norm_epsilon": (1e-6,)},  # of the last norm; all others always have it
        read=lambda config, base, where: {"attention_dropout": 0.0},
        write=lambda a: {"embd_pdrop": a.dropout},
        defaults={"n_positions": 256},
    ),
    "transfo-xl": FamilyConfig(
        "transformer-xl-base",
        {
            "vocab_size": "vocab_size",
            "width": "d_model",
            "layers": "n_layer",
            "heads": "n_head",
            "head_width": "d_head",
            "ffn_width": "d_inner",
            "embedding_width": "d_embed",
            "memory": "mem_len",
            "same_length": "same_length",
            "norm_eps": "layer_norm_epsilon",
            "dropout": "dropout",
            "attention_dropout": "dropatt",
            "init_std": "init_std",
        },
        {},
        {"attn_type": (0,), "sample_softmax": (-1, 0), "tie_word_embeddings": (True,)},
        derived=(
            *("cutoffs", "output_projections", "embedding_divisor", "clamp", "shared_position_bias", "residual"),
            *("final_norm", "memory_start", "max_positions"),
        ),
        read=_xl_read,
        write=_xl_write,
        defaults={
            "d_model": 1024,
            "d_embed": 1024,
            "n_head": 16,
            "d_head": 64,
            "d_inner": 4096,
            "n_layer": 18,
            "mem_len": 1600,
            "same_length": True,
            "dropatt": 0.0,
        },
    ),
}


def causal_family(a: Transformer) -> str:
    """Return the `model_type` that may hold a left-to-right architecture."""
    by_positions = {"sinusoidal": "ctrl", "relative": "transfo-xl"}
    return by_positions.get(a.positions) or ("gpt2" if a.residual == "pre-norm" else "openai-gpt")


_POSITIONS = "encoder.stack.attention.{i}.part.positions."


def _transposed(name: str) -> Stored:
    return Stored((name,), transposed=True)


def _gpt(tokens: str, positions: str) -> tuple[Row, ...]:
    attention = (_transposed("attn.c_attn"), _transposed("attn.c_proj"))
    ffn = (_transposed("mlp.c_fc"), _transposed("mlp.c_proj"))
    return (
        ("encoder.embeddings.tokens", tokens),
        ("encoder.embeddings.positions", positions),
        *layer_rows("h.{i}.", *attention, "ln_1", *ffn, "ln_2"),
    )


_CTRL: tuple[Row, ...] = (
    ("encoder.embeddings.tokens", "w"),
    *layer_rows(
        "h.{i}.",
        ("multi_head_attention.Wq", "multi_head_attention.Wk", "multi_head_attention.Wv"),
        "multi_head_attention.dense",
        *("layernorm1", "ffn.0", "ffn.2", "layernorm2"),
    ),
    ("encoder.norm", "layernorm"),
)
_XL: tuple[Row, ...] = (
    ("encoder.embeddings.tokens", "word_emb.emb_layers.0"),
    ("encoder.embeddings.tokens.tables.{i}", "word_emb.emb_layers.{i}"),
    ("encoder.embeddings.tokens.projections.{i}.weight", "word_emb.emb_projs.{i}"),
    (_POSITIONS + "project", "layers.{i}.dec_attn.r_net"),
    *layer_rows(
        "layers.{i}.",
        *("dec_attn.qkv_net", "dec_attn.o_net", "dec_attn.layer_norm"),
        *("pos_ff.CoreNet.0", "pos_ff.CoreNet.3", "pos_ff.layer_norm"),
    ),
)


def _xl_rows(a: Transformer) -> tuple[Row, ...]:
    """Return the rows of position biases, which layers may share, and of output biases, if each cluster has a table."""
    layer = "" if a.shared_position_bias else "layers.{i}.dec_attn."
    rows: tuple[Row, ...] = (
        (_POSITIONS + "content_bias", layer + "r_w_bias"),
        (_POSITIONS + "distance_bias", layer + "r_r_bias"),
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
        library="transformers 4.37",
    ),
)
