"""The recipe of continued pretraining: its objective follows the model, its sizes follow text, model and device.

Each value is chosen on its own, and an override replaces that value alone.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bertree.config.overrides import Override
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.inference.model import Model
from bertree.model.architecture import Architecture
from bertree.pretraining import recipe as recipes
from bertree.pretraining.recipe import Recipe

NAME = "adapt"
EPOCHS, MINUTES = 3.0, 30.0  # if neither is set: at most so many passes, and at most so long
RATE = 4.0  # times the architecture's rate for fine-tuning, at most
RATE_TOKENS = 3e5  # that are read at 1 times that rate; for other numbers it follows their square root
WARMUP = 0.06  # share of the steps
FEWEST_STEPS = 300  # below which the batch is made smaller: many small steps learn more from little text
HELD_OUT_TOKENS, LEAST_SHARE, MOST_SHARE = 100_000, 0.01, 0.1
EVALUATIONS, TIMED_EVERY = 10, 100  # in a run; steps between two, at most, where a time budget sets their number
SAVE_EVERY = 500  # steps, at most
SPECIAL, SHORTEST = 2, 16  # tokens of a sequence beside its text; shortest sequence


class DeviceSizes(NamedTuple):
    """Sizes that suit a kind of device, in tokens."""

    length: int  # longest sequence
    batch: int
    least_batch: int
    evaluated: int  # of held-out text


SIZES = {"cpu": DeviceSizes(128, 4096, 1024, 32768), "cuda": DeviceSizes(512, 65536, 8192, 262144)}


def objective_of(a: Architecture) -> dict[str, str]:
    """Return what the model learns from text, as it was pretrained: masked tokens, the next one, or a permutation."""
    axes = a.axes()
    if not a.causal and not axes.get("query_stream"):
        return {"masking": "token", "format": "doc-sentences"}
    masking = "permutation" if axes.get("query_stream") else "next"
    return {"masking": masking, "format": "lanes" if axes.get("memory") else "stream"}


def unsized_recipe(
    start: str, store: str, minutes: float, epochs: float, overrides: Sequence[str | Override]
) -> Recipe:
    """Return the recipe before text and model are read: what the user has set, checked."""
    tree = {"name": NAME, "model": {"start": start}, "data": {"store": store}, "phases": [{"steps": 1}]}
    recipe = recipes.with_overrides(tree, NAME, overrides)
    for key, value in (("minutes", minutes), ("epochs", epochs)):
        if not math.isfinite(value) or value < 0:
            raise UserError(f"`{key}`: {value:g}: must be a positive number")
        if value and "phases.0.steps" in recipe.overridden:
            raise UserError(f"`{key}`: phases.0.steps says the same; leave one of them out")
    return recipe


def sized_recipe(
    unsized: Recipe,
    model: Model,
    store: Store,
    device: str,
    *,
    minutes: float,
    epochs: float,
    overrides: Sequence[str | Override],
) -> Recipe:
    """Return the recipe for a model, a text and a device (cpu, cuda)."""
    set_keys, sizes, a = unsized.overridden, SIZES[device], model.architecture
    has_steps = "phases.0.steps" in set_keys
    share = min(MOST_SHARE, max(LEAST_SHARE, HELD_OUT_TOKENS / max(1, store.tokens)))
    learning = objective_of(a)
    phase = unsized.phases[0]
    length = phase.max_length if "phases.0.max_length" in set_keys else _length(sizes, model, store, learning)
    passes = epochs or EPOCHS
    batch = _batch(sizes, length, store.tokens * passes, learning["format"] == "lanes")
    batch = phase.batch_tokens if "phases.0.batch_tokens" in set_keys else batch
    steps = max(1, math.ceil(passes * (1 - share) * store.tokens / batch))
    total = sum(each.steps for each in unsized.phases) if has_steps else steps
    rate = a.learning_rate * min(math.sqrt(total * batch / RATE_TOKENS), RATE)
    budget = 0.0 if has_steps else minutes or (0.0 if epochs else MINUTES)
    every = max(1, math.ceil(total / EVALUATIONS))
    every = min(every, TIMED_EVERY) if budget else every
    every = every if every <= SAVE_EVERY else -(-every // SAVE_EVERY) * SAVE_EVERY  # what is evaluated is saved
    tree: Json = {
        "name": NAME,
        "note": "continued pretraining",
        "model": dict(unsized.model),
        "data": {"store": unsized.data.store, "held_out_share": share, **learning},
        "optim": {"lr": float(f"{rate:.3g}"), "betas": [0.9, 0.98]},
        "schedule": {"warmup": math.ceil(WARMUP * total)},
        "phases": [{"steps": steps, "max_length": length, "batch_tokens": batch}],
        "run": {
            "log_every": max(1, every // 10),
            "eval_every": every,
            "save_every": min(every, SAVE_EVERY),
            "eval_tokens": sizes.evaluated,
            **({"minutes": budget} if budget else {}),
            **({"at_most": True} if budget and (epochs or not minutes) else {}),
        },
    }
    return recipes.with_overrides(tree, NAME, overrides)


def _length(sizes: DeviceSizes, model: Model, store: Store, learning: Mapping[str, str]) -> int:
    """Return the tokens of a sequence: as the device likes them, within the model's maximum, no longer than documents
    are where a sequence is of one document."""
    length = min(model.max_length, sizes.length)
    if learning["format"] != "doc-sentences":
        return length
    lengths = (np.diff(shard.sentence_starts[shard.document_starts]) for shard in store.shards)
    longest = max(int(each.max()) for each in lengths if each.size)
    return min(length, max(SHORTEST, -(-(longest + SPECIAL) // 8) * 8))


def _batch(sizes: DeviceSizes, length: int, tokens: float, lanes: bool) -> int:
    """Return the tokens of a batch: fewer where the text is short, whole sequences in lanes."""
    size = sizes.batch
    while size > sizes.least_batch and tokens / size < FEWEST_STEPS:
        size //= 2
    size = max(size, 4 * length)
    return size // length * length if lanes else size
