"""Read and write model folders: configuration, weights, tokenizer, and `bertree.toml`.

If Hugging Face knows the architecture, the weights have Hugging Face's names and `config.json` is theirs, so both read
the same folder. If it does not, the weights have bertree's names and only `bertree.toml` describes them; so too if the
readout uses more than the last states, and if the weights are stored as int8. A model that makes vectors is also
a folder of sentence-transformers, if Hugging Face knows its encoder.
"""

import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import torch

from bertree.errors import BertreeWarning, UserError
from bertree.files.atomic import new_folder, write_text
from bertree.files.formats import Json, read_json
from bertree.interop import hf_names, sentence_transformers, weights
from bertree.interop.checksums import checksums, compare_weights
from bertree.interop.description import INT8, Description, read_description
from bertree.interop.hf_config import (
    architecture_from_config,
    config_from_architecture,
    family_of_architecture,
    family_of_config,
    require_transformer,
)
from bertree.interop.weights import Weights
from bertree.model.architecture import Architecture
from bertree.model.heads import ClassHead
from bertree.model.network import FIXED_CLASSES, Network, build
from bertree.model.pooling import PoolingConfig, SentencePooling
from bertree.model.readout import Readout
from bertree.text.tokenizer import FILES as TOKENIZER_FILES
from bertree.text.tokenizer import Tokenizer

CONFIG, DESCRIPTION = "config.json", "bertree.toml"
PADDED_VOCABULARY = 1024  # most rows that a model may have beyond its tokenizer's: vocabularies are padded


@dataclass
class Contents:
    """The contents of a model folder."""

    architecture: Architecture
    network: Network
    tokenizer: Tokenizer | None = None
    labels: list[str] = field(default_factory=list)  # names of the classes of the task head
    max_length: int | None = None  # if the folder sets one below the number of positions
    task: Json = field(default_factory=dict)  # name and settings of the task that the model was trained for


def head_classes(network: Network) -> dict[str, int]:
    """Return the heads of a network and their numbers of classes."""
    return {n: h.out.out_features if isinstance(h, ClassHead) else 0 for n, h in network.heads.items()}


def read(folder: Path, dtype: torch.dtype = torch.float32, tokenizer: Tokenizer | None = None) -> Contents:
    """Read and check a folder of either layout; `tokenizer` replaces the folder's own."""
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file, not a model folder")
    try:
        if (folder / DESCRIPTION).is_file():
            contents = _read_bertree(folder, dtype)
        elif (folder / CONFIG).is_file():
            contents = _read_huggingface(folder, dtype)
        else:
            raise UserError(f"{folder}: holds neither {CONFIG} nor {DESCRIPTION}, so it is not a model folder")
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read ({error.strerror})") from None
    contents.tokenizer = tokenizer or Tokenizer.load(folder)
    if tokenizer is None and contents.tokenizer is not None and sentence_transformers.wants_lowercase(folder):
        contents.tokenizer = contents.tokenizer.with_lowercase()
    _check_vocabulary(contents, folder)
    _check_max_length(contents, folder)
    return contents


def read_architecture(folder: Path) -> Architecture:
    """Read the architecture of a folder without its weights."""
    if (folder / DESCRIPTION).is_file():
        return read_description(folder / DESCRIPTION).architecture
    path = folder / CONFIG
    if not path.is_file():
        raise UserError(f"{folder}: holds neither {CONFIG} nor {DESCRIPTION}, so it is not a model folder")
    a = architecture_from_config(read_json(path), str(path))
    return a.with_values({"pooler": _has_pooler(Weights(folder))})


def _has_pooler(tensors: Weights) -> bool:
    return any(re.search(r"(^|\.)pooler\.", name) for name in tensors.names)


def _read_huggingface(folder: Path, dtype: torch.dtype) -> Contents:
    path = folder / CONFIG
    config = read_json(path)
    family = family_of_config(config, str(path))
    tensors = Weights(folder)
    a = architecture_from_config(config, str(path)).with_values({"pooler": _has_pooler(tensors)})
    # Name in our table -> name in the file: prefixes vary, and old files have old names.
    stored = {_current_name(name).removeprefix(family.prefix): name for name in tensors.names}
    heads = _heads_in(config, family, tensors, stored, path)
    network = _build_empty(a, heads, path)
    table = hf_names.hf_tensor_names(family, heads, network.state_dict(), prefixed=False)
    _check_unused(heads, table, tensors, stored)
    table = {ours: tuple(stored.get(name, name) for name in theirs) for ours, theirs in table.items()}
    weights.load_into(network, tensors, table, dtype)
    _add_pooling(network, a, sentence_transformers.read_pooling(folder), folder, dtype)
    return Contents(a, network, labels=_labels(config), max_length=_max_length(folder))


