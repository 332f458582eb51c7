"""Models in the local cache of the Hugging Face hub, by their name on the hub. Never the network.

A cached model lies in models--ORG--NAME: refs/main holds the hash of a commit, snapshots/HASH its files.
"""

import os
import re
from pathlib import Path

NAME = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?")
HASH = re.compile(r"[0-9a-f]{40}")
PREFIX = "models--"


def cache_folder() -> Path:
    """Return the folder of the cache, as Hugging Face's tools find it."""
    for variable, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if place := os.environ.get(variable):
            return Path(place).expanduser() / below
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def is_hub_name(name: str) -> bool:
    """True if a name could be that of a model on the hub: NAME or ORG/NAME."""
    return NAME.fullmatch(name) is not None and "--" not in name and ".." not in name


def find_cached(name: str) -> Path | None:
    """Return the folder of a model's files in the cache; None if it is not there."""
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


def cached_name(folder: Path) -> str | None:
    """Return the name on the hub of a folder that `find_cached` returned; None for any other folder."""
    model = folder.parent.parent.name
    if folder.parent.name != "snapshots" or not model.startswith(PREFIX):
        return None
    return model.removeprefix(PREFIX).replace("--", "/")
