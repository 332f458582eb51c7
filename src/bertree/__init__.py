"""bertree: the BERT family as one design space. See `bertree --help`.

Importing this package loads nothing heavy; torch comes in with the first name that needs it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertree.api import Model, load
    from bertree.errors import UserError
    from bertree.sentence.index import Index

__version__ = "0.1.0"
__all__ = ["Index", "Model", "UserError", "__version__", "load"]

_HOMES = {
    "load": "bertree.api",
    "Model": "bertree.api",
    "Index": "bertree.sentence.index",
    "UserError": "bertree.errors",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bertree' has no attribute '{name}'")
