"""Hidden states of every word of a file, written as a matrix: features for other programs."""

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from bertree.console import note
from bertree.errors import UserError, suggest
from bertree.files.atomic import new_folder
from bertree.files.formats import npy_header
from bertree.finetuning.evaluate import encode_split
from bertree.finetuning.job import with_layout
from bertree.inference.load import choose_device, load_or_take
from bertree.inference.model import Model
from bertree.model.layers.embeddings import copy_spelling
from bertree.model.network import build
from bertree.model.readout import DEPTHS, Readout
from bertree.tasks.batches import inference_autocast, token_states
from bertree.tasks.files import read_inputs
from bertree.tasks.tagging.task import TaggingTask
from bertree.text.memory import Rows, takes_rows, task_fields

CHUNK = 1024  # lines read at once
FEATURES, WORDS = "features.npy", "words.jsonl"


@dataclass(frozen=True)
class FeatureFiles:
    """A folder of features: features.npy (words x width) and words.jsonl."""

    folder: Path
    words: int
    width: int
    texts: int


@takes_rows(file=task_fields)
def write_features(
    model: str | Path | Model,
    file: str | Path | Rows,
    out: str | Path,
    *,
    layers: str = "concat-last-four",
    max_length: int = 0,
    device: str = "auto",
    tokenizer: str | Path | None = None,
) -> FeatureFiles:
    """Write the hidden states of every word of a file as a matrix, and the words with their offsets.

    `layers`: last, embeddings, second-to-last, sum-last-four, concat-last-four or sum-all.
    """
    if file is None:
        raise UserError("file: give a file of texts, or rows")
    file, out = Path(file), Path(out)
    if layers not in DEPTHS:
        raise UserError(f"`layers={layers}`: {suggest(layers, DEPTHS)}")
    loaded, _ = load_or_take(model, device=choose_device(device), tokenizer=tokenizer)
    network = loaded.network
    if network.readout.layers != layers or network.readout.lstm:
        network = build(loaded.architecture, {}, Readout(layers=layers, frozen=True))
        # Weights of a sum are learned for its own layers and are not valid for others.
        kept = ("encoder.", "features.join.") if loaded.network.readout.layers == layers else ("encoder.",)
        weights = {name: tensor for name, tensor in loaded.network.state_dict().items() if name.startswith(kept)}
        network.load_state_dict(weights, strict=False)
        copy_spelling(network, loaded.network)
        network.to(loaded.device)
    task = with_layout(TaggingTask("tagging"), loaded, {})
    longest = loaded.sequence_length(max_length)
    rest = read_inputs(task, file, keep_blank=True)  # a line of the index for every line of the file
    count = words = 0
    with (
        new_folder(out, (FEATURES, WORDS)) as work,
        (work / FEATURES).open("w+b") as rows,
        (work / WORDS).open("w", encoding="utf-8") as index,
    ):
        rows.write(npy_header(0, 0, "<f4"))
        width = 0
        while examples := list(islice(rest, CHUNK)):
            part, cut = encode_split(task, examples, loaded, longest)
            if cut.examples:
                note(cut.message(str(file), len(examples), longest))
            for block in token_states(network, part.units, lambda: inference_autocast(loaded.device)):
                width = block.shape[1]
                rows.write(np.ascontiguousarray(block, "<f4").tobytes())
            for example in examples:
                text, offsets = example.with_offsets()
                line = {"text": text, "words": list(example.words), "offsets": offsets, "row": words}
                index.write(json.dumps(line, ensure_ascii=False) + "\n")
                words += len(example.words)
            count += len(examples)
        if not words:
            raise UserError(f"{file}: holds no words")
        rows.seek(0)
        rows.write(npy_header(words, width, "<f4"))
    return FeatureFiles(out, words, width, count)
