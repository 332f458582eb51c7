"""Write tests/golden/elmo.safetensors: outputs and gradients of allennlp's ELMo.

allennlp 2.10.1 needs an old torch, but its ELMo runs with a new one if the packages it would import are left out. Run
in an environment of its own that has torch, safetensors and

    pip install --no-deps allennlp==2.10.1 h5py
    python tests/golden/make_elmo.py

Weights are drawn by numpy and named as in ELMo's HDF5 files. For two sentences of different lengths: the states of all
layers, their weighted sum, and the gradients of a sum of it, in the layout of the weights. Clips are small, so that
they take effect.
"""

import json
import site
import sys
import tempfile
import types
from pathlib import Path

import h5py
import numpy as np
import torch
from safetensors.torch import save_file

OPTIONS = {
    "lstm": {"cell_clip": 0.5, "proj_clip": 0.25, "use_skip_connections": True, "n_layers": 2, "projection_dim": 6,
             "dim": 10},
    "char_cnn": {"embedding": {"dim": 4}, "filters": [[1, 3], [2, 4], [3, 5]], "n_highway": 2, "n_characters": 262,
                 "max_characters_per_token": 50, "activation": "relu"},
}  # fmt: skip
SENTENCES = [["The", "Straße", "is", "x" * 60, "."], ["Yes", ""]]
MIX, SCALE = (0.3, -0.2, 0.5), 1.5


def stub(name, path=None, **names):
    module = types.ModuleType(name)
    module.__path__ = [str(path)] if path else []
    vars(module).update(names)
    sys.modules[name] = module


def marked(characters):
    return [258, *characters[:48], 259] + [260] * (48 - len(characters[:48]))


class Anything:
    """Takes the place of what is imported and not used."""

    max_word_length = 50
    beginning_of_sentence_characters, end_of_sentence_characters = marked([256]), marked([257])

    @classmethod
    def register(cls, name, constructor=None):
        return lambda registered: registered


def load_modules():
    root = next(Path(p) / "allennlp" for p in site.getsitepackages() if (Path(p) / "allennlp").is_dir())
    kinds = dict.fromkeys(("FromParams", "Registrable", "Params", "Tqdm"), Anything)
    stub("allennlp", root)
    stub("allennlp.common", root / "common", **kinds)
    stub("allennlp.common.file_utils", cached_path=str)
    stub("allennlp.common.util", lazy_groups_of=None, int_to_device=None, is_distributed=None, is_global_primary=None)
    stub("allennlp.nn", root / "nn")
    stub("allennlp.modules", root / "modules")
    stub("allennlp.data")
    for name in ("instance.Instance", "tokenizers.token_class.Token", "vocabulary.Vocabulary", "batch.Batch",
                 "fields.TextField", "token_indexers.elmo_indexer.ELMoCharacterMapper",
                 "token_indexers.elmo_indexer.ELMoTokenCharactersIndexer"):  # fmt: skip
        module, _, attribute = name.rpartition(".")
        for end in [i for i, letter in enumerate(module + ".") if letter == "."]:
            if f"allennlp.data.{module[:end]}" not in sys.modules:
                stub(f"allennlp.data.{module[:end]}")
        setattr(sys.modules[f"allennlp.data.{module}"], attribute, Anything)
    from allennlp.modules.elmo import _ElmoBiLm
    from allennlp.modules.scalar_mix import ScalarMix

    return _ElmoBiLm, ScalarMix


def shapes():
    cnn, lstm = OPTIONS["char_cnn"], OPTIONS["lstm"]
    total, width, cells = sum(n for _, n in cnn["filters"]), lstm["projection_dim"], lstm["dim"]
    yield "char_embed", (261, cnn["embedding"]["dim"])
    for i, (length, count) in enumerate(cnn["filters"]):
        yield f"CNN/W_cnn_{i}", (1, length, cnn["embedding"]["dim"], count)
        yield f"CNN/b_cnn_{i}", (count,)
    for i in range(cnn["n_highway"]):
        for kind in ("transform", "carry"):
            yield f"CNN_high_{i}/W_{kind}", (total, total)
            yield f"CNN_high_{i}/b_{kind}", (total,)
    yield from (("CNN_proj/W_proj", (total, width)), ("CNN_proj/b_proj", (width,)))
    for direction in range(2):
        for layer in range(lstm["n_layers"]):
            cell = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield f"{cell}/W_0", (2 * width, 4 * cells)
            yield f"{cell}/B", (4 * cells,)
            yield f"{cell}/W_P_0", (cells, width)


