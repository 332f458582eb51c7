"""Read and write model folders: configuration, weights, tokenizer, and `bertree.toml`.

If Hugging Face has the architecture, the weights have its names and `config.json` is its own, so both libraries read
the same folder. Otherwise the weights have bertree's names and only `bertree.toml` describes them. The same holds if
the readout uses more than the last states, and if the weights are stored as int8. A model that makes vectors is also a
folder of sentence-transformers, if Hugging Face has its encoder.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from bertree.config.names import MODEL_FILES
from bertree.errors import UserError
from bertree.files.atomic import new_folder, write_text
from bertree.files.formats import Json
from bertree.interop import elmo, sentence_transformers, weights
from bertree.interop.contents import Contents, add_pooling, build_empty, head_classes, maximum_length
from bertree.interop.description import INT8, Description, checksums, compare_weights, read_description
from bertree.interop.huggingface import folder as hf_folder
from bertree.interop.huggingface.config import family_of_architecture, require_transformer
from bertree.interop.huggingface.family import hf_tensor_names
from bertree.interop.huggingface.folder import make_config, read_huggingface, read_huggingface_architecture
from bertree.interop.weights import Stored, Weights
from bertree.model.architecture import Architecture
from bertree.model.network import Network
from bertree.run_folder import RECIPE
from bertree.scale.shards import whole_tensors
from bertree.scale.world import World
from bertree.text.tokenizer import FILES as TOKENIZER_FILES
from bertree.text.tokenizer import Tokenizer

CONFIG, DESCRIPTION = MODEL_FILES
PADDED_VOCABULARY = 1024  # most rows that a model may have beyond its tokenizer's: vocabularies are padded


def read(folder: Path, dtype: torch.dtype = torch.float32, tokenizer: Tokenizer | None = None) -> Contents:
    """Read and check a folder of either layout; `tokenizer` replaces the folder's own."""
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file, not a model folder")
    try:
        if (folder / DESCRIPTION).is_file():
            contents = _read_bertree(folder, dtype)
        elif (folder / CONFIG).is_file():
            contents = read_huggingface(folder, dtype)
        elif options := elmo.find_elmo(folder):
            contents = elmo.read_elmo(options, dtype)
        else:
            raise _not_a_model(folder)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: cannot be read ({error.strerror})") from None
    contents.tokenizer = tokenizer or contents.tokenizer or Tokenizer.load(folder)
    if tokenizer is None and contents.tokenizer is not None and sentence_transformers.wants_lowercase(folder):
        contents.tokenizer = contents.tokenizer.with_lowercase()
    if (folder / CONFIG).is_file() and not (folder / DESCRIPTION).is_file():
        contents.tokenizer = contents.tokenizer or hf_folder.known_tokenizer(folder, contents.architecture)
        contents.controls = hf_folder.read_controls(folder, contents.tokenizer)
        contents.takes_given = "Links" in contents.controls  # CTRL's code before a URL
    contents.set_tokenizer(contents.tokenizer)
    _check_vocabulary(contents, folder)
    _check_max_length(contents, folder)
    return contents


def read_architecture(folder: Path) -> Architecture:
    """Read the architecture of a folder without its weights."""
    if (folder / DESCRIPTION).is_file():
        return read_description(folder / DESCRIPTION).architecture
    if (folder / CONFIG).is_file():
        return read_huggingface_architecture(folder)
    if options := elmo.find_elmo(folder):
        return elmo.read_elmo_architecture(options)
    raise _not_a_model(folder)


def read_heads(folder: Path) -> Iterable[str]:
    """Read the names of a folder's heads without its weights. A folder of ELMo has an encoder alone."""
    if (folder / DESCRIPTION).is_file():
        return read_description(folder / DESCRIPTION).heads
    return hf_folder.read_huggingface_heads(folder) if (folder / CONFIG).is_file() else ()


def read_max_length(folder: Path) -> int:
    """Read the maximum length of a folder's model without its weights."""
    if (folder / DESCRIPTION).is_file():
        ours = read_description(folder / DESCRIPTION)
        return maximum_length(ours.architecture, ours.max_length, ours.task)
    return maximum_length(read_architecture(folder), hf_folder.read_limit(folder), {})


def read_task(folder: Path) -> Json:
    """Return name and settings of the task that a model was fine-tuned for; empty if its folder names none."""
    return read_description(folder / DESCRIPTION).task if (folder / DESCRIPTION).is_file() else {}


def _not_a_model(folder: Path) -> UserError:
    if (folder / RECIPE).is_file() or any(folder.glob(f"seed-*/{RECIPE}")):
        return UserError(f"{folder}: is the folder of a run that has no model yet; continue it with `resume=True`")
    return UserError(f"{folder}: holds neither {CONFIG} nor {DESCRIPTION}, so it is not a model folder")


