"""Read the configuration and weights of a Hugging Face folder, and make the configuration of one to be written."""

import re
from collections.abc import Iterable
from pathlib import Path

import torch

from bertree.console import note
from bertree.errors import UserError
from bertree.files.formats import Json, read_json
from bertree.interop import sentence_transformers, weights
from bertree.interop.contents import Contents, add_pooling, build_empty, head_classes
from bertree.interop.huggingface.causal import CONTROL_CODES
from bertree.interop.huggingface.config import (
    ROBERTAS,
    architecture_from_config,
    config_from_architecture,
    family_of_architecture,
    family_of_config,
    require_transformer,
)
from bertree.interop.huggingface.family import Family, hf_tensor_names
from bertree.interop.weights import Stored, Weights
from bertree.model.architecture import Architecture, Transformer
from bertree.model.network import FIXED_CLASSES, Network
from bertree.text import vocabulary_files
from bertree.text.tokenizer import Tokenizer

CONFIG = "config.json"
CONTROLS = "control_codes"  # a key of config.json, which transformers keeps


def read_huggingface(folder: Path, dtype: torch.dtype) -> Contents:
    """Read configuration and weights of a Hugging Face folder."""
    path = folder / CONFIG
    config = read_json(path)
    family = family_of_config(config, str(path))
    tensors = Weights(folder)
    a = require_transformer(architecture_from_config(config, str(path)).with_values({"pooler": _has_pooler(tensors)}))
    stored = _stored_names(family, tensors)
    heads = _heads_in(config, family, tensors, stored, path)
    if problem := family.problem(a, tuple(heads)):
        raise UserError(f"{path}: {problem}")
    network = build_empty(a, heads, path)
    table = hf_tensor_names(family, a, heads, network.state_dict(), prefixed=False)
    _check_unused(family, heads, table, tensors, stored)
    table = {ours: s._replace(names=tuple(stored.get(name, name) for name in s.names)) for ours, s in table.items()}
    weights.load_into(network, tensors, table, dtype)
    if bias := unapplied_bias(family, network):
        note(f"{folder}: its {bias} is not zero; bertree adds it to the logits, transformers 5 does not")
    add_pooling(network, a, sentence_transformers.read_pooling(folder, a.ends_in_summary), folder, dtype)
    return Contents(a, network, labels=_labels(config), max_length=read_limit(folder))


def read_huggingface_architecture(folder: Path) -> Architecture:
    """Read the architecture of a Hugging Face folder without its weights."""
    path = folder / CONFIG
    a = architecture_from_config(read_json(path), str(path))
    return a.with_values({"pooler": _has_pooler(Weights(folder))})


def read_huggingface_heads(folder: Path) -> Iterable[str]:
    """Read the names of the heads of a Hugging Face folder without its weights."""
    path = folder / CONFIG
    config, tensors = read_json(path), Weights(folder)
    family = family_of_config(config, str(path))
    return _heads_in(config, family, tensors, _stored_names(family, tensors), path)


def _has_pooler(tensors: Weights) -> bool:
    return any(re.search(r"(^|\.)pooler\.", name) for name in tensors.names)


def _stored_names(family: Family, tensors: Weights) -> dict[str, str]:
    """Return the name in the file for each name of our table: prefixes vary, and old files have old names."""
    stored = {_current_name(name).removeprefix(family.prefix): name for name in tensors.names}
    others = family.other_names.items()
    return stored | {name: stored[alias] for name, alias in others if name not in stored and alias in stored}


def _current_name(name: str) -> str:
    """Return today's name of a tensor: old checkpoints call a norm's weight and bias gamma and beta."""
    head, _, leaf = name.rpartition(".")
    return f"{head}.{ {'gamma': 'weight', 'beta': 'bias'}.get(leaf, leaf) }" if head else name


