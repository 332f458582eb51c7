"""ELMo's weights as its authors publish them: options.json, weights.hdf5 and, perhaps, a vocabulary.

TensorFlow stores matrices transposed, gates as input, candidate, forget, output, and the highways' gates with the
opposite sign. The softmax of the language models is not among the published weights. Reading and writing HDF5 takes
h5py, which is not needed for anything else: `pip install bertree[elmo]`.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertree.errors import UserError
from bertree.files.atomic import new_folder, write_text
from bertree.files.formats import Json, check_regular, read_json
from bertree.interop.contents import Contents, build_empty
from bertree.model.architecture import Architecture, Lstm, check_type
from bertree.text.tokenizer import Tokenizer
from bertree.text.vocabulary_files import ELMO, ELMO_CONFIG, build_words

OPTIONS, WEIGHTS, VOCABULARY = "options.json", "weights.hdf5", "vocab.txt"
CHARACTERS = (261, 262)  # 262: with one for padding, which has no weights
GATES = (0, 2, 1, 3)  # order of TensorFlow's gates in ours, and the other way round
Array = NDArray[np.float32]
# Axis -> section and key of options.json.
KEYS = {
    "ffn_width": ("lstm", "dim"),
    "layers": ("lstm", "n_layers"),
    "embedding_width": ("lstm", "projection_dim"),
    "cell_clip": ("lstm", "cell_clip"),
    "projection_clip": ("lstm", "proj_clip"),
    "skip_connections": ("lstm", "use_skip_connections"),
    "characters": ("char_cnn", "max_characters_per_token"),
    "highways": ("char_cnn", "n_highway"),
}


class Reference(NamedTuple):
    """How one of our tensors is stored: in which arrays, and how they are joined and taken apart."""

    names: tuple[str, ...]
    join: Callable[..., Array] = lambda array: array
    split: Callable[[Array], tuple[Array, ...]] = lambda array: (array,)


def find_elmo(folder: Path) -> Path | None:
    """Return the options of a folder in the authors' layout; None if it is not one."""
    files = sorted(path for path in folder.glob(f"*{OPTIONS}") if path.is_file())
    return files[0] if len(files) == 1 else None


def read_elmo_architecture(options: Path) -> Lstm:
    """Read the architecture of a folder in the authors' layout."""
    tree, where = read_json(options), str(options)
    sections = {name: tree.get(name) for name in ("lstm", "char_cnn")}
    if not all(isinstance(section, dict) for section in sections.values()):
        raise UserError(f"{where}: needs the sections lstm and char_cnn; are these ELMo's options?")
    cnn: Json = sections["char_cnn"]  # type: ignore[assignment]
    axes: dict[str, Any] = {"cell_clip": 0.0, "projection_clip": 0.0, "skip_connections": False}
    for axis, (section, key) in KEYS.items():
        value = sections[section].get(key)  # type: ignore[union-attr]
        if value is not None:
            axes[axis] = check_type(axis, value, f"{where}: {section}.{key}")
        elif axis not in axes:
            raise UserError(f"{where}: {section}.{key}: is missing")
    filters, table = cnn.get("filters"), cnn.get("embedding")
    if not isinstance(filters, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in filters):
        raise UserError(f"{where}: char_cnn.filters: must be a list of [length, number]")
    if not isinstance(table, dict) or "dim" not in table:
        raise UserError(f"{where}: char_cnn.embedding.dim: is missing")
    if cnn.get("activation", "relu") != "relu" or cnn.get("n_characters", 262) not in CHARACTERS:
        raise UserError(f"{where}: char_cnn: only activation = relu and n_characters = 261 or 262 can be read")
    axes |= {
        "body": "lstm",
        "direction": "both",
        "width": axes["embedding_width"],
        "character_width": check_type("character_width", table["dim"], f"{where}: char_cnn.embedding.dim"),
        "filters": ",".join(f"{length}:{count}" for length, count in filters),
        "vocab_size": _read_tokenizer(options.parent).size,
    }
    try:
        a = Architecture.from_axes(axes)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    assert isinstance(a, Lstm)
    return a


