"""Names of models: a folder, `default` for the model bundled with bertree, or a model in the local Hugging Face cache.

A folder of that name comes first, so a folder called `default` hides the bundled model.
"""

from pathlib import Path

from bertree.config.hub_cache import find_cached
from bertree.errors import UserError
from bertree.model.presets import DEFAULT, PRESETS

FOLDER = Path(__file__).parent.parent / DEFAULT
CARD = "README.md"  # in the folder: the model card


def remembered_name(model: str) -> str:
    """Return a name by which a model can be found again from any folder."""
    path = Path(model)
    return str(path.resolve()) if path.exists() else model


def resolve_model_path(name: str | Path) -> Path:
    """Return the folder of a model; the path as given if there is no model of that name."""
    path = Path(name)
    try:
        if path.exists() or str(name) in PRESETS:
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
