"""Read and write safetensors files; names, shapes and types are checked before use, since files are not trusted.

Files are mapped, not read: only the tensors that are used come into memory. With `storage = "int8"` in the folder's
description, a matrix NAME is stored as integers with one scale per row in NAME.scale, a quarter of float32's bytes, and
vectors, which are few, as float16. This is for storage only: `Weights.tensor` always returns floating-point numbers.

The range of an int8 row ends at its largest magnitude. A smaller range, by a search for the least squared error, was
tried on trained weights: most matrices had no row that gained, in the others the error fell by less than 0.1 %. A scale
keeps 16 significant bits, so that 127 times a scale is exact in float32. So a matrix that was quantized once is
quantized to the same bytes again, and saving a loaded model changes nothing.
"""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertree.errors import UserError
from bertree.files.atomic import sync
from bertree.files.formats import check_regular, file_hash, read_json

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
ONNX = "model.onnx"
SCALE = ".scale"  # suffix of the name of a matrix's scales
LARGEST = 127
TINY = torch.finfo(torch.float32).tiny  # the scale of a row of zeros
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.bin", "pytorch_model.pt")


class Stored(NamedTuple):
    """How a tensor is stored: as one or more parts along its rows.

    `transposed`: matrices lie with rows and columns swapped. `rows`: of each part, if they are not equal. `shape`: of
    each stored part, if it has other dimensions.
    """

    names: tuple[str, ...]
    transposed: bool = False
    rows: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()

    def parts(self, tensor: Tensor) -> list[Tensor]:
        """Return the stored parts of a tensor, in the order of their names."""
        rows = list(self.rows) or [len(tensor) // len(self.names)] * len(self.names)
        turned = (part.T if self.transposed and part.ndim == 2 else part for part in tensor.split(rows))
        return [part.reshape(self.shape) if self.shape else part for part in turned]

    def join(self, parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
        """Return the tensor of this shape that the stored parts make up."""
        turned = self.transposed and len(shape) == 2
        used = [part.reshape(shape[1], -1).T if turned else part.reshape(-1, *shape[1:]) for part in parts]
        return torch.cat(used) if len(used) > 1 else used[0]


class Weights:
    """The tensors of a model folder by name, in one file or in shards."""

    def __init__(self, folder: Path, int8: bool = False) -> None:
        """`int8`: matrices may be int8 with scales, according to the folder's description."""
        self._int8 = int8
        self._files: dict[str, Any] = {}  # file name -> open handle
        self._file_of: dict[str, str] = {}  # tensor name -> file name
        self._folder = folder
        if (folder / SINGLE).exists():
            shards = [SINGLE]
        elif (folder / INDEX).exists():
            shards = _shards(folder / INDEX)
        else:
            raise UserError(_missing_weights(folder))
        for shard in shards:
            self._files[shard] = handle = _open(folder / shard)
            self._file_of |= dict.fromkeys(handle.keys(), shard)

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._file_of)

    def path(self, name: str) -> Path:
        """Return the file that holds a tensor, or should hold a missing one."""
        return self._folder / self._file_of.get(name, next(iter(self._files)))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, from the header alone."""
        return tuple(self._files[self._file_of[name]].get_slice(name).get_shape())

    def dtype(self, name: str) -> torch.dtype:
        """Return the type that a tensor has in its file."""
        return self._stored(name).dtype

    def _stored(self, name: str) -> Tensor:
        stored: Tensor = self._files[self._file_of[name]].get_tensor(name)
        return stored

    def tensor(self, name: str) -> Tensor:
        """Return a tensor as floating-point numbers."""
        tensor = self._stored(name)
        if tensor.dtype == torch.int8 and self._int8:
            return dequantize(tensor, self._scale(name))
        if tensor.dtype == torch.int8:
            raise UserError(
                f"{self.path(name)}: tensor '{name}' is stored as int8, which only a bertree folder can be; "
                'its bertree.toml, with storage = "int8" under [model], is missing or says otherwise'
            )
        if not tensor.is_floating_point():
            raise UserError(f"{self.path(name)}: tensor '{name}' holds {tensor.dtype}, not floating-point weights")
        return tensor

    def _scale(self, name: str) -> Tensor:
        """Return the scales of an int8 matrix."""
        where, wanted, shape = self.path(name), name + SCALE, self.shape(name)
        if wanted not in self._file_of:
            raise UserError(f"{where}: tensor '{name}' is int8, but its scales, '{wanted}', are missing")
        if len(shape) != 2 or self.shape(wanted) != shape[:1]:
            raise UserError(
                f"{where}: tensor '{wanted}' has shape {_shape_text(self.shape(wanted))}, but '{name}', "
                f"{_shape_text(shape)}, needs one scale for each row of a matrix"
            )
        scale = self._stored(wanted)
        if scale.dtype != torch.float32 or not (127 * scale).isfinite().all():
            raise UserError(f"{where}: tensor '{wanted}' must hold finite float32 scales")
        return scale


def weights_hash(folder: Path) -> str:
    """Return the SHA-256 of each weight file."""
    return " ".join(file_hash(path) for path in sorted(folder.glob("*.safetensors")))


def network_hash(network: torch.nn.Module, more: str) -> str:
    """Return the SHA-256 of `more` and of a network's weights as float32, without heads."""
    digest = hashlib.sha256(more.encode())
    for name, tensor in sorted(network.state_dict().items()):
        if not name.startswith(("heads.", "crf.")):
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().float().cpu().contiguous().numpy())
    return digest.hexdigest()


