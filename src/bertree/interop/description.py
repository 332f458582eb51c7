"""`bertree.toml`: the description of a model folder and the checksums of its files, checked when it is read.

[model]          how the weights are named (layout), labels, max_length; storage = "int8" if they are quantized
[heads]          each head and its number of classes
[architecture]   the axes of the architecture
[top]            the readout, if it is not the last states alone
[vector]         how a text becomes one vector, if the model makes vectors
[task]           name and settings of the task the model was trained for
[control]        codes: the control codes that texts may begin with; given = true if other texts may follow them
[[files]]        size and checksums of every other file in the folder

A weight file has two checksums: SHA-256, which takes seconds for a large file, and a fast one, limited by the speed of
memory, which every `load` compares. The fast one protects against accidents: it detects any damage within eight bytes,
and any other unless the sums of all blocks stay the same.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

import numpy as np

from bertree.config.settings import key_path, read
from bertree.errors import UserError, suggest
from bertree.files.formats import Json, check_regular, file_hash, read_toml, toml_text
from bertree.model.architecture import TYPES, Architecture
from bertree.model.network import HEADS
from bertree.model.pooling import Dense, PoolingConfig
from bertree.model.readout import Readout

LAYOUTS = ("bertree", "huggingface")
INT8 = "int8"  # matrices as int8 with one scale per row; the weight file itself names any other type
TABLES = ("model", "heads", "architecture", "top", "vector", "task", "control", "files")
WEIGHTS = ".safetensors"
WORDS = 512  # 64-bit words of a block
SETTING_TYPES = (str, int, float, bool)  # of a task's settings


@dataclass(frozen=True)
class FileChecksum:
    """A row of the table [[files]]."""

    name: str  # relative to the folder
    bytes: int
    sha256: str
    blocks: str = ""  # of a weight file: the fast checksum

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        if path.is_absolute() or ".." in path.parts or not path.name or "\0" in self.name:
            raise UserError(f"files: {self.name!r} is not the name of a file in this folder")


@dataclass(frozen=True, kw_only=True)
class Description:
    """Everything in a model folder except weights and tokenizer."""

    architecture: Architecture
    heads: dict[str, int]
    layout: str
    labels: list[str] = field(default_factory=list)
    max_length: int | None = None
    readout: Readout = field(default_factory=Readout)
    task: Json = field(default_factory=dict)
    storage: str = ""
    vector: PoolingConfig | None = None
    files: tuple[FileChecksum, ...] = ()
    controls: tuple[str, ...] = ()
    takes_given: bool = False

    def as_toml(self) -> str:
        """Return the text of the file."""
        assert all(type(value) in SETTING_TYPES for value in self.task.values()), "a task's settings are plain values"
        model: Json = {"layout": self.layout, "labels": self.labels}
        if self.max_length is not None:
            model["max_length"] = self.max_length
        if self.storage:
            model["storage"] = self.storage
        tables: Json = {"model": model, "heads": self.heads, "architecture": self.architecture.written_axes()}
        if not self.readout.trivial:
            tables["top"] = self.readout.as_mapping()
        if self.vector is not None:
            tables["vector"] = self.vector.as_mapping()
        if self.task:
            tables["task"] = self.task
        if self.controls:
            tables["control"] = {"codes": list(self.controls)} | ({"given": True} if self.takes_given else {})
        tables["files"] = [{key: value for key, value in asdict(file).items() if value != ""} for file in self.files]
        return toml_text(tables)


def read_description(path: Path) -> Description:
    """Read and check the file; UserError for the first mistake in it."""
    tables = read_toml(path)
    if unknown := set(tables) - set(TABLES):
        raise UserError(f"{path}: unknown table [{unknown.pop()}]; a newer bertree may have written it")

    def table(name: str) -> Json:
        if not isinstance(value := tables.get(name, {}), dict):
            raise UserError(f"{path}: {name}: must be a table")
        return value

    model, heads, task, control = table("model"), table("heads"), table("task"), table("control")
    for name, classes in heads.items():
        if name not in HEADS or type(classes) is not int or not 0 <= classes < 2**20:
            raise UserError(f"{path}: heads: {name} = {classes!r} is not a head and its number of classes")
    labels, layout, max_length = model.get("labels", []), model.get("layout"), model.get("max_length")
    if layout not in LAYOUTS:
        raise UserError(f"{path}: model.layout: must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise UserError(f"{path}: model.labels: must be a list of names")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise UserError(f"{path}: model.max_length: must be a whole number of tokens, not {max_length!r}")
    storage = model.get("storage", "")
    if storage not in ("", INT8):
        raise UserError(f'{path}: model.storage: must be "{INT8}" or left out, not {storage!r}')
    if storage and layout != "bertree":
        raise UserError(f'{path}: model.storage: {INT8} needs layout = "bertree", not {layout!r}')
    for name, value in task.items():
        if type(value) not in SETTING_TYPES or (name == "name" and not isinstance(value, str)):
            wanted = "a string" if name == "name" else "a single value"
            raise UserError(f"{path}: task.{name}: must be {wanted}, not {value!r}")
    codes = control.get("codes", [])
    if not isinstance(codes, list) or not all(isinstance(code, str) and code for code in codes):
        raise UserError(f"{path}: control.codes: must be a list of texts")
    if type(takes_given := control.get("given", False)) is not bool:
        raise UserError(f"{path}: control.given: must be true or false, not {takes_given!r}")
    a = _read_architecture(table("architecture"), str(path))
    readout: Readout = read(Readout, table("top"), str(path), "top")
    if layout == "huggingface" and not readout.trivial:
        raise UserError(f'{path}: top: does not fit model.layout = "huggingface"; set it to "bertree"')
    vector = _read_vector(table("vector"), str(path)) if "vector" in tables else None
    files: tuple[FileChecksum, ...] = read(tuple[FileChecksum, ...], tables.get("files", []), str(path), "files")
    return Description(
        architecture=a,
        heads=heads,
        layout=layout,
        labels=labels,
        max_length=max_length,
        readout=readout,
        task=task,
        storage=storage,
        vector=vector,
        files=files,
        controls=tuple(codes),
        takes_given=takes_given,
    )


def _read_architecture(table: Json, where: str) -> Architecture:
    axes: Json = {}
    for name, value in table.items():
        if name not in TYPES:
            raise UserError(f"{where}: {key_path('architecture', name)}: unknown key, {suggest(name, TYPES)}")
        axes[name] = read(TYPES[name], value, where, f"architecture.{name}")
    try:
        return Architecture.from_axes(axes)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


@dataclass(frozen=True)
class _VectorTable:
    """The table [vector]: dense layers and prompts as lists of equal length."""

    pooling: str = "mean"
    normalize: bool = False
    widths: tuple[int, ...] = ()
    activations: tuple[str, ...] = ()
    biases: tuple[bool, ...] = ()
    similarity: str = "cosine"
    kinds: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    prompt: str = ""


def _read_vector(table: Json, where: str) -> PoolingConfig:
    values: _VectorTable = read(_VectorTable, table, where, "vector")
    try:
        dense = [Dense(*layer) for layer in zip(values.widths, values.activations, values.biases, strict=True)]
        prompts = tuple(zip(values.kinds, values.prompts, strict=True))
        return PoolingConfig(values.pooling, values.normalize, tuple(dense), values.similarity, prompts, values.prompt)
    except ValueError:
        lists = "widths, activations and biases, or kinds and prompts, differ in length"
        raise UserError(f"{where}: vector: {lists}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def checksums(folder: Path) -> tuple[FileChecksum, ...]:
    """Return the checksums of all files in a folder."""
    rows = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        blocks = block_sums(path) if path.name.endswith(WEIGHTS) else ""
        name = path.relative_to(folder).as_posix()
        rows.append(FileChecksum(name, path.stat().st_size, file_hash(path), blocks))
    return tuple(rows)


def block_sums(path: Path) -> str:
    """Return the fast checksum: SHA-256 of the sum of each block's 64-bit words, and of the bytes after the last."""
    size = path.stat().st_size
    count = size // (8 * WORDS)
    digest = hashlib.sha256(str(size).encode())
    if count:
        words = np.memmap(path, "<u8", "r", shape=(count, WORDS))
        digest.update(np.add.reduce(words, axis=1))
    with path.open("rb") as file:
        file.seek(count * 8 * WORDS)
        digest.update(file.read())
    return digest.hexdigest()


