"""Export a model as a folder that other run times can deploy: `model.onnx`, the tokenizer, and `config.json`.

The graph holds the encoder, its readout and the head of its task (padded.py). `config.json` names the labels as
transformers does, if it has the architecture the rest of it too, and under `onnx` the inputs, the outputs and the
largest difference between ONNX Runtime's results and the model's own, which is measured whenever a file is written.
"""

import importlib
import importlib.util
import json
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import UserError, install_hint
from bertree.files.atomic import new_folder, write_text
from bertree.files.formats import Json, read_json
from bertree.interop import weights
from bertree.interop.contents import Contents
from bertree.interop.huggingface.folder import CONFIG, label_tables, make_config
from bertree.interop.padded import PaddedModel
from bertree.text.tokenizer import FILES as TOKENIZER_FILES

FILE, EXTERNAL_DATA = weights.ONNX, f"{weights.ONNX}.data"
DETAILS = "onnx"  # key of config.json
PRECISIONS = ("float32", "int8")
MAX_SINGLE_FILE = 2**30  # bytes of weights; larger ones go to a second file (the format's limit is twice this)
NEEDED = ("onnx", "onnxscript", "onnxruntime")
SAMPLES, LONGEST_SAMPLE = 256, 64  # sequences of random tokens on which the results are compared, and their length
TOLERANCE = 1e-4  # of float32, relative to the largest result above 1
BATCH = 8  # sequences that are computed at once
MOST_LABELS = 6  # that a description names
MARGIN = 2.0  # an int8 file's stated error, as a multiple of the largest one in the samples


def write(contents: Contents, folder: Path, precision: str = "float32") -> None:
    """Write the folder, completely or not at all. int8: ONNX Runtime's dynamic quantization."""
    if precision not in PRECISIONS:
        raise UserError(f"precision {precision}: an ONNX file is written in {' or '.join(PRECISIONS)}")
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"ONNX: {', '.join(missing)} not installed; {install_hint('onnx')}")
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # else ONNX Runtime sends telemetry
    module = PaddedModel(contents)
    with new_folder(folder, (FILE, EXTERNAL_DATA, CONFIG, *TOKENIZER_FILES)) as work, _quiet():
        if precision == "int8":
            with tempfile.TemporaryDirectory(dir=work) as scratch:
                _export(module, Path(scratch) / FILE)
                _quantize(Path(scratch) / FILE, work / FILE)
        else:
            _export(module, work / FILE)
        error = _largest_error(contents, module, work / FILE, precision)
        config = _config(contents) | {DETAILS: _details(contents, module, precision, error)}
        write_text(work / CONFIG, json.dumps(config, indent=2) + "\n")
        if contents.tokenizer:
            contents.tokenizer.save(work, contents.max_length, contents.architecture.reads_segments)


def read_details(folder: Path) -> Json:
    """Return inputs, outputs, labels and the error of a file that was written."""
    details: Json = read_json(folder / CONFIG)[DETAILS]
    return details


def describe(folder: Path) -> str:
    """Return what a written file computes, and how exactly."""
    details = read_details(folder)
    names, labels = " and ".join(details["outputs"]), details["labels"]
    classes = f" of {', '.join(labels[:MOST_LABELS])}{' ...' if len(labels) > MOST_LABELS else ''}" if labels else ""
    least = "at most" if details["precision"] == "int8" else "by"
    return (
        f"gives {names}{classes}; in ONNX Runtime they differ {least} {details['largest_error']:.2g} from the model's"
    )


def _config(contents: Contents) -> Json:
    try:
        return make_config(contents)
    except UserError:  # transformers has no such model, but its labels have names
        return {"model_type": "bertree", **label_tables(contents)}


def _details(contents: Contents, module: PaddedModel, precision: str, error: float) -> Json:
    a = contents.architecture
    return {
        "inputs": module.names,
        "outputs": module.outputs,
        "head": module.task_head,
        "task": contents.task.get("name", ""),
        "labels": contents.labels,
        "max_length": min(contents.max_length or a.longest_input, a.longest_input),
        "precision": precision,
        "largest_error": error,
    }


def _export(module: PaddedModel, path: Path) -> None:
    example = tuple(torch.ones(2, 3, dtype=torch.long) for _ in module.names)  # a separate tensor for each input
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    torch.onnx.export(
        module,
        example,
        str(path),
        dynamo=True,
        input_names=module.names,
        output_names=module.outputs,
        dynamic_shapes=tuple(sizes for _ in module.names),
        external_data=size > MAX_SINGLE_FILE,
        verbose=False,
    )


def _quantize(source: Path, target: Path) -> None:
    tools = importlib.import_module("onnxruntime.quantization")
    model = importlib.import_module("onnx").load(str(source))
    del model.graph.value_info[:]  # the tool transposes weights, which would contradict the noted shapes
    tools.quantize_dynamic(model, str(target), per_channel=True, weight_type=tools.QuantType.QInt8)


def _largest_error(contents: Contents, module: PaddedModel, path: Path, precision: str) -> float:
    """Compare ONNX Runtime with the packed network on random tokens; UserError if a float32 file computes otherwise.

    int8 rounds each batch by its largest value, so its error on other texts may be larger: it is stated with a margin.
    """
    runtime = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    error, largest = 0.0, 1.0
    for ids, segments in _samples(contents):
        length = max(map(len, ids))
        rows = {
            "input_ids": [row + [0] * (length - len(row)) for row in ids],
            "attention_mask": [[1] * len(row) + [0] * (length - len(row)) for row in ids],
            "token_type_ids": [row + [0] * (length - len(row)) for row in segments],
        }
        outputs = session.run(module.outputs, {name: np.array(rows[name]) for name in module.names})
        computed = torch.from_numpy(np.stack(outputs, -1) if len(outputs) > 1 else outputs[0])
        wanted = _results(contents, module, ids, segments)
        if computed.ndim > 2:  # a row for each token
            computed = torch.cat([row[: len(text)] for row, text in zip(computed, ids, strict=True)])
        error = max(error, float((computed - wanted).abs().max()))
        largest = max(largest, float(wanted.abs().max()))
    if precision == "float32" and not error <= TOLERANCE * largest:
        raise UserError(f"ONNX: the file's results differ from the model's by {error:.3g}; please report this model")
    return error if precision == "float32" else MARGIN * error


@torch.no_grad()
def _results(contents: Contents, module: PaddedModel, ids: list[list[int]], segments: list[list[int]]) -> Tensor:
    """Return what the network itself computes: a row for each text, or for each token."""
    network, batch = contents.network, Batch.pack(ids, segments)
    hidden = network(batch)
    if module.task_head:
        return network.class_logits(module.task_head, hidden, batch).float()
    return hidden.float() if network.vector is None else network.vectors(hidden, batch)


def _samples(contents: Contents) -> Iterator[tuple[list[list[int]], list[list[int]]]]:
    """Yield batches of random tokens, the same every time: texts of all lengths, half of them in two segments."""
    a, draw = contents.architecture, np.random.default_rng(0)
    longest = min(contents.max_length or LONGEST_SAMPLE, a.longest_input, LONGEST_SAMPLE)
    for _ in range(0, SAMPLES, BATCH):
        ids = [draw.integers(0, a.vocab_size, draw.integers(1, longest + 1)).tolist() for _ in range(BATCH)]
        halves = [len(row) // 2 if number % 2 else 0 for number, row in enumerate(ids)]
        second = 1 if a.reads_segments else 0
        yield ids, [[0] * (len(row) - half) + [second] * half for row, half in zip(ids, halves, strict=True)]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's warnings, which say nothing about the model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
