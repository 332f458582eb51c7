"""Verify what bertree has written: a model, a token store, an index, a run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bertree.config.names import resolve_model_path
from bertree.console import bar, showing
from bertree.data import store_files
from bertree.data.store import verify_store
from bertree.errors import UserError
from bertree.interop import folder as model_folder
from bertree.interop import sentence_transformers
from bertree.interop.description import WEIGHTS, compare_files, read_description
from bertree.run_folder import BEST_MODEL, CHECKPOINTS, MODEL, RECIPE
from bertree.search.database import DATABASE
from bertree.search.index import Index
from bertree.text.tokenizer import FILES as TOKENIZER_FILES
from bertree.train.checkpoint import CheckpointFolder


@dataclass(frozen=True)
class Verification:
    """What is undamaged, and what could not be checked."""

    folder: Path
    kind: str  # model, store, index or run
    checked: tuple[str, ...]  # what was compared, a line for each kind of file
    unchecked: tuple[str, ...] = ()  # what has no checksums


def verify(path: str | Path, *, progress: bool | None = None) -> Verification:
    """Read every byte of a model folder, a token store, an index or the folder of a run, and compare it with its
    checksums; raise a UserError that names the first damaged file.

    For a model, names, shapes and values of all weights are checked too, and whether the tokenizer fits.
    A folder written by another program has no checksums: `unchecked` says so.
    """
    folder = Path(path) if Path(path).is_dir() else resolve_model_path(path)  # a run is verified whole
    if not folder.is_dir():
        raise UserError(f"{path}: no such folder")
    for kind, names, check in KINDS:
        if any((folder / name).exists() for name in names):
            with showing(progress):
                checked, unchecked = check(folder)
            return Verification(folder, kind, tuple(checked), tuple(unchecked))
    raise UserError(f"{folder}: is neither a model folder nor a token store, an index or the folder of a run")


def _verify_model(folder: Path) -> tuple[list[str], list[str]]:
    description = folder / model_folder.DESCRIPTION
    files = read_description(description).files if description.is_file() else ()
    checked, unchecked = [], []
    if files:
        with bar("verifying", sum(file.bytes for file in files), in_bytes=True) as shown:
            compare_files(folder, files, shown.advance)
        checked.append(f"{len(files)} files by checksum")
    contents = model_folder.read(folder)
    weights = contents.network.state_dict()
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise UserError(f"{folder}: the weight '{name}' holds numbers that are not finite")
    checked.append(f"{len(weights)} weights by name, shape and finite values")
    if contents.tokenizer is None:
        unchecked.append("the tokenizer: there is none")
    else:
        checked.append(f"tokenizer and vocabulary ({contents.tokenizer.size:,} tokens)")
    return checked, unchecked + _unlisted(folder, {file.name for file in files})


def _unlisted(folder: Path, listed: set[str]) -> list[str]:
    """Name the files of a model that have no checksum."""
    if not listed:
        return ["changed values: the folder has no checksums (converting it to the layout of bertree writes them)"]
    read = {model_folder.CONFIG, *TOKENIZER_FILES, *sentence_transformers.files()}
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    of_model = {name for name in names if name in read or name.endswith(WEIGHTS)}
    return [f"{name}: has no checksum" for name in sorted(of_model - listed)]


def _verify_store(folder: Path) -> tuple[list[str], list[str]]:
    header = verify_store(folder)
    return [f"{header.documents:,} documents with {header.tokens:,} tokens, and the tokenizer, by checksum"], []


def _verify_index(folder: Path) -> tuple[list[str], list[str]]:
    with Index.open(folder) as index:
        index.verify()
        by, unchecked = "checksum", []
        if not index.has_checksums:
            by = "count"
            unchecked = ["the texts: the index was made by an earlier version; its next change adds checksums"]
        return [f"{index.state.vectors:,} vectors and their passages by {by}"], unchecked


def _verify_run(folder: Path) -> tuple[list[str], list[str]]:
    checked, unchecked = [], []
    for checkpoints in _checkpoint_folders(folder):
        for step in reversed(checkpoints.steps()):
            checkpoints.read(step)
            checked.append(f"{checkpoints.path(step).relative_to(folder)} by checksum")
    for name in (MODEL, BEST_MODEL):
        if (folder / name).is_dir():
            good, rest = _verify_model(folder / name)
            checked += [f"{name}: {line}" for line in good]
            unchecked += [f"{name}: {line}" for line in rest]
    return checked, unchecked or ([] if checked else ["anything: there is no checkpoint and no model yet"])


def _checkpoint_folders(folder: Path) -> Iterator[CheckpointFolder]:
    for place in (folder, *sorted(folder.glob("seed-*"))):
        yield CheckpointFolder(place / CHECKPOINTS)


Check = Callable[[Path], tuple[list[str], list[str]]]
# What a folder is, by the files in it, and how it is verified.
KINDS: tuple[tuple[str, tuple[str, ...], Check], ...] = (
    ("store", (store_files.HEADER, store_files.JOURNAL), _verify_store),
    ("index", (DATABASE,), _verify_index),
    ("model", (model_folder.DESCRIPTION, model_folder.CONFIG), _verify_model),
    ("run", (CHECKPOINTS, MODEL, RECIPE), _verify_run),
)