def read_elmo(options: Path, dtype: torch.dtype) -> Contents:
    """Read a folder in the authors' layout, with its tokenizer."""
    a, folder = read_elmo_architecture(options), options.parent
    network = build_empty(a, {}, options)
    files = sorted(folder.glob(f"*{WEIGHTS}"))
    if len(files) != 1:
        raise UserError(f"{folder}: must hold one file ...{WEIGHTS}, but holds {len(files)}")
    state = our_tensors(a, _read_arrays(files[0]), str(files[0]))
    for name, wanted in network.state_dict().items():
        if state[name].shape != wanted.shape:
            shape, needed = (" x ".join(map(str, tensor.shape)) for tensor in (state[name], wanted))
            raise UserError(f"{files[0]}: {name} has shape {shape}, but {options.name} needs {needed}")
    network.load_state_dict({name: tensor.to(dtype) for name, tensor in state.items()}, assign=True)
    return Contents(a, network, _read_tokenizer(folder))


def _read_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of the vocabulary in a folder, one word per line. Without one every word is spelled."""
    files = sorted(path for path in folder.glob("*vocab*.txt") if path.is_file())
    if len(files) > 1:
        raise UserError(f"{folder}: holds {len(files)} vocabularies (*vocab*.txt); leave one of them")
    words = files[0].read_text("utf-8", "replace").split("\n") if files else []
    words = [word.rstrip("\r") for word in words]
    words = words[:-1] if words and not words[-1] else words
    words += [token for token in ELMO if token not in words]
    if len(set(words)) < len(words):
        raise UserError(f"{files[0]}: has a word twice; each line is an entry of the vocabulary")
    backend = build_words({word: number for number, word in enumerate(words)})
    return Tokenizer(backend, ELMO_CONFIG, name=str(files[0] if files else folder))


def references(a: Lstm) -> dict[str, Reference]:
    """Return how each tensor of the encoder is stored."""
    embeddings, table, transposed = "encoder.embeddings.tokens", {}, (np.transpose, lambda w: (w.T,))
    table[f"{embeddings}.table.weight"] = Reference(("char_embed",))
    for i in range(len(a.filter_table)):
        table[f"{embeddings}.filters.{i}.weight"] = Reference(
            (f"CNN/W_cnn_{i}",), lambda w: w.squeeze(0).transpose(2, 1, 0), lambda w: (w.transpose(2, 1, 0)[None],)
        )
        table[f"{embeddings}.filters.{i}.bias"] = Reference((f"CNN/b_cnn_{i}",))
    for i in range(a.highways):
        for ours, theirs in (("weight", "W"), ("bias", "b")):
            names = (f"CNN_high_{i}/{theirs}_transform", f"CNN_high_{i}/{theirs}_carry")
            table[f"{embeddings}.highways.{i}.{ours}"] = Reference(names, _join_highway, _split_highway)
    table[f"{embeddings}.projection.weight"] = Reference(("CNN_proj/W_proj",), *transposed)
    table[f"{embeddings}.projection.bias"] = Reference(("CNN_proj/b_proj",))
    for layer in range(a.layers):
        for direction in range(a.readers):
            ours = f"encoder.stack.layers.{layer}.directions.{direction}"
            theirs = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            matrix = (f"{theirs}/W_0",)
            for half, name in enumerate(("inputs", "recurrent")):
                table[f"{ours}.{name}.weight"] = Reference(matrix, partial(_half, half), lambda w: (_gates(w).T,))
            table[f"{ours}.inputs.bias"] = Reference((f"{theirs}/B",), _gates, lambda b: (_gates(b),))
            table[f"{ours}.projection.weight"] = Reference((f"{theirs}/W_P_0",), *transposed)
    return table


def our_tensors(a: Lstm, arrays: Mapping[str, Array], where: str) -> dict[str, Tensor]:
    """Return our tensors, by name, of the stored arrays."""
    tensors = {}
    for name, reference in references(a).items():
        for theirs in reference.names:
            if theirs not in arrays:
                raise UserError(f"{where}: '{theirs}' is missing")
        try:
            joined = reference.join(*(arrays[theirs] for theirs in reference.names))
        except ValueError:
            raise UserError(f"{where}: '{reference.names[0]}' has a shape that it cannot have") from None
        tensors[name] = torch.from_numpy(np.array(joined, np.float32, order="C"))
    return tensors


def their_arrays(a: Lstm, tensors: Mapping[str, Tensor]) -> dict[str, Array]:
    """Return the stored arrays, by name, of our tensors."""
    arrays: dict[str, Array] = {}
    for name, reference in references(a).items():
        parts = reference.split(tensors[name].detach().float().cpu().numpy())
        for theirs, part in zip(reference.names, parts, strict=True):
            # An LSTM's two matrices lie below each other in one.
            arrays[theirs] = np.concatenate([arrays[theirs], part]) if theirs in arrays else part
    return arrays


def _half(half: int, array: Array) -> Array:
    """Return one of an LSTM's two matrices, which lie below each other."""
    return _gates(np.split(array, 2)[half].T)