def gradients(model):
    """Return the gradients in the layout of the weights."""
    cnn, lstm = model._token_embedder, model._elmo_lstm
    named = {"char_embed": cnn._char_embedding_weights.grad[1:]}
    for i, conv in enumerate(cnn._convolutions):
        named |= {f"CNN/W_cnn_{i}": conv.weight.grad.permute(2, 1, 0)[None], f"CNN/b_cnn_{i}": conv.bias.grad}
    for i, highway in enumerate(cnn._highways._layers):
        for name, grad in (("W", highway.weight.grad), ("b", highway.bias.grad)):
            transform, carry = grad.chunk(2)
            named |= {f"CNN_high_{i}/{name}_transform": transform.T, f"CNN_high_{i}/{name}_carry": -carry.T}
    named |= {"CNN_proj/W_proj": cnn._projection.weight.grad.T, "CNN_proj/b_proj": cnn._projection.bias.grad}
    for direction, layers in enumerate((lstm.forward_layers, lstm.backward_layers)):
        for layer, cell in enumerate(layers):
            both = torch.cat([cell.input_linearity.weight.grad, cell.state_linearity.weight.grad], 1)
            name = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            named[f"{name}/W_0"] = torch.cat([both.chunk(4)[gate] for gate in (0, 2, 1, 3)]).T
            named[f"{name}/B"] = torch.cat([cell.state_linearity.bias.grad.chunk(4)[gate] for gate in (0, 2, 1, 3)])
            named[f"{name}/W_P_0"] = cell.state_projection.weight.grad.T
    return named


def main() -> None:
    bilm, scalar_mix = load_modules()
    random = np.random.default_rng(7)
    weights = {name: (random.standard_normal(shape) * 0.6).astype("f4") for name, shape in shapes()}
    tensors = {f"weights/{name}": torch.from_numpy(array) for name, array in weights.items()}
    with tempfile.TemporaryDirectory() as name:
        with h5py.File(f"{name}/weights.hdf5", "w") as file:
            for key, array in weights.items():
                file.create_dataset(key, data=array)
        Path(f"{name}/options.json").write_text(json.dumps(OPTIONS))
        model = bilm(f"{name}/options.json", f"{name}/weights.hdf5", requires_grad=True)
    longest = max(map(len, SENTENCES))
    ids = torch.zeros(len(SENTENCES), longest, 50, dtype=torch.long)
    for row, words in enumerate(SENTENCES):
        for column, word in enumerate(words):
            ids[row, column] = torch.tensor(marked(list(word.encode()))) + 1
    output = model(ids)
    mix = scalar_mix(3)
    with torch.no_grad():
        for parameter, value in zip(mix.scalar_parameters, MIX, strict=True):
            parameter.fill_(value)
        mix.gamma.fill_(SCALE)
    mixed = mix(output["activations"])
    mask = output["mask"]
    tensors["sent"] = torch.from_numpy(random.standard_normal((int(mask.sum()), mixed.shape[-1])).astype("f4"))
    (mixed[mask] * tensors["sent"]).sum().backward()
    tensors |= {f"states/{i}": states[mask].detach() for i, states in enumerate(output["activations"])}
    tensors["mixed"] = mixed[mask].detach()
    tensors |= {f"gradients/{name}": grad for name, grad in gradients(model).items()}
    tensors["mix-gradients"] = torch.cat([parameter.grad.flatten() for parameter in mix.parameters()])
    settings = {"options": OPTIONS, "sentences": SENTENCES, "mix": MIX, "scale": SCALE}
    target = Path(__file__).with_name("elmo.safetensors")
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, target, {"settings": json.dumps(settings)})
    print(
        target, target.stat().st_size, {i: float(states.abs().max()) for i, states in enumerate(output["activations"])}
    )


main()
