"""The trained model that comes with bertree: a folder in the package, called `default` wherever a model is named.

It is a name like a preset's, so a path wins over it: who keeps a folder called `default` gets that folder.
"""

from pathlib import Path

from bertree.errors import UserError
from bertree.model.presets import DEFAULT

FOLDER = Path(__file__).parent.parent / DEFAULT
CARD = "README.md"  # in the folder: what it is, what it was made of, what it can do


def remembered_name(model: str) -> str:
    """Return a name by which a model can be found again from any folder."""
    path = resolve_model_path(model)
    return DEFAULT if model == DEFAULT and path != Path(model) else str(path.resolve()) if path.exists() else model


def resolve_model_path(name: str | Path) -> Path:
    """The path of a model: as given, or the package's own folder where `default` is the name of no other."""
    path = Path(name)
    if str(name) != DEFAULT or path.exists():
        return path
    if not FOLDER.is_dir():
        raise UserError(
            f"{DEFAULT}: this installation comes without the default model ({FOLDER} is missing); "
            "install bertree whole, or give a model folder"
        )
    return FOLDER
