"""What `import bertree` gives: load a model by path or by name and use it."""

from pathlib import Path
from typing import Any

import torch

from bertree.config.default_model import resolve_model_path
from bertree.errors import UserError
from bertree.inference.mask_filling import Candidate
from bertree.inference.model import DTYPES, Model, TaskModel, parse_precision
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.presets import PRESETS, preset
from bertree.text.tokenizer import Tokenizer

__all__ = ["DTYPES", "Candidate", "Model", "TaskModel", "load", "random_model"]


def load(
    name: str | Path,
    *,
    device: str = "cpu",
    dtype: str = "float32",
    tokenizer: str | Path | None = None,
    seed: int = 0,
) -> Model:
    """A model from a folder (bertree's or Hugging Face's), a preset with fresh weights drawn from `seed`, or
    `default`: the trained model that comes with bertree.

    `dtype`: float32, bfloat16, float16, or int8: see `Model.to`.
    `tokenizer` is a folder to take the tokenizer from; a preset then gets the size of its vocabulary.
    """
    whole = parse_precision(dtype) == torch.int8
    precision = torch.float32 if whole else parse_precision(dtype)
    given = _tokenizer(resolve_model_path(tokenizer)) if tokenizer is not None else None
    path = resolve_model_path(name)
    try:
        is_there = path.exists()
    except OSError as error:
        raise UserError(f"{name}: cannot be read ({error.strerror})") from None
    if is_there:
        model = Model(folder.read(path, precision, given), source=path)
    else:
        if str(name) not in PRESETS and ("/" in str(name) or str(name).startswith(".")):
            raise UserError(f"{name}: no such folder")
        a = preset(str(name)).architecture
        heads = {"mask": 0} if a.body == "transformer" else {}
        model = random_model(a.with_values({"vocab_size": given.size}) if given else a, heads, seed)
        model.tokenizer = given
        model.network.to(precision)
    try:
        if torch.device(device).type == "meta":
            raise RuntimeError("it holds no numbers")
        return model.to(device, "int8" if whole else None)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"device '{device}': cannot be used here ({reason})") from None


def _tokenizer(path: Path) -> Tokenizer:
    found = Tokenizer.load(path) if path.is_dir() else None
    if found is None:
        raise UserError(
            f"{path}: holds no tokenizer (tokenizer.json, vocab.txt, vocab.json + merges.txt or spiece.model)"
        )
    return found


def random_model(a: Architecture, heads: dict[str, int], seed: int = 0) -> Model:
    """An untrained model."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(Contents(a, build(a, heads)), trained=False)


def choose_device(name: str) -> str:
    """The device asked for, or the best there is."""
    return name if name != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def load_or_take(model: str | Path | Model, **options: Any) -> tuple[Model, str]:
    """Return a model that is named or given, and its name for messages. `options` are those of `load`."""
    if isinstance(model, Model):
        return model, model.name
    return load(model, **options), str(model)


def identify(model: str | Path | Model) -> str:
    """Return what must be the same when a run that began with this model is resumed."""
    if isinstance(model, Model):
        return model.digest
    return str(Path(model).resolve())
