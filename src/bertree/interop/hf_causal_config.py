"""config.json of Hugging Face's left-to-right models and `Transformer`, in both directions.

Each family is a preset. Some axes have a key of their own, some are computed, some only matter in training; every other
axis must have the preset's value, and every key named under `only` the value that has an equal here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.model.architecture import Transformer

# Axes without influence on the outputs of these models as they are stored.
IDLE = ("mask_activation", "residual_init", "init_std", "dropout", "attention_dropout", "classifier_dropout", "window")
# Names that transformers reads for the same keys.
OTHER_KEYS = {
    "n_embd": "hidden_size",
    "n_positions": "max_position_embeddings",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "d_model": "hidden_size",
    "vocab_size": "n_token",
}
# transformers knows these texts as CTRL's control codes.
CONTROL_CODES = (
    "Pregnancy", "Christianity", "Explain", "Fitness", "Saving", "Ask", "Ass", "Joke", "Questions", "Thoughts",
    "Retail", "Feminism", "Writing", "Atheism", "Netflix", "Computing", "Opinion", "Alone", "Funny", "Gaming",
    "Human", "India", "Joker", "Diet", "Legal", "Norman", "Tip", "Weight", "Movies", "Running", "Science", "Horror",
    "Confession", "Finance", "Politics", "Scary", "Support", "Technologies", "Teenage", "Event", "Learned", "Notion",
    "Wikipedia", "Books", "Extract", "Confessions", "Conspiracy", "Links", "Narcissus", "Relationship",
    "Relationships", "Reviews", "News", "Translation", "multilingual",
)  # fmt: skip


@dataclass(frozen=True)
class CausalConfig:
    """The configuration of one family."""

    preset: str
    keys: dict[str, str]  # axis -> key
    activations: dict[str, str]  # Hugging Face's name -> ours
    only: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # key -> the values that can be read
    derived: tuple[str, ...] = ()  # axes that `read` and `write` convert
    read: Callable[[Json, Transformer, str], dict[str, Any]] = lambda config, base, where: {}
    write: Callable[[Transformer], Json] = lambda a: {}


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


def _gpt1_read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    return {"ffn_width": 4 * _number(config, "n_embd", base.width, where)}


def _gpt2_read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    inner = config.get("n_inner")
    return {"ffn_width": 4 * _number(config, "n_embd", base.width, where)} if inner is None else {}


def _ctrl_read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    return {"attention_dropout": 0.0}


def _xl_read(config: Json, base: Transformer, where: str) -> dict[str, Any]:
    cutoffs = config.get("cutoffs", [20000, 40000, 200000])
    if not isinstance(cutoffs, list) or not all(type(cut) is int for cut in cutoffs):
        raise UserError(f"{where}: cutoffs: must be a list of ids")
    shared = config.get("proj_share_all_but_first", True)
    tied = config.get("tie_projs") or [False] + [bool(shared)] * len(cutoffs)
    if not isinstance(tied, list) or len(tied) < len(cutoffs) + 1:
        raise UserError(f"{where}: tie_projs: must say for each cluster whether its projection is tied")
    width = _number(config, "d_model", 1024, where)
    divisor, narrow = _number(config, "div_val", 4, where), config.get("d_embed", 1024) != width
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
        "clamp": max(0, _number(config, "clamp_len", 1000, where)),
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


CONFIGS = {
    "openai-gpt": CausalConfig(
        "gpt1",
        {**_GPT_KEYS, "activation": "afn"},
        {"gelu": "gelu-tanh", "relu": "relu"},
        derived=("ffn_width",),
        read=_gpt1_read,
        write=lambda a: {"embd_pdrop": a.dropout},
    ),
    "gpt2": CausalConfig(
        "gpt2",
        {
            **_GPT_KEYS,
            "ffn_width": "n_inner",
            "activation": "activation_function",
            "classifier_dropout": "classifier_dropout",
        },
        {"gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh", "relu": "relu"},
        {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "reorder_and_upcast_attn": (False,),
            "add_cross_attention": (False,),
        },
        read=_gpt2_read,
        write=lambda a: {"embd_pdrop": a.dropout},
    ),
    "ctrl": CausalConfig(
        "ctrl",
        {k: v for k, v in _GPT_KEYS.items() if k != "attention_dropout"} | {"ffn_width": "dff"},
        {},
        {"layer_norm_epsilon": (1e-6,)},  # of the last norm; the others have it always
        read=_ctrl_read,
        write=lambda a: {"embd_pdrop": a.dropout},
    ),
    "transfo-xl": CausalConfig(
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
    ),
}
# What transformers takes for a key that is missing, where it is not the preset's value.
DEFAULTS: dict[str, Json] = {
    "ctrl": {"n_positions": 256},
    "transfo-xl": {
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
}


def read_causal(model_type: str, config: Json, base: Transformer, where: str) -> dict[str, Any]:
    """Return the values of axes that a config.json sets, some of them not checked yet."""
    family = CONFIGS[model_type]
    known = DEFAULTS.get(model_type, {}) | with_known_keys(family, config)
    for key, allowed in family.only.items():
        if config.get(key, allowed[0]) not in allowed:
            raise UserError(f"{where}: {key}: {config[key]!r} has no equal here, only {allowed[0]!r}")
    values = {axis: known[key] for axis, key in family.keys.items() if known.get(key) is not None}
    if "activation" in values:
        if not isinstance(values["activation"], str) or values["activation"] not in family.activations:
            given, names = values["activation"], ", ".join(family.activations)
            raise UserError(f"{where}: {family.keys['activation']}: {given!r} is not supported; known: {names}")
        values["activation"] = family.activations[values["activation"]]
    return values | family.read(known, base, where)


def with_known_keys(family: CausalConfig, config: Json) -> Json:
    """Return the configuration with the family's own names for keys."""
    missing = {key: OTHER_KEYS[key] for key in family.keys.values() if key in OTHER_KEYS and key not in config}
    return config | {key: config[other] for key, other in missing.items() if other in config}