def _read_bertree(folder: Path, dtype: torch.dtype) -> Contents:
    ours = read_description(folder / DESCRIPTION)
    theirs = ours.layout == "huggingface"
    network = build_empty(
        ours.architecture, ours.heads, folder / DESCRIPTION, ours.readout, None if theirs else ours.vector
    )
    tensors = Weights(folder, int8=ours.storage == INT8)
    try:
        table = _table(ours.layout, ours.architecture, network)
    except UserError as error:
        raise UserError(f"{folder / DESCRIPTION}: {error}") from None
    weights.load_into(network, tensors, table, dtype)
    if theirs:
        add_pooling(network, ours.architecture, ours.vector, folder, dtype)
    compare_weights(folder, ours.files)
    return Contents(
        ours.architecture,
        network,
        labels=ours.labels,
        max_length=ours.max_length,
        task=ours.task,
        controls=ours.controls,
        takes_given=ours.takes_given,
    )


def _table(layout: str, a: Architecture, network: Network) -> dict[str, Stored]:
    state = network.state_dict()
    if layout == "huggingface":
        here = [name for name in state if not name.startswith("vector.")]  # stored in folders of their own
        return hf_tensor_names(family_of_architecture(a), require_transformer(a), head_classes(network), here)
    return {name: Stored((name,)) for name in state}


def _check_vocabulary(contents: Contents, folder: Path) -> None:
    if contents.tokenizer is None:
        return
    size, wanted = contents.tokenizer.size, contents.architecture.vocab_size
    if size > wanted or size <= wanted - PADDED_VOCABULARY:
        raise UserError(
            f"{folder}: the tokenizer has {size} tokens, but the model was trained with {wanted}; "
            "put the model's own tokenizer files there, or remove them to work with ids alone"
        )


def _check_max_length(contents: Contents, folder: Path) -> None:
    """Refuse a maximum length, of a settings file in the folder, that only the special tokens would fill."""
    if contents.tokenizer is None or contents.max_length is None:
        return
    special = contents.tokenizer.backend.num_special_tokens_to_add(False)
    if contents.max_length <= special:
        raise UserError(
            f"{folder}: its maximum length is {contents.max_length} tokens, which leaves no room for text after "
            f"{special} special tokens (max_length, max_seq_length or model_max_length)"
        )


def write(
    contents: Contents, folder: Path, to: str = "bertree", dtype: torch.dtype | None = None, force: bool = True
) -> None:
    """Write a folder completely or not at all. `to`: "bertree", or "huggingface" (without bertree.toml; UserError
    if Hugging Face has no such model).

    `dtype`: precision of the written weights, by default their own; int8 is for bertree's folders only. `force=False`
    refuses to replace another model.
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
            config, layout = make_config(contents), "huggingface"
    except UserError:
        if to == "huggingface":
            raise
    if to == "huggingface":
        hf_folder.warn_of_differences(contents)
    ours = (CONFIG, DESCRIPTION, weights.SINGLE, *TOKENIZER_FILES, *sentence_transformers.files())
    with new_folder(folder, ours, force) as work:
        config["dtype"] = str(dtype or next(network.parameters()).dtype).removeprefix("torch.")
        write_text(work / CONFIG, json.dumps(config, indent=2) + "\n")
        weights.save(network, _table(layout, a, network), work / weights.SINGLE, dtype)
        if network.vector is not None and layout == "huggingface":
            limit = maximum_length(a, contents.max_length, contents.task)
            sentence_transformers.write_pooling(network.vector, a.output_width, work, limit, dtype)
        if contents.tokenizer:
            contents.tokenizer.save(work, contents.max_length if to == "huggingface" else None, a.reads_segments)
        if to == "bertree":
            description = Description(
                architecture=a,
                heads=head_classes(network),
                layout=layout,
                labels=contents.labels,
                max_length=contents.max_length,
                readout=network.readout,
                task=contents.task,
                storage=INT8 if int8 else "",
                vector=network.vector.config if network.vector is not None else None,
                files=checksums(work),
                controls=contents.controls,
                takes_given=contents.takes_given,
            )
            write_text(work / DESCRIPTION, description.as_toml())


def check_huggingface(contents: Contents, where: Path) -> None:
    """Raise a UserError that names the folder if Hugging Face has no such model."""
    try:
        make_config(contents)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def write_together(contents: Contents, folder: Path, world: World) -> None:
    """Write the folder of a model that is sharded over ranks: rank 0 gathers the tensors one by one in host memory."""
    if not world.joined:
        write(contents, folder)
        return
    state = {}
    for name, tensor in whole_tensors(contents.network, world):
        if world.is_first:
            state[name] = tensor.cpu()

    def write_gathered() -> None:
        if world.is_first:
            vector = contents.network.vector.config if contents.network.vector is not None else None
            heads, readout = head_classes(contents.network), contents.network.readout
            network = build_empty(contents.architecture, heads, folder, readout, vector)
            network.load_state_dict(state, assign=True)
            write(replace(contents, network=network), folder)

    world.check_together(write_gathered)
