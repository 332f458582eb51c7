"""Read the configuration and weights of a Hugging Face folder, and make the configuration of one to be written."""

import re
import warnings
from pathlib import Path

import torch

from bertree.errors import BertreeWarning, UserError
from bertree.files.formats import Json, read_json
from bertree.interop import hf_names, sentence_transformers, weights
from bertree.interop.contents import Contents, add_pooling, build_empty, head_classes
from bertree.interop.hf_config import (
    architecture_from_config,
    config_from_architecture,
    family_of_architecture,
    family_of_config,
    require_transformer,
)
from bertree.interop.weights import Weights
from bertree.model.architecture import Architecture
from bertree.model.network import FIXED_CLASSES

CONFIG = "config.json"


def read_huggingface(folder: Path, dtype: torch.dtype) -> Contents:
    """Read configuration and weights of a Hugging Face folder."""
    path = folder / CONFIG
    config = read_json(path)
    family = family_of_config(config, str(path))
    tensors = Weights(folder)
    a = architecture_from_config(config, str(path)).with_values({"pooler": _has_pooler(tensors)})
    # Name in our table -> name in the file: prefixes vary, and old files have old names.
    stored = {_current_name(name).removeprefix(family.prefix): name for name in tensors.names}
    heads = _heads_in(config, family, tensors, stored, path)
    network = build_empty(a, heads, path)
    table = hf_names.hf_tensor_names(family, heads, network.state_dict(), prefixed=False)
    _check_unused(heads, table, tensors, stored)
    table = {ours: tuple(stored.get(name, name) for name in theirs) for ours, theirs in table.items()}
    weights.load_into(network, tensors, table, dtype)
    add_pooling(network, a, sentence_transformers.read_pooling(folder), folder, dtype)
    return Contents(a, network, labels=_labels(config), max_length=_max_length(folder))


def read_huggingface_architecture(folder: Path) -> Architecture:
    """Read the architecture of a Hugging Face folder without its weights."""
    path = folder / CONFIG
    a = architecture_from_config(read_json(path), str(path))
    return a.with_values({"pooler": _has_pooler(Weights(folder))})


def _has_pooler(tensors: Weights) -> bool:
    return any(re.search(r"(^|\.)pooler\.", name) for name in tensors.names)


def _current_name(name: str) -> str:
    """Return today's name of a tensor: old checkpoints call a norm's weight and bias gamma and beta."""
    head, _, leaf = name.rpartition(".")
    return f"{head}.{ {'gamma': 'weight', 'beta': 'bias'}.get(leaf, leaf) }" if head else name


def _heads_in(
    config: Json, family: hf_names.Family, tensors: Weights, stored: dict[str, str], path: Path
) -> dict[str, int]:
    classes = config.get("architectures") or [_guess_class(family, stored)]
    if not isinstance(classes, list) or not isinstance(classes[0], str):
        raise UserError(f"{path}: architectures: must be a list with a class name")
    heads = family.heads_of(classes[0])
    if heads is None:
        heads = ()
        _warn(f"{path}: {classes[0]} has a head unknown to bertree; only its encoder is loaded")
    found = {}
    for head in heads:
        out = next(theirs for ours, theirs in family.head_rows(head) if ours.endswith(".out") or head == "mask")
        name = f"{out}.weight"
        sized = head not in FIXED_CLASSES
        if sized and name not in stored:
            raise UserError(f"{tensors.path(name)}: tensor '{name}' is missing, though {path.name} names {classes[0]}")
        found[head] = tensors.shape(stored[name])[0] if sized else FIXED_CLASSES[head]
    return found


def _guess_class(family: hf_names.Family, stored: dict[str, str]) -> str:
    """Guess the class of a folder that does not name it, from the tensors of the pretraining heads."""
    rows = {head: next(iter(family.head_rows(head)))[1] for head in ("mask", "pair") if head in family.heads}
    heads = [head for head, module in rows.items() if f"{module}.weight" in stored]
    return family.class_name(heads) or f"{family.title}Model"


def _check_unused(
    heads: dict[str, int], table: dict[str, tuple[str, ...]], tensors: Weights, stored: dict[str, str]
) -> None:
    """Check the tensors that are not loaded: tied ones must be copies; warn about the rest."""
    used = {name for theirs in table.values() for name in theirs}
    rest = [name for name in stored if name not in used and name not in hf_names.IGNORED]
    for name in [n for n in rest if n in hf_names.TIED and "mask" in heads and hf_names.TIED[n] in stored]:
        rest.remove(name)
        one, other = (tensors.tensor(stored[n]) for n in (name, hf_names.TIED[name]))
        if not torch.equal(one, other):
            raise UserError(
                f"{tensors.path(stored[name])}: '{name}' differs from '{hf_names.TIED[name]}'; "
                "an MLM head with an output layer of its own is not supported"
            )
    if rest:
        more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
        _warn(f"{tensors.path(stored[rest[0]])}: not used: tensor '{rest[0]}'{more}")


def _labels(config: Json) -> list[str]:
    table = config.get("id2label")
    if not isinstance(table, dict):
        return []
    try:
        return [str(table[str(i)]) for i in range(len(table))]
    except KeyError:
        return []


def _max_length(folder: Path) -> int | None:
    """Return the maximum length in the settings of sentence-transformers or of the tokenizer."""
    limits = []
    for name, key in (
        ("sentence_bert_config.json", "max_seq_length"),
        ("tokenizer_config.json", "model_max_length"),
    ):
        value = read_json(folder / name).get(key) if (folder / name).is_file() else None
        limits += [value] if type(value) is int and value > 0 else []
    return min(limits, default=None)


def make_config(contents: Contents) -> Json:
    """Return Hugging Face's config.json; UserError if it has no such model."""
    network, tokenizer = contents.network, contents.tokenizer
    pad = tokenizer.id_of("pad") if tokenizer else None
    if not network.readout.trivial:
        raise UserError(f"Hugging Face has no model with this readout: {network.readout.differences()}")
    a = require_transformer(contents.architecture)
    family = family_of_architecture(a)
    class_name = family.class_name(network.heads)
    if class_name is None:
        raise UserError(f"Hugging Face's {family.title} has no class with the heads {', '.join(network.heads)}")
    if family.model_type == "roberta" and pad is not None and pad != a.position_offset - 1:
        raise UserError(
            f"Hugging Face's Roberta counts positions from its padding id {a.position_offset - 1}, "
            f"but the tokenizer pads with {pad}; use a tokenizer with RoBERTa's special tokens"
        )
    config: Json = {
        "architectures": [class_name],
        **config_from_architecture(a, family, pad),
        **_label_tables(contents),
    }
    if tokenizer:
        ends = {"bos_token_id": tokenizer.id_of("cls"), "eos_token_id": tokenizer.id_of("sep")}
        config |= {key: value for key, value in ends.items() if key in config and value is not None}
    return config


def _label_tables(contents: Contents) -> Json:
    """Return the tables of class names, from which transformers takes the number of classes."""
    heads = head_classes(contents.network)
    count = max((n for head, n in heads.items() if head in ("sequence", "token")), default=0)
    labels = contents.labels or [f"LABEL_{i}" for i in range(count)]
    if not labels:
        return {}
    tables: Json = {
        "id2label": {str(i): name for i, name in enumerate(labels)},
        "label2id": {name: i for i, name in enumerate(labels)},
    }
    if "sequence" in heads:
        tables["problem_type"] = "regression" if heads["sequence"] == 1 else "single_label_classification"
    return tables


def _warn(line: str) -> None:
    warnings.warn(line, BertreeWarning, stacklevel=3)