def _heads_in(config: Json, family: Family, tensors: Weights, stored: dict[str, str], path: Path) -> dict[str, int]:
    classes = config.get("architectures") or [_guess_class(family, stored)]
    if not isinstance(classes, list) or not isinstance(classes[0], str):
        raise UserError(f"{path}: architectures: must be a list with a class name")
    heads = family.heads_of(classes[0])
    if heads is None:
        heads = ()
        note(f"{path}: {classes[0]} has a head unknown to bertree; only its encoder is loaded")
    head_counts = {}
    for head in heads:
        if head in FIXED_CLASSES:
            head_counts[head] = FIXED_CLASSES[head]
            continue
        name = next(f"{theirs}.weight" for ours, theirs in family.head_rows(head) if ours.endswith(".out"))
        if name not in stored:
            raise UserError(f"{tensors.path(name)}: tensor '{name}' is missing, though {path.name} names {classes[0]}")
        head_counts[head] = tensors.shape(stored[name])[0]
    return head_counts


def _guess_class(family: Family, stored: dict[str, str]) -> str:
    """Guess the class of a folder that does not name it: one that has the tensors of the pretraining heads."""
    rows = {head: family.heads[head] for head in ("mask", "pair") if head in family.heads}
    # A head without tensors of its own (GPT's) is assumed to exist.
    heads = [head for head, of in rows.items() if not of or any(name.startswith(f"{of[0][1]}.") for name in stored)]
    return family.class_name(heads) or f"{family.title}Model"


def _check_unused(
    family: Family, heads: dict[str, int], table: dict[str, Stored], tensors: Weights, stored: dict[str, str]
) -> None:
    """Check the tensors that are not loaded: tied ones must be copies; warn about the rest."""
    used = {stored.get(name) for theirs in table.values() for name in theirs.names}
    ignored = re.compile("|".join(family.ignored) or "$.")
    rest = [name for name, in_file in stored.items() if in_file not in used and not ignored.fullmatch(name)]
    for name in list(rest) if "mask" in heads else ():
        original = family.original(name, stored)
        if original is None:
            continue
        rest.remove(name)
        if not torch.equal(tensors.tensor(stored[name]), tensors.tensor(stored[original])):
            raise UserError(
                f"{tensors.path(stored[name])}: '{name}' differs from '{original}'; "
                "an MLM or LM head with an output layer of its own is not supported"
            )
    if rest:
        more = f" and {len(rest) - 1} more" if len(rest) > 1 else ""
        note(f"{tensors.path(stored[rest[0]])}: not used: tensor '{rest[0]}'{more}")


def _labels(config: Json) -> list[str]:
    table = config.get("id2label")
    if not isinstance(table, dict):
        return []
    try:
        return [str(table[str(i)]) for i in range(len(table))]
    except KeyError:
        return []


def read_limit(folder: Path) -> int | None:
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
        kept = not network.readout.lstm and network.crf is None
        advice = "convert it to onnx, which keeps the head" if kept else "use it as a bertree folder"
        raise UserError(f"Hugging Face has no such model: {network.readout.describe()}; {advice}")
    if network.vector is not None:
        sentence_transformers.check_pooling(network.vector.config.pooling)
    a = require_transformer(contents.architecture)
    family = family_of_architecture(a)
    if problem := family.problem(a, tuple(network.heads)):
        raise UserError(f"Hugging Face's {problem}")
    class_name = family.class_name(network.heads, a.causal)
    if class_name is None:
        advice = (
            "; it has one without `pair`: train with objective.nsp=0 objective.sop=0" if "pair" in network.heads else ""
        )
        raise UserError(f"Hugging Face's {family.title} has no class with the heads {', '.join(network.heads)}{advice}")
    if family.model_type in ROBERTAS and pad is not None and pad != a.position_offset - 1:
        raise UserError(
            f"Hugging Face's {family.title} counts positions from its padding id {a.position_offset - 1}, "
            f"but the tokenizer pads with {pad}; use a tokenizer with RoBERTa's special tokens, or train with "
            f"model.position_offset={pad + 1}"
        )
    config: Json = {
        "architectures": [class_name],
        **config_from_architecture(a, family, pad),
        **label_tables(contents),
        **({CONTROLS: list(contents.controls)} if contents.controls else {}),
    }
    if tokenizer:
        start, end = tokenizer.id_of("cls"), tokenizer.end_id
        if family.model_type == "xlnet":  # [CLS] and [SEP] stand at the end of a text, and neither begins one
            start, end = (tokenizer.backend.token_to_id(token) for token in ("<s>", "</s>"))
        ends = {"bos_token_id": end if start is None else start, "eos_token_id": end}
        ends |= {"cls_token_id": start, "sep_token_id": end}
        config |= {key: value for key, value in ends.items() if key in config and value is not None}
    return config


