"""How many micro-batches the batches of a run are split into, by all ranks together."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bertree.config.sections import Phase
from bertree.errors import UserError
from bertree.files.formats import read_json
from bertree.model.architecture import Architecture
from bertree.pretraining.recipe import Recipe
from bertree.train.checkpoints.files import HEADER
from bertree.train.checkpoints.folder import CheckpointFolder
from bertree.train.device import Placement, micro_batch_count


def count_micro_batches(
    recipe: Recipe, number: int, placement: Placement, a: Architecture, rate: float, ranks: int
) -> int:
    """Return the micro-batches of a batch in a phase; 0 if the batch is too small for so many ranks. `rate` is the
    share of tokens whose logits over the vocabulary are computed."""
    phase = recipe.phases[number]
    count = micro_batch_count(phase, recipe.run, placement, a, rate, ranks)
    return _lane_parts(phase, count or ranks, placement.compiled, ranks) if recipe.data.in_lanes else count


def check_count(recipe: Recipe, number: int, count: int, ranks: int) -> None:
    """Check that all data ranks have equally many of so many micro-batches."""
    phase, where = recipe.phases[number], f"{recipe.source}: phases.{number}.batch_tokens"
    if not count:
        raise UserError(
            f"{where}: {phase.batch_tokens} tokens in sequences of {phase.max_length} are too few for "
            f"{ranks} data ranks; give more tokens, or start fewer processes"
        )
    if count % ranks:
        raise UserError(
            f"{where}: the run was started with {count} micro-batches a step, which {ranks} data ranks "
            "cannot share equally; start a number of processes that divides it"
        )


def _lane_parts(phase: Phase, parts: int, fixed: bool, ranks: int) -> int:
    """Return how many micro-batches the lanes are divided into: equal ones, where shapes must be the same; 0 if there
    are too few lanes for so many ranks."""
    lanes = phase.batch_tokens // phase.max_length
    counts = range(-(-parts // ranks) * ranks, lanes + 1, ranks)
    return next((n for n in counts if lanes % n == 0 or not fixed), 0)


def micro_batches_of(checkpoints: Path, phases: Sequence[Phase]) -> list[int]:
    """Return how many micro-batches a run that is resumed has in each phase, as its newest checkpoint says; none if no
    checkpoint does."""
    folder = CheckpointFolder(checkpoints)
    most = [max(1, phase.batch_tokens // phase.max_length) for phase in phases]
    for step in folder.steps():
        with suppress(UserError):
            extra = read_json(folder.path(step) / HEADER).get("extra")
            counts = extra.get("micro_batches") if isinstance(extra, dict) else None
            if not isinstance(counts, list) or len(counts) != len(phases):
                continue
            if all(type(n) is int and 0 < n <= top for n, top in zip(counts, most, strict=True)):
                return counts
    return []
