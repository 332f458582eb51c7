"""Which models can generate and judge text."""

from bertree.errors import UserError, listed
from bertree.inference.loaded import LoadedModel
from bertree.model.architecture import Architecture
from bertree.model.presets import PRESETS


def check_left_to_right(model: LoadedModel, what: str) -> None:
    """Refuse a model that does not predict the next token."""
    if not model.architecture.causal:
        known = [name for name, preset in PRESETS.items() if preset.architecture.causal and not preset.study]
        which = f" ({listed(known)})" if known else ""
        raise UserError(
            f"{what}: {model.name} sees the text on both sides of a token; only left-to-right models{which}, or others "
            "with attention = causal, predict the next one"
        )
    if "mask" not in model.network.heads or model.network.features is not None:
        raise UserError(f"{what}: {model.name} has no LM head; give a model that was not fine-tuned to a task")


def position_limit(a: Architecture) -> int | None:
    """Return how long a sequence may be; None if positions have no table and so no end."""
    return a.max_positions if getattr(a, "positions", "learned") in ("learned", "axial") else None
