"""Transformer-XL in a folder of Hugging Face's last release: outputs as recorded, and the same tensors when written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from bertree.batch import Batch, Continuation
from bertree.errors import BertreeWarning, UserError
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.interop.huggingface.config import family_of_architecture, require_transformer
from bertree.interop.huggingface.family import hf_tensor_names
from bertree.model.cost import parameters
from bertree.model.memory import MEMORY
from bertree.model.network import build
from bertree.model.presets import PRESETS

GOLDEN = Path(__file__).parent.parent / "golden" / "transformer_xl.safetensors"
CASES = ("plain", "adaptive", "pre-norm", "narrow-embeddings")
SEGMENT = 6
BASE = {"model_type": "transfo-xl", "architectures": ["TransfoXLLMHeadModel"], "dropout": 0.0, "dropatt": 0.0}


def golden(case: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A case's configuration and tensors."""
    with safe_open(GOLDEN, "pt") as file:
        settings = json.loads(file.metadata()["cases"])[case]
        names = [name for name in file.keys() if name.startswith(f"{case}/")]  # noqa: SIM118
        return settings, {name.removeprefix(f"{case}/"): file.get_tensor(name) for name in names}


def write(path: Path, case: str, more: dict[str, Any] | None = None, **tensors: Tensor) -> dict[str, Tensor]:
    """Write the folder of a case; return what is recorded of it."""
    settings, recorded = golden(case)
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(BASE | settings | (more or {})))
    weights = {k.removeprefix("weights/"): v for k, v in recorded.items() if k.startswith("weights/")}
    save_file(weights | tensors, path / "model.safetensors")
    return recorded


def segment(ids_sl: Tensor, fresh: bool) -> Batch:
    """The rows of a segment, which continue those of the one before."""
    rows = len(ids_sl)
    lanes = Continuation(torch.arange(rows), torch.full((rows,), fresh), rows)
    return Batch(**{**vars(Batch.pack(ids_sl.tolist())), "continuation": lanes})


