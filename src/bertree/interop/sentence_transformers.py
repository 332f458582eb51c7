"""Folders of sentence-transformers: a Hugging Face model and its pooling.

modules.json lists the stages in order. Those that a `PoolingConfig` can express are read and written: Transformer,
Pooling, Dense, Normalize. Any other is refused by name, since the vectors would silently differ without it.
"""

import json
from pathlib import Path
from typing import Any

import torch

from bertree.errors import UserError
from bertree.files.atomic import write_text
from bertree.files.formats import Json, parse_json, read_json, read_text
from bertree.interop import weights
from bertree.interop.weights import Stored, Weights
from bertree.model.pooling import Dense, PoolingConfig, SentencePooling

MODULES, SETTINGS, LENGTH = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
POOLING, NORMALIZE = "1_Pooling", "{}_Normalize"
DENSE = "{}_Dense"
CLASS_PREFIX = "sentence_transformers.models."  # every release reads classes under this name
MODES = {  # bertree's name: sentence-transformers' name, and its flag before release 6
    "cls": ("cls", "pooling_mode_cls_token"),
    "max": ("max", "pooling_mode_max_tokens"),
    "mean": ("mean", "pooling_mode_mean_tokens"),
    "sqrt": ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens"),
    "weighted": ("weightedmean", "pooling_mode_weightedmean_tokens"),
    "last": ("lasttoken", "pooling_mode_lasttoken"),
}
ACTIVATIONS = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}
MAX_DENSE = 16  # folders of dense layers that are removed when a folder is written again


def files() -> list[str]:
    """Return the names of everything this module writes into a folder."""
    numbered = [name.format(n) for n in range(2, MAX_DENSE + 3) for name in (DENSE, NORMALIZE)]
    return [MODULES, SETTINGS, LENGTH, POOLING, *numbered]


def check_pooling(pooling: str) -> None:
    """Raise a UserError if sentence-transformers has no such pooling."""
    if other := [name for name in pooling.split("+") if name not in MODES]:
        raise UserError(
            f"sentence-transformers has no pooling '{other[0]}', only {', '.join(MODES)}; write a bertree folder, or "
            "convert to onnx"
        )


def read_pooling(folder: Path, ends_in_summary: bool = False) -> PoolingConfig | None:
    """Read the pooling of a folder; None if it is not a folder of sentence-transformers.

    `ends_in_summary`: the model's <cls> is its last token, which sentence-transformers' `cls` is not.
    """
    if not (folder / MODULES).is_file():
        return None
    stages = _stages(folder)
    if not stages or stages[0][0] != "Transformer" or (len(stages) > 1 and stages[1][0] != "Pooling"):
        raise UserError(f"{folder / MODULES}: must list a Transformer and then a Pooling, not {_stage_names(stages)}")
    rest = [name for name, _ in stages[2:]]
    if [name for name in rest if name not in ("Dense", "Normalize")] or "Normalize" in rest[:-1]:
        raise UserError(
            f"{folder / MODULES}: bertree knows Transformer, Pooling, Dense ..., Normalize, not {_stage_names(stages)}"
        )
    pooling = _pooling(folder / stages[1][1] / "config.json") if len(stages) > 1 else "mean"
    if ends_in_summary and "cls" in pooling.split("+"):
        raise UserError(f"{folder}: pools the first token (cls), but the last one is this model's <cls>; use lasttoken")
    dense = tuple(_dense(folder / path / "config.json") for name, path in stages[2:] if name == "Dense")
    try:
        return PoolingConfig(pooling, "Normalize" in rest, dense, **_settings(folder / SETTINGS))
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None


def dense_folders(folder: Path) -> list[Path]:
    """Return the folders of the dense layers' weights, in order."""
    return [folder / path for name, path in _stages(folder) if name == "Dense"]


def _stages(folder: Path) -> list[tuple[str, str]]:
    """Return class and sub-folder of each stage."""
    path = folder / MODULES
    entries = parse_json(read_text(path), str(path))
    stages = []
    for entry in entries if isinstance(entries, list) else [None]:
        kind, name = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(name, str):
            raise UserError(f"{path}: must be a list of stages, each with a type and a path")
        if name and (Path(name).name != name or name == ".." or "\0" in name):
            raise UserError(f"{path}: '{name}' is not the name of a folder beside it")
        stages.append((kind.rpartition(".")[2], name))
    if stages and stages[0][1]:
        raise UserError(f"{path}: its Transformer lies in '{stages[0][1]}'; bertree reads it from the folder itself")
    return stages


def wants_lowercase(folder: Path) -> bool:
    """Return whether texts must be lowercased before tokenization."""
    return (folder / LENGTH).is_file() and read_json(folder / LENGTH).get("do_lower_case") is True