def _add_pooling(
    network: Network, a: Architecture, vector: PoolingConfig | None, folder: Path, dtype: torch.dtype
) -> None:
    """Add the pooling of a folder of sentence-transformers."""
    if vector is None:
        return
    with torch.device("meta"):
        pooling = SentencePooling(a.width, vector)
    if vector.dense:
        sentence_transformers.load_dense(pooling, sentence_transformers.dense_folders(folder), dtype)
    network.vector = pooling


def _build_empty(
    a: Architecture,
    heads: dict[str, int],
    where: Path,
    readout: Readout | None = None,
    vector: PoolingConfig | None = None,
) -> Network:
    """Build a network without storage, to be loaded."""
    try:
        with torch.device("meta"):
            return build(a, heads, readout, vector)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


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


def _read_bertree(folder: Path, dtype: torch.dtype) -> Contents:
    ours = read_description(folder / DESCRIPTION)
    theirs = ours.layout == "huggingface"
    network = _build_empty(
        ours.architecture, ours.heads, folder / DESCRIPTION, ours.readout, None if theirs else ours.vector
    )
    tensors = Weights(folder, int8=ours.storage == INT8)
    weights.load_into(network, tensors, _table(ours.layout, ours.architecture, network), dtype)
    if theirs:
        _add_pooling(network, ours.architecture, ours.vector, folder, dtype)
    compare_weights(folder, ours.files)
    return Contents(ours.architecture, network, labels=ours.labels, max_length=ours.max_length, task=ours.task)


def _table(layout: str, a: Architecture, network: Network) -> dict[str, tuple[str, ...]]:
    state = network.state_dict()
    if layout == "huggingface":
        here = [name for name in state if not name.startswith("vector.")]  # stored in folders of their own
        return hf_names.hf_tensor_names(family_of_architecture(a), head_classes(network), here)
    return {name: (name,) for name in state}


def _check_vocabulary(contents: Contents, folder: Path) -> None:
    if contents.tokenizer is None:
        return
    given, wanted = contents.tokenizer.size, contents.architecture.vocab_size
    if given > wanted or given <= wanted - PADDED_VOCABULARY:
        raise UserError(
            f"{folder}: the tokenizer has {given} tokens, but the model was trained with {wanted}; "
            "put the model's own tokenizer files there, or remove them to work with ids alone"
        )


def _check_max_length(contents: Contents, folder: Path) -> None:
    """Refuse a maximum length, of a settings file in the folder, that only the special tokens would fill."""
    if contents.tokenizer is None or contents.max_length is None:
        return
    special = contents.tokenizer.backend.num_special_tokens_to_add(False)
    if contents.max_length <= special:
        raise UserError(
            f"{folder}: its maximum length is {contents.max_length} tokens, which leaves no room for text beside "
            f"{special} special tokens (max_length, max_seq_length or model_max_length)"
        )


def write(contents: Contents, folder: Path, to: str = "bertree", dtype: torch.dtype | None = None) -> None:
    """Write a folder completely or not at all. `to`: "bertree", or "huggingface" (without bertree.toml; UserError
    if Hugging Face has no such model).

    `dtype`: precision of the written weights, by default their own; int8 is for bertree's folders only.
    """
    a, network = contents.architecture, contents.network
    int8 = dtype == torch.int8
    if int8 and to == "huggingface":
        raise UserError(
            "int8: Hugging Face's tools do not read bertree's int8 (one scale per row); convert to float32 first, "
            "or write a bertree folder"
        )
    config: Json = {"model_type": "bertree"}
    layout = "bertree"
    try:
        if not int8:  # under Hugging Face's names, its tools would use the integers as weights
            config, layout = _hf_config(contents), "huggingface"
    except UserError:
        if to == "huggingface":
            raise
    with new_folder(
        folder, (CONFIG, DESCRIPTION, weights.SINGLE, *TOKENIZER_FILES, *sentence_transformers.files())
    ) as work:
        config["dtype"] = str(dtype or next(network.parameters()).dtype).removeprefix("torch.")
        write_text(work / CONFIG, json.dumps(config, indent=2) + "\n")
        weights.save(network, _table(layout, a, network), work / weights.SINGLE, dtype)
        if network.vector is not None and layout == "huggingface":
            limit = min(contents.max_length or a.max_positions, a.max_positions)
            sentence_transformers.write_pooling(network.vector, a.width, work, limit, dtype)
        if contents.tokenizer:
            contents.tokenizer.save(work, contents.max_length if to == "huggingface" else None, a.reads_segments)
        if to == "bertree":
            labels, max_length, task = contents.labels, contents.max_length, contents.task
            storage = INT8 if int8 else ""
            vector = network.vector.config if network.vector is not None else None
            heads, readout, files = head_classes(network), network.readout, checksums(work)
            ours = Description(a, heads, layout, labels, max_length, readout, task, storage, vector, files)
            write_text(work / DESCRIPTION, ours.as_toml())


def check_huggingface(contents: Contents, where: Path) -> None:
    """Raise a UserError that names the folder if Hugging Face has no such model."""
    try:
        _hf_config(contents)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _hf_config(contents: Contents) -> Json:
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