def shifted(ids_sl: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens of a segment that are followed by another, and those that follow."""
    place_sl = torch.arange(ids_sl.numel()).view_as(ids_sl)
    return place_sl[:, :-1].flatten(), ids_sl[:, 1:].flatten()


@pytest.mark.parametrize("case", CASES)
def test_three_segments_with_memory_are_as_recorded(case: str, tmp_path: Path) -> None:
    recorded = write(tmp_path / "m", case)
    network, state = folder.read(tmp_path / "m").network.eval(), None
    for number, ids_sl in enumerate(recorded["ids"].split(SEGMENT, 1)):
        with torch.no_grad():
            hidden_th, state = network.encode(segment(ids_sl, number == 0), state)
            scores_tv = network.mask_logits(hidden_th, torch.arange(len(hidden_th))).log_softmax(-1)
            chosen, targets = shifted(ids_sl)
            loss = network.mask_loss(hidden_th, chosen, targets)
        shape = (*ids_sl.shape, -1)
        assert (hidden_th.view(shape) - recorded[f"hidden/{number}"]).abs().max() < 1e-5
        assert (scores_tv.view(shape) - recorded[f"log-probabilities/{number}"]).abs().max() < 1e-5
        assert float(loss) == pytest.approx(float(recorded[f"losses/{number}"].sum()), rel=1e-5)
    assert state is not None
    assert (state[MEMORY] - recorded["memory"].transpose(1, 2)).abs().max() < 1e-5


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_as_recorded(case: str, tmp_path: Path) -> None:
    recorded = write(tmp_path / "m", case)
    contents = folder.read(tmp_path / "m")
    a, network = require_transformer(contents.architecture), contents.network.eval()
    ids_sl = recorded["ids"][:, :SEGMENT]
    hidden_th, _ = network.encode(segment(ids_sl, True))
    chosen, targets = shifted(ids_sl)
    (network.mask_loss(hidden_th, chosen, targets) / len(targets)).backward()
    table = hf_tensor_names(family_of_architecture(a), a, ["mask"], network.state_dict())
    compared = 0
    for ours, parameter in network.named_parameters():
        theirs = [recorded.get(f"gradients/{name}") for name in table[ours].names]
        if all(gradient is not None for gradient in theirs):
            assert parameter.grad is not None, ours
            assert (parameter.grad - torch.cat(theirs)).abs().max() < 1e-4, ours
            compared += 1
    assert compared > 15


@pytest.mark.parametrize("case", CASES)
def test_what_is_read_and_written_is_the_same(case: str, tmp_path: Path) -> None:
    write(tmp_path / "theirs", case)
    contents = folder.read(tmp_path / "theirs")
    folder.write(contents, tmp_path / "ours", to="huggingface")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    for key, value in golden(case)[0].items():
        assert config[key] == value, key
    assert folder.read(tmp_path / "ours").architecture == contents.architecture


def test_tied_copies_and_buffers_are_accepted_and_different_ones_refused(tmp_path: Path) -> None:
    _, recorded = golden("adaptive")
    table, projection = recorded["weights/transformer.word_emb.emb_layers.1.weight"], "crit.out_projs.2"
    copies = {
        "crit.out_layers.1.weight": table,
        projection: recorded["weights/transformer.word_emb.emb_projs.2"],
        "transformer.pos_emb.inv_freq": torch.ones(8),
    }
    write(tmp_path / "m", "adaptive", **{name: tensor.clone() for name, tensor in copies.items()})
    plain, _ = folder.read(tmp_path / "m"), write(tmp_path / "n", "adaptive")
    other = folder.read(tmp_path / "n").network.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in plain.network.state_dict().items())
    write(tmp_path / "m", "adaptive", **{projection: copies[projection] + 1})
    with pytest.raises(UserError, match=r"crit.out_projs.2' differs from 'word_emb.emb_projs.2'"):
        folder.read(tmp_path / "m")


def test_shared_biases_are_found_under_a_layers_name(tmp_path: Path) -> None:
    write(tmp_path / "m", "narrow-embeddings")
    path = tmp_path / "m" / "model.safetensors"
    tensors = load_file(path)
    for name in ("r_w_bias", "r_r_bias"):
        shared = tensors.pop(f"transformer.{name}")
        tensors |= {f"transformer.layers.{i}.dec_attn.{name}": shared.clone() for i in range(2)}
    save_file(tensors, tmp_path / "copy.safetensors")
    (tmp_path / "copy.safetensors").replace(path)
    write(tmp_path / "n", "narrow-embeddings")
    ours, other = folder.read(tmp_path / "m").network.state_dict(), folder.read(tmp_path / "n").network.state_dict()
    assert all(torch.equal(tensor, other[name]) for name, tensor in ours.items())


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("attn_type", 2, "attn_type: 2 has no equal here"),
        ("tie_word_embeddings", False, "tie_word_embeddings: False has no equal here"),
        ("cutoffs", [10, "x"], "cutoffs: must be a list of ids"),
        ("cutoffs", [30, 10], "architecture: cutoffs: 30,10"),
        ("tie_projs", [False], "tie_projs: must say for each cluster"),
        ("mem_len", "many", "mem_len: 'many' is not a valid value"),
        ("d_model", 16.5, "d_model: must be a whole number"),
        ("div_val", "two", "div_val: must be a whole number"),
    ],
)
def test_settings_without_an_equal_are_refused(tmp_path: Path, key: str, value: object, reason: str) -> None:
    write(tmp_path / "m", "adaptive", {key: value})
    with pytest.raises(UserError, match=f"config.json: {reason}") as caught:
        folder.read(tmp_path / "m")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("key", "reason"), [("d_embed", "must equal d_model, 16"), ("div_val", "must be 1, not 12")])
def test_projected_embeddings_without_cutoffs_are_refused(tmp_path: Path, key: str, reason: str) -> None:
    write(tmp_path / "m", "plain", {key: 12})
    with pytest.raises(UserError, match=f"{key}: {reason}"):
        folder.read(tmp_path / "m")


def test_a_memory_that_begins_empty_is_written_with_a_warning(tmp_path: Path) -> None:
    small = {"layers": 1, "width": 16, "heads": 2, "ffn_width": 32, "embedding_width": 16, "vocab_size": 60}
    a = PRESETS["transformer-xl-base"].architecture.with_values(small | {"cutoffs": "10,30", "memory": 8})
    with pytest.warns(BertreeWarning, match="begins with a memory of zeros"):
        folder.write(Contents(a, build(a, {"mask": 0})), tmp_path / "hf", to="huggingface")
    folder.write(Contents(a, build(a, {"mask": 0})), tmp_path / "both")
    assert folder.read(tmp_path / "both").architecture == a


@pytest.mark.parametrize(("heads", "prefix"), [({"sequence": 3}, "transformer."), ({}, "")])
def test_a_classifier_and_a_bare_encoder_are_read_and_written(
    tmp_path: Path, heads: dict[str, int], prefix: str
) -> None:
    small = {"layers": 1, "width": 16, "heads": 2, "ffn_width": 32, "vocab_size": 60, "memory": 8}
    changes = small | {"cutoffs": "10,30", "embedding_divisor": 2, "memory_start": "zeros"}
    a = PRESETS["transformer-xl-base"].architecture.with_values(changes)
    contents = Contents(a, build(a, heads))
    folder.write(contents, tmp_path / "m", to="huggingface")
    names = load_file(tmp_path / "m" / "model.safetensors").keys()
    assert {name for name in names if not name.startswith(prefix)} == ({"score.weight"} if heads else set())
    assert f"{prefix}word_emb.emb_projs.2" in names
    read, state = folder.read(tmp_path / "m"), contents.network.state_dict()
    assert read.architecture == a.with_values({"head_width": 8})
    assert all(torch.equal(tensor, state[name]) for name, tensor in read.network.state_dict().items())


# Parameters of transformers 4.37.2's TransfoXLLMHeadModel with the same settings.
@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("transformer-xl-enwik8-12", 41_066_700),
        ("transformer-xl-enwik8-24", 277_278_924),
        ("transformer-xl-base", 151_119_838),
        ("transformer-xl-large", 285_205_322),
    ],
)
def test_presets_have_as_many_parameters_as_transformers_models(preset: str, count: int) -> None:
    with torch.device("meta"):
        network = build(PRESETS[preset].architecture, {"mask": 0})
    assert sum(parameter.numel() for parameter in network.parameters()) == count
    counted = parameters(PRESETS[preset].architecture)
    assert counted.total + counted.mlm_head == count