def causal_family(a: Transformer) -> str:
    """Return the `model_type` that may hold a left-to-right architecture."""
    other = {"sinusoidal": "ctrl", "relative": "transfo-xl"}
    return other.get(a.positions) or ("gpt2" if a.residual == "pre-norm" else "openai-gpt")


def different_axis(model_type: str, a: Transformer, base: Transformer) -> tuple[str, Any] | None:
    """Return an axis that the family cannot express as it is, and its value there; None if it holds all of them."""
    family = CONFIGS[model_type]
    free = {*family.keys, *family.derived, *IDLE, "head_width", "embedding_width"}
    wanted = {f.name: getattr(base, f.name) for f in fields(a) if f.name not in free}
    if "head_width" not in family.keys:
        wanted["head_width"] = a.head_width if a.head_size * a.heads == a.width else 0
    if "embedding_width" not in family.keys or not a.cutoffs:
        wanted["embedding_width"] = a.width
    if "ffn_width" not in family.keys:
        wanted["ffn_width"] = 4 * a.width
    if model_type == "transfo-xl" and a.residual == "pre-norm":
        wanted["final_norm"] = False
    if "activation" in family.keys and a.activation not in family.activations.values():
        wanted["activation"] = " or ".join(family.activations.values())
    return next(((axis, value) for axis, value in wanted.items() if getattr(a, axis) != value), None)


def write_causal(model_type: str, a: Transformer) -> Json:
    """Return the keys of config.json that describe an architecture."""
    family = CONFIGS[model_type]
    config: Json = {key: getattr(a, axis) for axis, key in family.keys.items()}
    if "activation" in family.keys:
        names = {ours: theirs for theirs, ours in reversed(family.activations.items())}
        config[family.keys["activation"]] = names[a.activation]
    return config | family.write(a)


def _number(config: Json, key: str, default: int, where: str) -> int:
    value = config.get(key, default)
    if type(value) is not int:
        raise UserError(f"{where}: {key}: must be a whole number, not {value!r}")
    return value