def _shards(index: Path) -> list[str]:
    table = read_json(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(f, str) for f in table.values()):
        raise UserError(f"{index}: has no 'weight_map' from tensor names to file names")
    shards = sorted(set(table.values()))
    for shard in shards:
        if Path(shard).name != shard or not shard.endswith(".safetensors"):
            raise UserError(f"{index}: '{shard}' is not the name of a safetensors file in this folder")
        if not (index.parent / shard).exists():
            raise UserError(f"{index.parent / shard}: is missing, though {index.name} names it; copy it there")
    return shards


def _missing_weights(folder: Path) -> str:
    for name in PICKLES:
        if (folder / name).exists():
            return (
                f"{folder / name}: is a pickle, which can run code when it is read; if you trust it, convert it once "
                "with transformers: load it with the class that config.json names under 'architectures' (say "
                "BertForMaskedLM.from_pretrained(DIR)) and call its save_pretrained(NEW_DIR)"
            )
    if (folder / ONNX).exists():
        return f"{folder}: holds {ONNX}, which ONNX Runtime reads; for bertree, name the model it was written from"
    return f"{folder}: holds no {SINGLE}; a model folder needs one (or shards with {INDEX})"


def _open(path: Path) -> Any:
    check_regular(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, struct.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{path}: is not a complete safetensors file ({reason}); copy or download it again") from None


def load_into(network: torch.nn.Module, weights: Weights, table: Mapping[str, Stored], dtype: torch.dtype) -> None:
    """Load tensors into a network built on the meta device; `table` says how each of its tensors is stored."""
    state = {}
    for ours, wanted in network.state_dict().items():
        parts, stored = [], table[ours]
        for name, part in zip(stored.names, stored.parts(wanted), strict=True):
            if name not in weights.names:
                raise UserError(f"{weights.path(name)}: tensor '{name}' is missing")
            if weights.shape(name) != tuple(part.shape):
                raise UserError(
                    f"{weights.path(name)}: tensor '{name}' has shape {_shape_text(weights.shape(name))}, "
                    f"but the configuration needs {_shape_text(tuple(part.shape))}"
                )
            parts.append(weights.tensor(name).to(dtype))
        joined = stored.join(parts, wanted.shape)
        # A copy does not refer to the mapped file, which may be replaced later. Another type is a copy already.
        mapped = len(parts) == 1 and weights.dtype(stored.names[0]) == dtype
        state[ours] = joined.clone(memory_format=torch.contiguous_format) if mapped else joined.contiguous()
    network.load_state_dict(state, assign=True)


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"


def save(network: torch.nn.Module, table: Mapping[str, Stored], path: Path, dtype: torch.dtype | None = None) -> None:
    """Write a network's tensors as `table` says; `dtype`: their precision in the file."""
    out: dict[str, Tensor] = {}
    state = network.state_dict()
    for ours, stored in table.items():
        for name, part in zip(stored.names, stored.parts(state[ours].detach().cpu()), strict=True):
            tensors = (
                _int8_tensors(name, part) if dtype == torch.int8 else {name: part.to(dtype or part.dtype).contiguous()}
            )
            assert not out.keys() & tensors.keys(), "a parameter has the name of another's scales"
            out |= tensors
    try:
        save_file(out, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise OSError(str(error)) from None  # a full disk, say: whoever writes the folder reports it
    path.chmod(0o644)  # safetensors makes it readable for the owner only
    sync(path)


def _int8_tensors(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Return a matrix as int8 and its scales, anything else as float16 if its values fit."""
    if not tensor.isfinite().all():
        raise UserError(f"{name}: holds numbers that are not finite, which int8 cannot represent; save it in float32")
    if tensor.ndim == 2:
        matrix, scale = quantize(tensor)
        return {name: matrix.contiguous(), name + SCALE: scale.contiguous()}
    fits = bool((tensor.abs() <= torch.finfo(torch.float16).max).all())
    return {name: tensor.to(torch.float16 if fits else torch.float32).contiguous()}


def quantize(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return integers from -127 to 127, and the scale of each row."""
    assert matrix.ndim == 2, "only matrices have rows"
    matrix = matrix.float()
    steps = matrix.abs().amax(1) / LARGEST
    bits = steps.clamp(min=TINY).view(torch.int32)
    scale = (bits + 0x80).bitwise_and(~0xFF).view(torch.float32)  # to the nearest with its last eight bits 0
    return (matrix / scale[:, None]).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def dequantize(matrix: Tensor, scale: Tensor) -> Tensor:
    """Return the matrix in float32."""
    return matrix.float().mul_(scale.float()[:, None])
