"""From a recipe's sections to built parts: stores, model, batches. For every verb that trains on a token store."""

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertree.config.default_model import located
from bertree.config.sections import Phase
from bertree.data.masking import Masking
from bertree.data.split import split_held_out
from bertree.data.store import TOKENIZER, Store
from bertree.data.stream import Stream
from bertree.errors import BertreeWarning, UserError
from bertree.inference.load import fresh
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.model.architecture import Architecture
from bertree.model.presets import preset
from bertree.objectives.pretraining import TERMS
from bertree.pretraining.recipe import DataSettings, Recipe
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Tokenizer
from bertree.train.device import Placement, micro_batch_count
from bertree.train.feed import StreamFeed
from bertree.train.schedule import TrainingPlan

EVALUATION_TOKENS = 16384  # in a batch
ALLOWED = ("dropout", "attention_dropout", "classifier_dropout")  # axes that may change in a trained model


def stores(data: DataSettings) -> tuple[Store, Store]:
    """What is learned from, and what is held out."""
    store = Store.open(data.store)
    if not data.held_out:
        return split_held_out(store, data.held_out_share, min_documents=2 if data.format.endswith("+nsp") else 1)
    held = Store.open(data.held_out)
    if held.tokenizer_hash != store.tokenizer_hash:
        raise UserError(f"{data.held_out}: was made with another tokenizer than {data.store}; prepare it again")
    return store, held


def model(recipe: Recipe, store: Store) -> Contents:
    """The model to train: a fresh point of the design space, or one that goes on learning."""
    assert store.folder is not None, "the stores of a run lie on the disk"
    tokenizer = Tokenizer.load(store.folder / TOKENIZER)
    start, name, axes = recipe.model.get("start"), recipe.model.get("preset"), recipe.axes
    heads = {TERMS[term].head: 0 for term, weight in recipe.objective.items() if weight}
    if start:
        contents = _started(located(str(start)), axes, heads, recipe.run.seed)
        if contents.tokenizer is not None:
            store.require_tokenizer(tokenizer_hash(contents.tokenizer), str(start))
    elif name:
        a = preset(str(name)).architecture.with_values({"vocab_size": store.vocab_size} | axes)
        contents = untrained(a, heads, recipe.run.seed)
    else:
        raise UserError(f"{recipe.source}: model.preset: is not set; give a preset's name (see `bertree info`)")
    contents.tokenizer = contents.tokenizer or tokenizer
    return fitted(contents, recipe, store)


def fitted(contents: Contents, recipe: Recipe, store: Store) -> Contents:
    """A model that can learn what the recipe asks from the store, and knows how long its texts may be."""
    if contents.max_length is not None:  # positions beyond the longest sequence learn nothing
        longest = max(contents.max_length, *(phase.max_length for phase in recipe.phases))
        contents.max_length = longest if longest < contents.architecture.max_positions else None
    if contents.architecture.vocab_size < store.vocab_size:
        raise UserError(
            f"{recipe.source}: model.vocab_size: {contents.architecture.vocab_size} is less than the "
            f"{store.vocab_size} tokens of {store.folder}"
        )
    if masking(recipe.data).unit == "next" and contents.architecture.attention != "causal":
        raise UserError(
            f"{recipe.source}: data.masking: next: with full attention every token sees the one it is to predict; "
            "set model.attention=causal"
        )
    return contents


def untrained(a: Architecture, heads: dict[str, int], seed: int) -> Contents:
    """A fresh point of the design space. Nothing is learned yet, so not a position is known; the phases raise that."""
    if a.body != "transformer":
        way = "it learns a task (bertree finetune), best from a teacher (bertree distill --task)"
        raise UserError(f"model.body: a {a.body} is not pretrained; {way}")
    return Contents(a, fresh(a, heads, seed).network, max_length=1)


def _started(path: Path, axes: dict[str, Any], heads: dict[str, int], seed: int) -> Contents:
    """A trained model with the heads asked for: its own where it has them, fresh ones where not."""
    if not path.is_dir():
        raise UserError(f"{path}: no such model folder (model.start)")
    before = folder.read(path)
    there = asdict(before.architecture)
    for axis in [axis for axis, value in axes.items() if axis not in ALLOWED and value != there[axis]]:
        line = f"model.{axis}: stays {there[axis]}, as in {path} (the recipe's {axes[axis]} is for a fresh model)"
        warnings.warn(line, BertreeWarning, stacklevel=2)
    dropouts = {axis: value for axis, value in axes.items() if axis in ALLOWED}
    contents = untrained(before.architecture.with_values(dropouts), heads, seed)
    contents.network.load_state_dict(before.network.state_dict(), strict=False)
    for head in set(heads) - set(before.network.heads):
        warnings.warn(f"{path}: has no head '{head}'; a fresh one is trained", BertreeWarning, stacklevel=2)
    contents.tokenizer, contents.max_length = before.tokenizer, before.max_length
    return contents


def masking(data: DataSettings, rate: float = 0.0) -> Masking:
    """How tokens are masked, at the data's rate or another."""
    found = Masking.parse(data.masking)
    if found is None:
        raise UserError("data.masking: pretraining needs masks: token, word or ngram, each also +static10; or next")
    return replace(found, rate=rate or data.mask_rate)


def feed(
    recipe: Recipe, plan: TrainingPlan, store: Store, machine: Placement, a: Architecture, scored: float = 0.0
) -> StreamFeed:
    """The batches of every phase, cut into micro-batches that fit the machine; `scored` is the share of tokens whose
    scores over the vocabulary take memory, where it is not that of the masked ones."""
    streams = []
    for number, phase in enumerate(recipe.phases):
        if phase.max_length > a.max_positions:
            raise UserError(
                f"{recipe.source}: phases.{number}.max_length: {phase.max_length} is more than the model's "
                f"{a.max_positions} positions"
            )
        asked = masking(recipe.data, phase.mask_rate)
        count = micro_batch_count(phase, recipe.run, machine, a, scored or asked.share)
        streams.append(
            [
                Stream(
                    store,
                    format=recipe.data.format,
                    masking=asked,
                    batch_tokens=phase.batch_tokens,
                    max_length=phase.max_length,
                    seed=recipe.run.seed + 1000 * number,  # each phase in an order of its own
                    rank=rank,
                    world=count,
                    fixed=machine.compiled,
                )
                for rank in range(count)
            ]
        )
    return StreamFeed(plan, streams, fixed=machine.compiled)


def held_out(recipe: Recipe, store: Store, phase: Phase) -> Stream:
    """Held-out text as a phase reads it, with the same masks every time."""
    return Stream(
        store,
        format=recipe.data.format,
        masking=replace(masking(recipe.data), duplicates=0),
        batch_tokens=max(min(EVALUATION_TOKENS, recipe.run.eval_tokens), 6 * phase.max_length),
        max_length=phase.max_length,
        seed=recipe.run.seed,
    )