def compare_weights(folder: Path, files: Iterable[FileChecksum]) -> None:
    """Compare the weight files with their fast checksums."""
    for file in files:
        if file.blocks:
            path = _existing(folder, file)
            if path.stat().st_size != file.bytes or block_sums(path) != file.blocks:
                raise _changed(folder, file)


def compare_files(
    folder: Path, files: Iterable[FileChecksum], advance: Callable[[int], None] = lambda count: None
) -> None:
    """Compare all files with their SHA-256; `advance` is called with the number of bytes read."""
    for file in files:
        if file_hash(_existing(folder, file), advance) != file.sha256:
            raise _changed(folder, file)


def _existing(folder: Path, file: FileChecksum) -> Path:
    path = folder / file.name
    check_regular(path)
    if not path.is_file():
        raise UserError(f"{path}: is missing, though bertree.toml lists it; copy it there, or {_remove_entry(file)}")
    return path


def _changed(folder: Path, file: FileChecksum) -> UserError:
    return UserError(
        f"{folder / file.name}: is damaged or was changed (its checksum differs from that in bertree.toml); copy it "
        f"again, or, if you changed it yourself, {_remove_entry(file)}"
    )


def _remove_entry(file: FileChecksum) -> str:
    return f"remove the entry '{file.name}' under [[files]] from bertree.toml"
