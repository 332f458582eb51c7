"""bertree: the BERT family as one design space. See `bertree --help`.

Importing this package loads nothing heavy; torch comes in with the first name that needs it.
"""

from typing import TYPE_CHECKING, Any

from bertree.version import __version__

if TYPE_CHECKING:
    from bertree.errors import UserError
    from bertree.inference.load import Model, load
    from bertree.search.index import Index

__all__ = ["Index", "Model", "UserError", "__version__", "load"]

_HOMES = {
    "load": "bertree.inference.load",
    "Model": "bertree.inference.load",
    "Index": "bertree.search.index",
    "UserError": "bertree.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bertree' has no attribute '{name}'")
