"""An ONNX file computes what the model does: every family, with and without vectors, whatever is padded."""

import json
import os
import re
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.inputs import pack_inputs
from bertree.inference.load import Model, convert, random_model
from bertree.interop import folder, onnx
from bertree.interop.contents import Contents
from bertree.interop.padded import PaddedModel
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.pooling import Dense, PoolingConfig
from bertree.model.presets import preset
from bertree.model.readout import Readout
from tests.support.command import Command
from tests.support.later_axes import LATER
from tests.support.learnable import Trained
from tests.support.parts import UNKNOWN
from tests.support.shared import suite_has

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
if any(find_spec(name) is None for name in ("onnxruntime", "onnxscript")):
    pytest.skip("needs ONNX Runtime and onnxscript", allow_module_level=True)

SMALL = {"vocab_size": 60, "width": 32, "heads": 4, "layers": 1, "ffn_width": 48, "max_positions": 40}
TEXTS = [[5, 9, 11, 3], [7], [8, 8, 20, 31, 40, 59, 1, 2, 3, 12, 13], [4, 6]]


def model_of(
    a: Architecture, vector: PoolingConfig | None, readout: Readout | None = None, heads: dict[str, int] | None = None
) -> Contents:
    torch.manual_seed(0)
    network = build(a, heads, readout, vector).eval()
    with torch.no_grad():
        for name, p in network.named_parameters():
            p.copy_(torch.randn_like(p) * 0.2 + (1.0 if "norm.weight" in name else 0.0))
    return Contents(a, network)


def session(path: Path) -> "InferenceSession":
    import onnxruntime

    return onnxruntime.InferenceSession(str(path / onnx.FILE), providers=["CPUExecutionProvider"])


def padded(texts: list[list[int]]) -> dict[str, np.ndarray]:
    """All texts padded to the longest, with an id that means something."""
    longest = max(map(len, texts))
    mask = np.array([[1] * len(t) + [0] * (longest - len(t)) for t in texts])
    ids = np.array([t + [7] * (longest - len(t)) for t in texts])
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}


def computed(path: Path, texts: list[list[int]]) -> np.ndarray:
    """By ONNX Runtime."""
    opened, inputs = session(path), padded(texts)
    (output,) = opened.run(None, {i.name: inputs[i.name] for i in opened.get_inputs()})
    return output


def vectors(contents: Contents) -> np.ndarray:
    """By the model itself."""
    model = Model(contents)
    batch = pack_inputs(model.tokenize(TEXTS), model.architecture.vocab_size)
    with torch.no_grad():
        return model.network.vectors(model.network(batch), batch).numpy()


@pytest.mark.parametrize("pooling", ["cls+max", "last+min", "mean+sqrt", "weighted"])
@pytest.mark.parametrize("name", ["bert-base", "roberta-base", "albert-base", "distilbert-base"])
def test_vectors_of_what_is_exported(name: str, pooling: str) -> None:
    a = preset(name).architecture.with_values(SMALL | {"layers": 2})
    contents = model_of(a, PoolingConfig(pooling, True, (Dense(20, "tanh"),)))
    module = PaddedModel(contents)
    inputs = padded(TEXTS)
    with torch.no_grad():
        output = module(*(torch.from_numpy(inputs[name]) for name in module.names)).numpy()
    np.testing.assert_allclose(output, vectors(contents), atol=1e-5)


def logits(contents: Contents, head: str) -> list[np.ndarray]:
    """By the model itself: an array for each text."""
    batch = Batch.pack(TEXTS)
    with torch.no_grad():
        rows = contents.network.class_logits(head, contents.network(batch), batch).numpy()
    if head not in ("token", "span"):
        return list(rows)
    return np.split(rows, np.cumsum([len(text) for text in TEXTS])[:-1])


READOUTS = [None, Readout(layers="sum-all"), Readout(layers="concat-last-four", frozen=True)]
HEADS = ["sequence", "token", "span", "choice"]
POOLED = Readout(pooled=True)  # a head that reads the vector


@pytest.mark.parametrize(
    "name", suite_has(["roberta-base", "albert-base"], ["bert-base", "roberta-base", "albert-base", "distilbert-base"])
)
@pytest.mark.parametrize(
    ("head", "readout"), [(head, readout) for head in HEADS for readout in READOUTS] + [("sequence", POOLED)]
)
def test_logits_of_what_is_exported(name: str, head: str, readout: Readout | None) -> None:
    a = preset(name).architecture.with_values(SMALL | {"layers": 4})
    contents = model_of(a, PoolingConfig("mean", True) if readout is POOLED else None, readout, {head: 3})
    module, inputs = PaddedModel(contents), padded(TEXTS)
    with torch.no_grad():
        output = module(*(torch.from_numpy(inputs[name]) for name in module.names))
    joined = torch.stack(output, -1) if head == "span" else output
    for row, wanted in zip(joined.numpy(), logits(contents, head), strict=True):
        np.testing.assert_allclose(row[: len(wanted)], wanted, atol=1e-5)