def _gates(array: Array) -> Array:
    """Exchange the order of the gates: candidate and forget, either way."""
    parts = np.split(array, 4)
    return np.concatenate([parts[gate] for gate in GATES])


def _join_highway(transform: Array, carry: Array) -> Array:
    return np.concatenate([transform.T, -carry.T])


def _split_highway(array: Array) -> tuple[Array, ...]:
    transform, carry = np.split(array, 2)
    return transform.T, -carry.T


def write_elmo(contents: Contents, folder: Path) -> None:
    """Write a folder in the authors' layout: options, weights of the encoder and vocabulary."""
    a = contents.architecture
    if not isinstance(a, Lstm) or not a.characters or a.direction != "both":
        raise UserError(f"{folder}: ELMo's layout is for an lstm of both directions that reads characters")
    h5py = _h5py()
    sections: dict[str, Json] = {"lstm": {}, "char_cnn": {}}
    for axis, (section, key) in KEYS.items():
        sections[section][key] = getattr(a, axis)
    for key in ("cell_clip", "proj_clip"):
        sections["lstm"][key] = sections["lstm"][key] or None
    sections["char_cnn"] |= {
        "embedding": {"dim": a.character_width},
        "filters": [list(pair) for pair in a.filter_table],
        "n_characters": CHARACTERS[1],
        "activation": "relu",
    }
    with new_folder(folder, (OPTIONS, WEIGHTS, VOCABULARY)) as work:
        write_text(work / OPTIONS, json.dumps(sections, indent=2) + "\n")
        with h5py.File(work / WEIGHTS, "w") as file:
            for name, array in their_arrays(a, contents.network.state_dict()).items():
                file.create_dataset(name, data=np.ascontiguousarray(array))
        if contents.tokenizer is not None:
            tokens = [contents.tokenizer.backend.id_to_token(i) or "" for i in range(contents.tokenizer.size)]
            write_text(work / VOCABULARY, "".join(f"{token}\n" for token in tokens))


def _read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an HDF5 file that lie in the file itself, not those it links to."""
    check_regular(path)
    h5py, arrays = _h5py(), {}

    def take(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.dtype == np.float32 and not (item.is_virtual or item.external):
            arrays[name] = item[...]

    try:
        with h5py.File(path, "r") as file:
            file.visititems(take)
    except (OSError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: is not a complete HDF5 file ({reason}); copy or download it again") from None
    return arrays


def _h5py() -> Any:
    try:
        import h5py
    except ImportError:
        raise UserError("ELMo's weights are HDF5, which takes h5py: pip install 'bertree[elmo]'") from None
    return h5py
