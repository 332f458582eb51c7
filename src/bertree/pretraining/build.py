"""Build the parts of a run on a token store from a recipe: stores, model, batches."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertree.config.names import resolve_model_path
from bertree.config.sections import Phase
from bertree.console import note
from bertree.data.held_out import split_held_out
from bertree.data.lane_stream import LaneStream
from bertree.data.masking import Masking
from bertree.data.sequences.shuffle_group import CLS_SEGMENT
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.inference.load import random_model
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.architecture import Architecture, Transformer
from bertree.objectives.pretraining import TERMS
from bertree.pretraining.recipe import Recipe, check_architecture
from bertree.pretraining.sections import DataSettings
from bertree.scale.world import World
from bertree.text.identity import tokenizer_hash
from bertree.train.checkpoint import CheckpointFolder
from bertree.train.checkpoint_files import read_header
from bertree.train.device_setup import DeviceSetup, micro_batch_count
from bertree.train.feed import AnyStream, StreamFeed, TrainingSchedule

DROPOUTS = ("dropout", "attention_dropout", "classifier_dropout")  # axes that may change in a trained model


def open_stores(data: DataSettings) -> tuple[Store, Store]:
    """Open the text to train on and the held-out text."""
    store, least = Store.open(data.store), 2 if data.format.endswith("+nsp") else 1
    store.check_sample()
    if data.held_out:
        held = Store.open(data.held_out)
        held.check_sample()
        if held.tokenizer_hash != store.tokenizer_hash:
            raise UserError(f"{data.held_out}: was made with another tokenizer than {data.store}; prepare it again")
    else:
        store, held = split_held_out(store, data.held_out_share, min_documents=least)
    if data.share < 1:
        _, store = split_held_out(store, data.share, min_documents=least)
    return store, held


def build_model(recipe: Recipe, store: Store) -> Contents:
    """Build the model to train: with random weights, or from a trained one (model.start)."""
    tokenizer = store.load_tokenizer()
    start = recipe.model.get("start")
    heads = {TERMS[term].head: 0 for term, weight in recipe.objective.items() if weight}
    if start:
        contents = _load_start(resolve_model_path(str(start)), recipe, heads)
        if contents.tokenizer is not None:
            store.require_tokenizer(tokenizer_hash(contents.tokenizer), str(start))
    else:
        a = recipe.with_axes(recipe.base_architecture(), {"vocab_size": store.vocab_size} | recipe.axes)
        contents = build_untrained(a, heads, recipe.run.seed)
    contents.set_tokenizer(contents.tokenizer or tokenizer)
    return fit_to_recipe(contents, recipe, store)


def fit_to_recipe(contents: Contents, recipe: Recipe, store: Store) -> Contents:
    """Check that the model fits recipe and store, and set the longest sequence it is trained on."""
    if contents.max_length is not None:  # positions beyond the longest sequence learn nothing
        memory = int(contents.architecture.axes().get("memory", 0))
        longest = max(contents.max_length, *(phase.max_length + memory for phase in recipe.phases))
        contents.max_length = longest if longest < contents.architecture.max_positions else None
    if contents.architecture.vocab_size < store.vocab_size:
        raise UserError(
            f"{recipe.source}: model.vocab_size: {contents.architecture.vocab_size} is less than the "
            f"{store.vocab_size} tokens of {store.folder}"
        )
    check_architecture(recipe, contents.architecture, masking_of(recipe.data).unit, bool(store.controls))
    segments = int(contents.architecture.axes().get("segments", 0))
    if store.cls_last and not recipe.data.format.startswith(("lanes", "stream")) and 0 < segments <= CLS_SEGMENT:
        raise UserError(
            f"{recipe.source}: data.format: {recipe.data.format}: the tokenizer of {store.folder} puts [CLS] into a "
            f"segment of its own; set model.segments={CLS_SEGMENT + 1}"
        )
    if contents.network.state_specs(1) and not recipe.data.in_lanes:
        note(f"model.memory: nothing is remembered with data.format={recipe.data.format}; set data.format=lanes")
    if contents.architecture.axes().get("query_stream") and masking_of(recipe.data).unit != "permutation":
        note(
            f"model.query_stream: data.masking={recipe.data.masking} does not train the stream that predicts tokens "
            "in `bertree fill`; set model.query_stream=false"
        )
    contents.controls = tuple(dict.fromkeys([*contents.controls, *(control.code for control in store.controls)]))
    contents.takes_given |= store.has_given
    return contents


def build_untrained(a: Architecture, heads: dict[str, int], seed: int) -> Contents:
    """Build a model with random weights. No position is trained yet; the phases raise `max_length`."""
    if not a.pretrainable:
        way = "it learns a task (bertree finetune), best from a teacher (bertree distill)"
        raise UserError(f"model.body: a {a.body} is not pretrained; {way}")
    return Contents(a, random_model(a, heads, seed).network, max_length=1)


def _load_start(path: Path, recipe: Recipe, heads: dict[str, int]) -> Contents:
    """Load a trained model with these heads: its own if it has them, new ones otherwise."""
    if not path.is_dir():
        raise UserError(f"{path}: no such model folder (model.start)")
    before, axes = folder.read(path), recipe.axes
    axes_before = before.architecture.axes()
    for axis in [
        axis for axis, value in axes.items() if axis not in DROPOUTS and value != axes_before.get(axis, value)
    ]:
        line = f"model.{axis}: stays {axes_before[axis]}, as in {path} (the recipe's {axes[axis]} is for a new model)"
        note(line)
    dropouts = {axis: value for axis, value in axes.items() if axis in DROPOUTS}
    contents = build_untrained(recipe.with_axes(before.architecture, dropouts), heads, recipe.run.seed)
    contents.network.load_state_dict(before.network.state_dict(), strict=False)
    if before.network.vector is not None:  # it is not trained here, but belongs to the model
        contents.network.vector = before.network.vector.requires_grad_(False)
    for head in set(heads) - set(before.network.heads):
        note(f"{path}: has no head '{head}'; a new one is trained")
    contents.tokenizer, contents.max_length, contents.controls = before.tokenizer, before.max_length, before.controls
    contents.takes_given = before.takes_given
    return contents


def masking_of(data: DataSettings, rate: float = 0.0) -> Masking:
    """Return how tokens are masked, at the data's rate or another."""
    masking = Masking.parse(data.masking)
    if masking is None:
        raise UserError(
            "data.masking: pretraining needs masks: token, word or ngram, each also +static10; or next or permutation"
        )
    try:
        return replace(
            masking,
            rate=rate or data.mask_rate,
            mask=data.mask,
            random=data.random,
            ngram=data.ngram,
            partial=data.partial,
            spans=data.spans,
        )
    except UserError as error:
        raise UserError(f"data: {error}") from None