def keep_float32(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """Keep a copy of the folder that int8 is made from."""
    quantize = onnx._quantize

    def keep_and_quantize(source: Path, target: Path) -> None:
        shutil.copytree(source.parent, path)
        quantize(source, target)

    monkeypatch.setattr(onnx, "_quantize", keep_and_quantize)


def check_logits(path: Path, contents: Contents, head: str, outputs: list[str], labels: list[str]) -> None:
    """An int8 file and the float32 one beside it compute what the model does, as exactly as is stated."""
    config = json.loads((path / "int8" / "config.json").read_text())
    assert config["onnx"]["outputs"] == outputs
    assert list(config.get("id2label", {}).values()) == labels
    stated = config["onnx"]["largest_error"]
    assert 0 < stated < 3
    for name, allowed in (("float32", 1e-5), ("int8", stated)):
        opened, inputs = session(path / name), padded(TEXTS)
        output = opened.run(outputs, {i.name: inputs[i.name] for i in opened.get_inputs()})
        joined = np.stack(output, -1) if head == "span" else output[0]
        for row, wanted in zip(joined, logits(contents, head), strict=True):
            np.testing.assert_allclose(row[: len(wanted)], wanted, atol=allowed, rtol=0)


@pytest.mark.proof  # both outputs are compared without a file above; an export takes seconds
def test_a_head_of_a_row_for_each_token_is_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = model_of(preset("bert-base").architecture.with_values(SMALL), None, None, {"span": 2})
    keep_float32(monkeypatch, tmp_path / "float32")
    onnx.write(contents, tmp_path / "int8", "int8")
    check_logits(tmp_path, contents, "span", ["start_logits", "end_logits"], [])


def test_a_head_that_reads_the_vector_is_only_in_an_onnx_file(tmp_path: Path) -> None:
    a = preset("bert-base").architecture.with_values(SMALL)
    contents = model_of(a, PoolingConfig("mean", True), POOLED, {"sequence": 3})
    with pytest.raises(UserError, match="convert it to onnx, which keeps the head"):
        folder.write(contents, tmp_path / "theirs", "huggingface")


def test_a_trained_classifier_by_the_command(
    tmp_path: Path, trained: Trained, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_float32(monkeypatch, tmp_path / "float32")
    result = command.well(
        "convert", trained("classification") / "model", tmp_path / "int8", "--to", "onnx", "--precision", "int8"
    )
    assert "model.onnx: gives logits of " in result.out
    model = bertree.load(trained("classification") / "model")
    contents = folder.read(trained("classification") / "model")
    check_logits(tmp_path, contents, "sequence", ["logits"], model.labels)
    config = json.loads((tmp_path / "int8" / "config.json").read_text())
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["onnx"]["labels"] == list(model.labels)
    backend = Tokenizer.from_file(str(tmp_path / "int8" / "tokenizer.json"))
    texts = ["a good day", "a bad one, and a long one"]
    output = computed(tmp_path / "float32", [backend.encode(text).ids for text in texts])
    predicted = [answer["predicted"] for answer in model.predict(texts)]
    assert [config["id2label"][str(row.argmax())] for row in output] == predicted
    with pytest.raises(UserError, match=r"holds model\.onnx, which ONNX Runtime reads"):
        bertree.load(tmp_path / "int8")
    monkeypatch.setattr(onnx, "_results", lambda *_: torch.zeros(2))
    with pytest.raises(UserError, match="ONNX: the file's results differ from the model's by"):
        onnx._largest_error(contents, PaddedModel(contents), tmp_path / "float32" / onnx.FILE, "float32")


@pytest.mark.parametrize("in_a_file", suite_has([False], [False, True]))
def test_states_of_a_model_without_vectors(in_a_file: bool, tmp_path: Path) -> None:
    """One that has positions with an offset, a narrow embedding and shared layers."""
    axes = {"embedding_width": 16, "layers": 2, "sharing": "all", "residual": "pre-norm", "activation": "gelu-tanh"}
    contents = model_of(preset("roberta-base").architecture.with_values(SMALL | axes), None)
    if in_a_file:
        folder.write(contents, tmp_path / "model")
        convert(tmp_path / "model", tmp_path / "o", "onnx")
        output = computed(tmp_path / "o", TEXTS)
    else:
        module, inputs = PaddedModel(contents), padded(TEXTS)
        with torch.no_grad():
            output = module(*(torch.from_numpy(inputs[name]) for name in module.names)).numpy()
    for row, wanted in zip(output, Model(contents).hidden(TEXTS), strict=True):
        np.testing.assert_allclose(row[: len(wanted)], wanted.numpy(), atol=1e-5)


def shortened(source: Path, target: Path) -> Path:
    """The first layer of a model with vectors of all kinds of pooling: the time of an export grows with the layers."""
    examples = folder.read(source)
    a = examples.architecture.with_values({"layers": 1})
    torch.manual_seed(0)
    network = build(a, {}, vector=PoolingConfig("mean+cls+max+last+sqrt+weighted", True, (Dense(64, "tanh"),)))
    missing, _ = network.load_state_dict(examples.network.state_dict(), strict=False)
    assert all(name.startswith("vector.") for name in missing)
    folder.write(replace(examples, architecture=a, network=network), target)
    return target


@pytest.mark.proof  # vectors are compared without a file above, and a classifier's file is; an export takes seconds
def test_real_weights_by_the_command(
    tmp_path: Path, minilm: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["A dog runs.", "Stocks fell sharply on Monday after the report was published.", "Yes"]
    few = shortened(minilm, tmp_path / "few")
    model = bertree.load(few)
    wanted, ids = model.embed(texts), [e.ids for e in model.tokenize(texts)]
    keep_float32(monkeypatch, tmp_path / "float32")
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    assert command.well("convert", few, tmp_path / "int8", "--to", "onnx", "--precision", "int8").err == ""
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1", "nothing goes over the network"
    assert {"model.onnx", "tokenizer.json"} <= {path.name for path in (tmp_path / "int8").iterdir()}
    np.testing.assert_allclose(computed(tmp_path / "float32", ids), wanted, atol=1e-5)
    np.testing.assert_allclose(computed(tmp_path / "float32", ids[:1]), wanted[:1], atol=1e-5)
    assert (computed(tmp_path / "int8", ids) * wanted).sum(1).min() > 0.95
    assert (tmp_path / "int8" / onnx.FILE).stat().st_size < 0.3 * (tmp_path / "float32" / onnx.FILE).stat().st_size
    result = command("convert", few, tmp_path / "int8", "--to", "onnx")
    assert (result.code, len(result.lines)) == (2, 1)
    assert "--force" in result.err


@pytest.mark.parametrize(
    ("changes", "readout", "reason"),
    [
        ({"attention": "causal"}, Readout(), "is for transformers with full attention"),
        ({}, Readout(lstm=4), r"an LSTM on the encoder \(lstm\)"),
        ({}, Readout(crf=True), r"a CRF, which chooses tags together \(crf\)"),
    ],
)
def test_others_are_refused(tmp_path: Path, changes: dict[str, object], readout: Readout, reason: str) -> None:
    contents = model_of(preset("bert-base").architecture.with_values(SMALL | changes), None, readout, {"token": 3})
    with pytest.raises(UserError, match=f"ONNX: .*{reason}"):
        onnx.write(contents, tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("point", LATER)
def test_axes_it_does_not_know_are_refused(tmp_path: Path, point: str) -> None:
    axes, reason = LATER[point]
    contents = model_of(preset("bert-base").architecture.with_values(SMALL | axes), None)
    wanted = "full attention" if "attention" in axes else re.escape(reason)
    with pytest.raises(UserError, match=f"ONNX: .*{wanted}"):
        onnx.write(contents, tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(("axes", "reason"), [({}, "a query stream"), ({"query_stream": False}, "RelativePositions")])
def test_xlnet_is_refused(tmp_path: Path, axes: dict[str, object], reason: str) -> None:
    contents = model_of(preset("xlnet-base").architecture.with_values(SMALL | axes), None)
    with pytest.raises(UserError, match=f"ONNX: encoder.* has {reason}, which bertree cannot export"):
        onnx.write(contents, tmp_path / "o")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("change", UNKNOWN)
def test_unknown_parts_are_refused_by_name(tmp_path: Path, change: str) -> None:
    contents = model_of(preset("bert-base").architecture.with_values(SMALL | {"layers": 2}), None)
    put_in, reason = UNKNOWN[change]
    put_in(contents.network.encoder)
    with pytest.raises(UserError, match=re.escape(f"ONNX: {reason}")):
        onnx.write(contents, tmp_path / "o")
    assert not (tmp_path / "o").exists()


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(preset("bert-base").architecture.with_values(SMALL), {})
    with pytest.raises(UserError, match="float32 or int8"):
        onnx.write(model._contents, tmp_path / "o", "float16")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'bertree\[onnx\]'"):
        onnx.write(model._contents, tmp_path / "o")
