"""The folder of a run: what its files are called."""

METRICS, RECIPE, ENVIRONMENT, TENSORBOARD = "metrics.jsonl", "recipe.toml", "environment.json", "tensorboard"
REPORT = "report.html"
CHECKPOINTS, MODEL, BEST_MODEL = "checkpoints", "model", "model-best"
SCORES, PREDICTIONS = "metrics.json", "predictions.jsonl"
COMPARISON, TEMPERATURE = "comparison.json", "temperature.json"


def predictions_file(split: str) -> str:
    """Name of the file with the predictions on a split."""
    return PREDICTIONS if split in ("dev", "test") else f"predictions-{split.partition('-')[2]}.jsonl"
