"""TODO."""

METRICS, RECIPE, ENVIRONMENT, TENSORBOARD = "metrics.jsonl", "recipe.toml", "environment.json", "tensorboard"


REPORT = "report.html"


CHECKPOINTS, MODEL, BEST_MODEL = "checkpoints", "model", "model-best"


SCORES, PREDICTIONS = "metrics.json", "predictions.jsonl"


def file_of(split: str) -> str:
    """Where the predictions on a split go."""
    return PREDICTIONS if split in ("dev", "test") else f"predictions-{split.partition('-')[2]}.jsonl"