def _stage_names(stages: list[tuple[str, str]]) -> str:
    return ", ".join(name for name, _ in stages) or "nothing"


def _pooling(path: Path) -> str:
    config = read_json(path)
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [theirs for theirs, flag in MODES.values() if config.get(flag) is True] or ["mean"]
    modes = [modes] if isinstance(modes, str) else modes
    ours = {theirs: name for name, (theirs, _) in MODES.items()}
    if not isinstance(modes, list) or not modes or not all(isinstance(m, str) and m in ours for m in modes):
        raise UserError(f"{path}: pooling_mode: must be among {', '.join(ours)}, not {modes!r}")
    if config.get("include_prompt") is False:
        raise UserError(f"{path}: include_prompt: bertree pools a prompt's tokens with the others")
    return "+".join(ours[mode] for mode in modes)


def _dense(path: Path) -> Dense:
    config = read_json(path)
    names = {theirs.rpartition(".")[2]: ours for ours, theirs in ACTIVATIONS.items()}
    activation = names.get(str(config.get("activation_function", "Tanh")).rpartition(".")[2])
    width, bias = config.get("out_features"), config.get("bias", True)
    if activation is None or type(width) is not int or type(bias) is not bool or config.get("use_residual"):
        raise UserError(
            f"{path}: bertree knows Dense with out_features, bias and one of {', '.join(names)}, without a residual"
        )
    return Dense(width, activation, bias)


def _settings(path: Path) -> dict[str, Any]:
    config = read_json(path) if path.is_file() else {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name") or ""
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        raise UserError(f"{path}: prompts: must map names to texts")
    similarity = config.get("similarity_fn_name") or "cosine"
    if not isinstance(default, str):
        raise UserError(f"{path}: default_prompt_name: must be the name of a prompt, not {str(default)[:40]!r}")
    named = tuple((kind, text) for kind, text in prompts.items() if text)
    return {"similarity": str(similarity), "prompts": named, "prompt": default if default in dict(named) else ""}


def load_dense(vector: SentencePooling, folders: list[Path], dtype: torch.dtype) -> None:
    """Load the weights of dense layers built on the meta device."""
    if len(folders) != len(vector.dense):
        raise UserError(f"{MODULES} names {len(folders)} dense layers, but bertree.toml {len(vector.dense)}")
    for layer, folder in zip(vector.dense, folders, strict=True):
        tensors = Weights(folder)
        weights.load_into(layer, tensors, {name: Stored((name,)) for name in layer.state_dict()}, dtype)


def write_pooling(
    vector: SentencePooling, width: int, folder: Path, max_length: int | None, dtype: torch.dtype | None
) -> None:
    """Write the files of sentence-transformers into the folder of a Hugging Face model of that width."""
    settings = vector.config
    stages = [("Transformer", ""), ("Pooling", POOLING)]
    own = {"cls": "last"} if vector.ends_in_summary else {}  # its cls is the first token
    modes = [MODES[own.get(name, name)] for name in settings.pooling.split("+")]
    flags = {flag: (theirs, flag) in modes for theirs, flag in MODES.values()}
    # Flags have no order: in any but the default order, only releases that read `pooling_mode` get the right vectors.
    named: Json = {"pooling_mode": [theirs for theirs, _ in modes]} if len(modes) > 1 else {}
    _write(folder / POOLING / "config.json", {"word_embedding_dimension": width, **flags, **named})
    before = width * len(modes)
    for layer, dense in zip(vector.dense, settings.dense, strict=True):
        name = DENSE.format(len(stages))
        stages.append(("Dense", name))
        _write(
            folder / name / "config.json",
            {
                "in_features": before,
                "out_features": dense.width,
                "bias": dense.bias,
                "activation_function": ACTIVATIONS[dense.activation],
            },
        )
        table = {name: Stored((name,)) for name in layer.state_dict()}
        weights.save(layer, table, folder / name / weights.SINGLE, dtype)
        before = dense.width
    if settings.normalize:
        name = NORMALIZE.format(len(stages))
        _write(folder / name / "config.json", {})
        stages.append(("Normalize", name))
    _write(
        folder / MODULES,
        [
            {"idx": i, "name": str(i), "path": path, "type": CLASS_PREFIX + name}
            for i, (name, path) in enumerate(stages)
        ],
    )
    _write(
        folder / SETTINGS,
        {
            "model_type": "SentenceTransformer",
            "prompts": dict(settings.prompts),
            "default_prompt_name": settings.prompt or None,
            "similarity_fn_name": settings.similarity,
        },
    )
    _write(folder / LENGTH, {"max_seq_length": max_length, "do_lower_case": False})


def _write(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    write_text(path, json.dumps(value, indent=2) + "\n")
