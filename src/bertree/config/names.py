"""Names of models (a folder, `default` for the model bundled with bertree, or a model in the local Hugging Face cache)
and of precisions. torch is imported only to ask what this CPU can compute.

The folder of a run stands for the model in it. An existing folder is preferred, so a folder called `default` hides the
bundled model. The network is never used. A cached model is in models--ORG--NAME, where refs/main holds the hash of a
commit and snapshots/HASH its files.
"""

import os
import re
from functools import cache
from pathlib import Path

from bertree.errors import UserError
from bertree.model.presets import DEFAULT, PRESETS
from bertree.run_folder import MODEL

FOLDER = Path(__file__).parent.parent / DEFAULT  # of the bundled model
MODEL_FILES = ("config.json", "bertree.toml")  # a model folder has one of them, or both
CARD = "README.md"  # in the folder: the model card
NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
HASH = re.compile(r"[0-9a-f]{40}")
PREFIX = "models--"


def remembered_name(model: str | Path) -> str:
    """Return a name by which a model can be found again from any folder."""
    path = Path(model)
    if not path.exists():
        return str(model)
    path = path.resolve()
    name = DEFAULT if path == FOLDER.resolve() else cached_name(path)
    return name if name and path == resolve_model_path(name).resolve() else str(path)


def resolve_model_path(name: str | Path) -> Path:
    """Return the folder of a model; the path as given if there is no model of that name."""
    path = Path(name)
    try:
        if path.exists():
            return path / MODEL if holds_model(path / MODEL) and not holds_model(path) else path
        if str(name) in PRESETS:
            return path
    except OSError:  # too long for a file name, or not readable
        return path
    if str(name) != DEFAULT:
        return find_cached(str(name)) or path
    if not FOLDER.is_dir():
        raise UserError(
            f"{DEFAULT}: the bundled model is missing from this installation ({FOLDER}); "
            "install bertree again, or give a model folder"
        )
    return FOLDER


def holds_model(folder: Path) -> bool:
    """True if a folder has the files of a model."""
    return any((folder / name).is_file() for name in MODEL_FILES)


def cache_folder() -> Path:
    """Return the folder of the Hugging Face cache, by the environment variables of its own tools."""
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if folder := os.environ.get(variable):
            return Path(folder).expanduser() / below
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def is_hub_name(name: str) -> bool:
    """True if a name could be that of a model on the hub: NAME or ORG/NAME."""
    return NAME.fullmatch(name) is not None and "--" not in name and ".." not in name


def find_cached(name: str) -> Path | None:
    """Return the folder of a model's files in the cache; None if the model is not cached."""
    if not is_hub_name(name):
        return None
    cache = cache_folder()
    model = cache / (PREFIX + name.replace("/", "--"))
    try:
        commit = (model / "refs" / "main").read_text(encoding="ascii").strip()
        snapshot = model / "snapshots" / commit
        if not HASH.fullmatch(commit) or not snapshot.is_dir():
            return None
        return snapshot if snapshot.resolve().is_relative_to(cache.resolve()) else None
    except (OSError, ValueError):
        return None


def cached_names() -> list[str]:
    """Return the names on the hub of the models in the cache."""
    try:
        folders = [path.name for path in cache_folder().iterdir() if path.name.startswith(PREFIX)]
    except OSError:
        return []
    return [name.removeprefix(PREFIX).replace("--", "/") for name in folders]


def cached_name(folder: Path) -> str | None:
    """Return the name on the hub of a folder that `find_cached` returned; None for any other folder."""
    model = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not model.startswith(PREFIX):
        return None
    return model.removeprefix(PREFIX).replace("--", "/")


PRECISIONS = {  # and their synonyms
    "float32": ("fp32", "f32", "float", "single"),
    "bfloat16": ("bf16",),
    "float16": ("fp16", "f16", "half"),
    "int8": ("i8",),
}
_NAMES = {name: precision for precision, synonyms in PRECISIONS.items() for name in (precision, *synonyms)}


def parse_precision(value: object) -> str:
    """Return the name of a precision (float32, bfloat16, float16, int8) from a name, a synonym or a torch dtype."""
    name = str(value).removeprefix("torch.").lower()
    if name not in _NAMES:
        *others, last = PRECISIONS
        raise UserError(f"precision '{value}': must be {', '.join(others)} or {last}")
    return _NAMES[name]


@cache
def has_native_bfloat16() -> bool:
    """True if this CPU has instructions for bfloat16 (AVX512-BF16 or AMX on x86, BF16 on ARM).

    Others emulate it, several times slower than float32.
    """
    from bertree.model.torch_internals import cpu_has_bfloat16

    return cpu_has_bfloat16()
