"""The warm-up of a run that is shorter than the one it was chosen for."""

from bertree.console import note
from bertree.files.formats import Json


def total_steps(tree: Json) -> int:
    """Return the steps of all phases, of values that are not checked yet."""
    phases = tree.get("phases")
    steps = (
        [phase.get("steps") if isinstance(phase, dict) else None for phase in phases] if type(phases) is list else []
    )
    return sum(steps) if all(type(count) is int for count in steps) else 0  # type: ignore[arg-type]


def scale_warmup(tree: Json, steps: int) -> None:
    """Scale a warm-up that was chosen for a run of so many steps, if the tree's run is so short that more than half of
    it would be warm-up."""
    schedule, total = tree.get("schedule"), total_steps(tree)
    warmup = schedule.get("warmup") if isinstance(schedule, dict) else None
    if type(warmup) is not int or not 0 < total < steps or 2 * warmup <= total:
        return
    scaled = max(1, round(warmup * total / steps))
    tree["schedule"] = schedule | {"warmup": scaled}  # type: ignore[operator]
    note(f"schedule.warmup: {scaled} of {total} steps, scaled from the recipe's {warmup} of {steps:,}")
