"""ELMo against allennlp's, whose outputs and gradients are in a golden file, and its authors' layout of weights."""

import builtins
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import UserError
from bertree.inference.load import convert, load
from bertree.interop import elmo, folder
from bertree.interop.contents import Contents
from bertree.model.network import Network, build
from bertree.model.readout import Readout, ScalarMix
from bertree.text.cleaning import SpelledWord
from bertree.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parents[1] / "golden" / "elmo.safetensors"


class Golden:
    """The content of the golden file."""

    def __init__(self, folder: Path) -> None:
        with safe_open(GOLDEN, framework="pt") as file:
            self.tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.settings = json.loads(file.metadata()["settings"])
        (folder / elmo.OPTIONS).write_text(json.dumps(self.settings["options"]))
        self.folder, self.a = folder, elmo.read_elmo_architecture(folder / elmo.OPTIONS)

    def arrays(self, kind: str) -> dict[str, Any]:
        """The arrays under a prefix, by their names in an HDF5 file."""
        return {name.removeprefix(kind): t.numpy() for name, t in self.tensors.items() if name.startswith(kind)}

    def network(self) -> Network:
        """Build the network with the golden weights, and the readout that sums its layers."""
        network = build(self.a, {"token": 2}, Readout("sum-all"))
        network.load_state_dict(elmo.our_tensors(self.a, self.arrays("weights/"), "golden"), strict=False)
        contents = Contents(self.a, network)
        tokenizer = elmo._read_tokenizer(self.folder)
        contents.set_tokenizer(tokenizer)
        return network.eval()

    def batch(self) -> Batch:
        """Return the sentences, every word spelled."""
        rows = [[0, *(SpelledWord(2, word, 50) for word in words), 1] for words in self.settings["sentences"]]
        return Batch.pack(rows)


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Golden:
    return Golden(tmp_path_factory.mktemp("elmo"))


def test_states_mix_and_gradients_equal_the_reference(golden: Golden) -> None:
    network = golden.network()
    for depth, states in enumerate(network.encoder.states(golden.batch())):
        torch.testing.assert_close(states, golden.tensors[f"states/{depth}"], rtol=1e-5, atol=1e-5)
    assert float(golden.tensors["states/1"].abs().max()) == golden.a.projection_clip, "the clip takes effect"
    assert network.features is not None
    mix = network.features.join
    assert isinstance(mix, ScalarMix)
    with torch.no_grad():
        mix.weights.copy_(torch.tensor(golden.settings["mix"]))
        mix.scale.fill_(golden.settings["scale"])
    mixed = network(golden.batch())
    torch.testing.assert_close(mixed, golden.tensors["mixed"], rtol=1e-5, atol=1e-5)
    (mixed * golden.tensors["sent"]).sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    for name, gradient in elmo.their_arrays(golden.a, gradients).items():
        np.testing.assert_allclose(gradient, golden.tensors[f"gradients/{name}"], rtol=1e-4, atol=1e-4)
    assert mix.weights.grad is not None
    assert mix.scale.grad is not None
    expected = golden.tensors["mix-gradients"].sort().values
    torch.testing.assert_close(
        torch.cat([mix.weights.grad, mix.scale.grad]).sort().values, expected, rtol=1e-4, atol=1e-4
    )


def test_arrays_come_back_as_they_were(golden: Golden) -> None:
    before = golden.arrays("weights/")
    after = elmo.their_arrays(golden.a, golden.network().state_dict())
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)


def test_a_folder_of_our_own_comes_back_byte_by_byte(golden: Golden, tmp_path: Path) -> None:
    torch.manual_seed(0)
    a = golden.a.with_values({"init_std": 0.5})
    tokenizer = elmo._read_tokenizer(golden.folder)
    folder.write(Contents(a, build(a, {"mask": 0}), tokenizer), tmp_path / "first")
    model = load(tmp_path / "first")
    model.save(tmp_path / "second")
    for path in (tmp_path / "first").iterdir():
        assert (tmp_path / "second" / path.name).read_bytes() == path.read_bytes()
    first, second = model.embed(["an unheard-of word", "word an unheard-of"])
    assert np.abs(first - second).max() > 1e-3, "unknown words are told apart by their characters"
    np.testing.assert_allclose(model.embed(["an unheard-of word"])[0], first, atol=1e-6)
    assert model.tokens("an unheard-of word") == ["<S>", "an", "unheard-of", "word", "</S>"]
    for use in (lambda: model.fill_mask("a [MASK]"), lambda: model.generate("a"), lambda: model.attentions("a")):
        with pytest.raises(UserError):
            use()


def test_weights_of_the_authors_are_read_and_written(golden: Golden, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(golden.folder / "lm_weights.hdf5", "w") as file:
        for name, array in golden.arrays("weights/").items():
            file.create_dataset(name, data=array)
    (golden.folder / "vocab.txt").write_text("<S>\n</S>\n<UNK>\nthe\n")
    model = load(golden.folder)
    assert isinstance(model.tokenizer, Tokenizer)
    assert model.tokenizer.size == 4
    convert(golden.folder, tmp_path / "ours", "bertree")
    convert(tmp_path / "ours", tmp_path / "theirs", "elmo")
    with h5py.File(tmp_path / "theirs" / "weights.hdf5") as file:
        for name, array in golden.arrays("weights/").items():
            np.testing.assert_array_equal(file[name][...], array)
    assert load(tmp_path / "theirs").architecture == model.architecture
    (golden.folder / "lm_weights.hdf5").write_bytes(b"no HDF5")
    with pytest.raises(UserError, match="is not a complete HDF5 file"):
        load(golden.folder)


def test_mistakes_are_one_line(golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = golden.settings["options"]
    for change, message in (
        ({"lstm": 3}, "needs the sections"),
        ({"lstm": options["lstm"] | {"dim": "many"}}, "must be a whole number"),
        ({"lstm": {"dim": 4}}, "is missing"),
        ({"char_cnn": options["char_cnn"] | {"filters": [[1]]}}, "must be a list of"),
        ({"char_cnn": options["char_cnn"] | {"activation": "tanh"}}, "only activation = relu"),
        ({"char_cnn": options["char_cnn"] | {"filters": [[1, 10**9]]}}, "filters"),
    ):
        (tmp_path / elmo.OPTIONS).write_text(json.dumps(options | change))
        with pytest.raises(UserError, match=message):
            elmo.read_elmo_architecture(tmp_path / elmo.OPTIONS)
    arrays = golden.arrays("weights/")
    with pytest.raises(UserError, match="'char_embed' is missing"):
        elmo.our_tensors(golden.a, {name: array for name, array in arrays.items() if name != "char_embed"}, "file")
    real = builtins.__import__

    def without_h5py(name: str, *rest: Any) -> Any:
        if name == "h5py":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_h5py)
    with pytest.raises(UserError, match="takes h5py: pip install"):
        elmo._h5py()
