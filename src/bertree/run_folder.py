"""The folder of a run: what its files are called, and how it is created."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertree.errors import UserError

METRICS, RECIPE, ENVIRONMENT, TENSORBOARD = "metrics.jsonl", "recipe.toml", "environment.json", "tensorboard"
REPORT = "report.html"
CHECKPOINTS, MODEL, BEST_MODEL = "checkpoints", "model", "model-best"
SCORES, PREDICTIONS = "metrics.json", "predictions.jsonl"
COMPARISON = "comparison.json"


def predictions_file(split: str) -> str:
    """Name of the file with the predictions on a split."""
    return PREDICTIONS if split in ("dev", "test") else f"predictions-{split.partition('-')[2]}.jsonl"


@contextmanager
def make_folders(*folders: Path) -> Iterator[None]:
    """Create folders and their parents; after a mistake of the user, those that are still empty are removed."""
    created: list[Path] = []
    try:
        for folder in folders:
            created += [path for path in (folder, *folder.parents) if not path.exists()]
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
        yield
    except UserError:
        for path in sorted(created, key=lambda path: len(path.parts), reverse=True):
            with suppress(OSError):
                path.rmdir()
        raise