def known_tokenizer(folder: Path, a: Architecture) -> Tokenizer | None:
    """Return the tokenizer of a Hugging Face folder that holds none: bytes, if it is a Reformer with their number."""
    if read_json(folder / CONFIG).get("model_type") != "reformer" or a.vocab_size != vocabulary_files.BYTE_VOCAB_SIZE:
        return None
    note(f"{folder}: holds no tokenizer; with {a.vocab_size} ids it is assumed to read bytes (id = byte + 2)")
    return Tokenizer(vocabulary_files.build_bytes(), vocabulary_files.BYTE_CONFIG)


def read_controls(folder: Path, tokenizer: Tokenizer | None) -> tuple[str, ...]:
    """Return the control codes of a Hugging Face folder: those that bertree wrote, or CTRL's own."""
    path = folder / CONFIG
    config = read_json(path)
    codes = config.get(CONTROLS, [])
    if not isinstance(codes, list) or not all(isinstance(code, str) and code for code in codes):
        raise UserError(f"{path}: {CONTROLS}: must be a list of texts")
    if codes or tokenizer is None or config.get("model_type") != "ctrl":
        return tuple(codes)
    unknown = tokenizer.id_of("unk")
    read = zip(CONTROL_CODES, tokenizer.encode_plain(CONTROL_CODES), strict=True)
    return tuple(code for code, tokens in read if len(tokens.ids) == 1 and tokens.ids[0] != unknown)


def unapplied_bias(family: Family, network: Network) -> str:
    """Return the name of a bias that the LM head has and transformers does not apply; "" if there is none."""
    bias = network.state_dict().get("heads.mask.bias")
    return family.unapplied_bias if bias is not None and bool(bias.any()) else ""


def warn_of_differences(contents: Contents) -> None:
    """Warn of what Hugging Face's tools will do differently with a model."""
    a = contents.architecture
    if isinstance(a, Transformer) and a.causal and a.memory and a.memory_start != "zeros":
        note("Hugging Face's TransfoXL begins with a memory of zeros, this model with none: first segments will differ")
    if isinstance(a, Transformer) and "lsh" in a.attention_kinds:
        rounds = a.eval_hashes or a.hashes
        if rounds > 1 and a.duplicates == "once":
            note(
                "Hugging Face's Reformer counts a token once for every hash that finds it, this model once in all "
                "(duplicates): outputs will differ"
            )
        if rounds != a.hashes:
            note(f"Hugging Face's Reformer hashes {a.hashes} times; give it num_hashes={rounds} outside of training")
    family = family_of_architecture(a)
    if family.library != "transformers":
        note(f"transformers 5 has no {family.title} any more: {family.library} is the last release that opens it")
    if bias := unapplied_bias(family, contents.network):
        note(f"transformers 5 does not apply {bias}, which is not zero: its logits will differ")


def problem_with_transformers(contents: Contents) -> str:
    """Return why the newest transformers cannot open a model, and with which settings it could; empty if it can."""
    try:
        make_config(contents)
    except UserError as error:
        return str(error)
    family = family_of_architecture(contents.architecture)
    if family.library == "transformers":
        return ""
    return f"transformers 5 has no {family.title} any more; {family.library} opens what `bertree convert` writes"


def label_tables(contents: Contents) -> Json:
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
