"""What a model can be asked for, by its heads and its architecture."""

from typing import Any

from bertree.errors import UserError
from bertree.inference.model import Model
from bertree.model.architecture import Transformer
from bertree.objectives.supervised import HEAD_KINDS
from bertree.tasks.squad.task import SquadTask
from bertree.tasks.tagging.task import TaggingTask
from bertree.tasks.task import Task
from bertree.tasks.text import TextTask

# Ability -> what it means, for messages.
ABILITIES = {
    "embed": "compute vectors of texts",
    "rerank": "score pairs of a query and a text",
    "predict": "classify texts",
    "fill": "fill masks",
    "entities": "find entities",
    "answer": "answer questions from a passage",
    "generate": "continue texts",
    "layers": "show attention",
}


def abilities(model: Model, task: Task[Any] | None) -> frozenset[str]:
    """Return what a model with this task can be asked for."""
    if model.tokenizer is None:
        return frozenset()
    found = {"embed"}
    if "mask" in model.network.heads and model.network.features is None:
        if model.architecture.causal:
            found.add("generate")
        elif model.tokenizer.id_of("mask") is not None:
            found.add("fill")
    if isinstance(model.architecture, Transformer) and model.architecture.has_attention:
        found.add("layers")
    if isinstance(task, TextTask) and task.head == "sequence":
        found.add("predict")
        if _reads_pairs(model, task):
            found.add("rerank")
    elif isinstance(task, TaggingTask) and task.has_entity_tags:
        found.add("entities")
    elif isinstance(task, SquadTask):
        found.add("answer")
    return frozenset(found)


def find_task(model: Model) -> Task[Any] | None:
    """Return the task that a model answers; None if it answers none."""
    if not set(model.classes) & set(HEAD_KINDS):
        return None
    try:
        return model.find_task()
    except UserError:
        return None


def _reads_pairs(model: Model, task: TextTask) -> bool:
    """Whether a classifier may be used on pairs of texts. The folder of a foreign one does not say what it reads; with
    one class or two it may be a cross-encoder."""
    return bool(task.columns.pair) or ("name" not in model.task and task.classes <= 2)
