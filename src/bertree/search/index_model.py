"""Find the model that an index was built with."""

from pathlib import Path

from bertree.config.default_model import resolve_model_path
from bertree.errors import UserError
from bertree.search.index import Index


def find_index_model(folder: Path) -> str:
    """Return the name or path of the model that an index was built with."""
    with Index.open(folder) as index:
        name = index.state.model
    if not name:
        raise UserError(f"{folder}: does not say where its model is; give it with --model")
    if not resolve_model_path(name).exists():
        raise UserError(f"{folder}: its model was at {name}, which is gone; give its new place with --model")
    return name