def mask_share(recipe: Recipe, phase: Phase) -> float:
    """Return the share of the tokens that are predicted."""
    return masking_of(recipe.data, phase.mask_rate).share


def resolve_paths(recipe: Recipe) -> Recipe:
    """Make the paths of a recipe absolute."""
    store, held_out = (path and str(Path(path).resolve()) for path in (recipe.data.store, recipe.data.held_out))
    start = recipe.model.get("start")
    axes = recipe.model | (
        {"start": str(resolve_model_path(start).resolve())} if isinstance(start, str) and start else {}
    )
    return replace(recipe, data=replace(recipe.data, store=store, held_out=held_out), model=axes)


def build_feed(
    recipe: Recipe,
    schedule: TrainingSchedule,
    store: Store,
    device_setup: DeviceSetup,
    a: Architecture,
    *,
    logit_share: float = 0.0,
    world: World | None = None,
    counts: Sequence[int] = (),
) -> StreamFeed:
    """Build this rank's batches of every phase, split into micro-batches that fit the device.

    `logit_share` is the share of tokens whose logits over the vocabulary are computed, if not just the masked ones.
    `counts`: how many micro-batches all ranks have in each phase, if an interrupted run is continued.
    """
    rank, ranks = (world.data_rank, world.data) if world else (0, 1)
    streams: list[list[AnyStream]] = []
    for number, phase in enumerate(recipe.phases):
        if phase.max_length > a.max_positions:
            raise UserError(
                f"{recipe.source}: phases.{number}.max_length: {phase.max_length} is more than the model's "
                f"{a.max_positions} positions{_longer_positions(a, phase.max_length)}"
            )
        masking = masking_of(recipe.data, phase.mask_rate)
        rate = logit_share or masking.share
        count = (
            counts[number] if counts else count_micro_batches(recipe, number, device_setup, a, rate=rate, ranks=ranks)
        )
        check_count(recipe, number, count, ranks)
        own = range(rank * count // ranks, (rank + 1) * count // ranks)
        seed = recipe.run.seed + 1000 * number  # each phase has its own order
        shared: dict[str, Any] = {"masking": masking, "seed": seed, "world": count, "fixed": device_setup.compiled}
        parts: list[AnyStream]
        if recipe.data.in_lanes:
            shared |= {"lanes": phase.batch_tokens // phase.max_length, "length": phase.max_length}
            parts = [LaneStream(store, rank=part, **shared, **lane_settings(recipe.data)) for part in own]
        else:
            shared |= {"batch_tokens": phase.batch_tokens, "max_length": phase.max_length}
            parts = [Stream(store, format=recipe.data.format, rank=part, **shared) for part in own]
        streams.append(parts)
    return StreamFeed(schedule, streams, device_setup.compiled, rank, ranks)


def count_micro_batches(
    recipe: Recipe, number: int, device_setup: DeviceSetup, a: Architecture, *, rate: float, ranks: int
) -> int:
    """Return the micro-batches of a batch in a phase; 0 if the batch is too small for the ranks. `rate` is the
    share of tokens whose logits over the vocabulary are computed."""
    phase = recipe.phases[number]
    count = micro_batch_count(phase, recipe.run, device_setup, a, rate=rate, ranks=ranks)
    return _lane_parts(phase, count or ranks, device_setup.compiled, ranks) if recipe.data.in_lanes else count


def check_count(recipe: Recipe, number: int, count: int, ranks: int) -> None:
    """Check that the data ranks can share a number of micro-batches equally."""
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
    are too few lanes for the ranks."""
    lanes = phase.batch_tokens // phase.max_length
    counts = range(-(-parts // ranks) * ranks, lanes + 1, ranks)
    return next((n for n in counts if lanes % n == 0 or not fixed), 0)


def micro_batches_of(checkpoints: Path, phases: Sequence[Phase]) -> list[int]:
    """Return how many micro-batches a run that is resumed has in each phase, as its newest readable checkpoint records;
    empty if none does."""
    folder = CheckpointFolder(checkpoints)
    most = [max(1, phase.batch_tokens // phase.max_length) for phase in phases]
    for step in folder.steps():
        with suppress(UserError):
            counts = read_header(folder.path(step), step).extra.get("micro_batches")
            if not isinstance(counts, list) or len(counts) != len(phases):
                continue
            if all(type(n) is int and 0 < n <= top for n, top in zip(counts, most, strict=True)):
                return counts
    return []


def _longer_positions(a: Architecture, length: int) -> str:
    """Return how an architecture can get more positions, for messages: more rows of axial ones."""
    if not isinstance(a, Transformer) or a.positions != "axial":
        return ""
    _, columns = a.axial_sizes
    return f" (axial_shape={a.axial_shape}); set model.axial_shape={-(-length // columns)},{columns}"


def lane_settings(data: DataSettings) -> dict[str, Any]:
    """Return what a recipe says about its lanes."""
    return {
        "documents": data.format.endswith("+documents"),
        "backward": data.backward,
        "reuse": data.reuse if data.paired else 0.0,
    }


def identity_of_lanes(feed: StreamFeed) -> Json:
    """Return how the text of each phase is divided into lanes, which must be the same when a run is resumed."""
    identities = [streams[0].identity for streams in feed.streams if isinstance(streams[0], LaneStream)]
    return {name: [identity[name] for identity in identities] for name in (identities[0] if identities else ())}


def can_be_compiled(data: DataSettings, store: Store) -> bool:
    """Return whether all batches can have one shape: lanes that start fresh at documents vary in their sequences."""
    return not data.in_lanes or not (data.format.endswith("+documents") or store.controls)
