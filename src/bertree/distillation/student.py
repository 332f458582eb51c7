"""How a student is built: its architecture (half of the teacher, a preset, a folder) and its initial weights.

A student of a task keeps its teacher's pooler and, if it has the same one, its head; a student of text has an MLM head.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertree.config.names import resolve_model_path
from bertree.console import note
from bertree.data.store import Store
from bertree.distillation.copy_weights import copy_weights
from bertree.distillation.teacher import Teacher
from bertree.errors import UserError, counted, suggest
from bertree.inference.load import load, make_model, random_model
from bertree.inference.model import Model
from bertree.interop.contents import Contents
from bertree.model.architecture import Architecture, Transformer
from bertree.model.heads import ClassHead
from bertree.model.layers.basic import initialize
from bertree.model.pooling import Dense, SentencePooling
from bertree.model.presets import PRESETS, preset
from bertree.pretraining import build
from bertree.pretraining.recipe import DistillRecipe
from bertree.tasks.task import Task

HALF = "half"
SAMPLED_TOKENS = 200_000  # of the text, to weight frequent tokens


def halve(a: Architecture, bare: bool = True) -> Architecture:
    """Return an architecture with half the layers.

    `bare`: BERT also loses its segments and its pooler, as in DistilBERT (not if layers are shared or pre-norm: Hugging
    Face has no such models; nor if segments are relative, as XLNet's). A student of a task keeps them, because its
    teacher's head reads the pooler.
    """
    if a.layers < 2:
        raise UserError("`student=half`: the teacher has one layer only; name a smaller preset instead")
    layers = a.layers // 2
    if not isinstance(a, Transformer):
        return a.with_values({"layers": layers})
    as_bert = a.segments > 1 and a.segment_encoding == "absolute" and a.sharing == "none" and a.residual == "post-norm"
    if not (bare and as_bert):
        return a.with_values({"layers": layers, "groups": min(a.groups, layers)})
    return a.with_values({"layers": layers, "segments": 0, "pooler": False, "sequence_head": "relu"})


def spread_evenly(teacher_layers: int, student_layers: int) -> list[int]:
    """Return the teacher's layers to start from, evenly spread from the first on; of 12 for 6: 1, 3, ... 11."""
    return [depth * teacher_layers // student_layers + 1 for depth in range(student_layers)]


def last_layers(teacher_layers: int, student_layers: int) -> list[int]:
    """Return the teacher's layers that the student's hidden states match, evenly spread to the last: 2, 4, ... 12."""
    return [max(1, depth * teacher_layers // student_layers) for depth in range(1, student_layers + 1)]


def parse_layers(text: str, teacher_layers: int, student_layers: int, name: str) -> list[int]:
    """Parse the teacher's layers from `1,3,5`: one for each layer of the student."""
    try:
        layers = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError(f"{name} '{text}': must be numbers of the teacher's layers, for example 1,3,5") from None
    if len(layers) != student_layers:
        needed = counted(student_layers, "layer")
        raise UserError(f"{name} '{text}': the student has {needed}, so give {counted(student_layers, 'number')}")
    for layer in layers:
        if not 1 <= layer <= teacher_layers:
            raise UserError(f"{name} '{text}': {layer} is not one of the teacher's layers 1 to {teacher_layers}")
    return layers


def _initial_layers(text: str, teacher_layers: int, student_layers: int, name: str) -> list[int]:
    """Return the teacher's layers that a student starts with: those that are named, or evenly spread."""
    if text:
        return parse_layers(text, teacher_layers, student_layers, name)
    return spread_evenly(teacher_layers, student_layers)


def build_task_student(name: str, teacher: Teacher, task: Task[Any], layers: str, tokenizer: Path | None) -> Model:
    """Build the student of a task: half of its teacher, a model folder, or a preset that reads as its teacher does."""
    if name == HALF:
        if tokenizer is not None:
            raise UserError("`tokenizer`: half of a teacher reads with its tokenizer; name a preset to choose another")
        return _copied_student(halve(teacher.model.architecture, bare=False), teacher, task, layers)
    if name not in PRESETS or Path(name).exists():
        if layers:
            raise UserError(f"`layers`: {name} has weights of its own; layers are for half and for presets")
        near = suggest(name, (*PRESETS, HALF))
        if near.startswith("did") and not resolve_model_path(name).exists():
            raise UserError(f"{name}: no such folder or preset; {near}")
        return load(name, tokenizer=tokenizer)
    if tokenizer is not None and layers:
        raise UserError("`layers`: a teacher's layers know its own tokenizer only; leave out `tokenizer`")
    if tokenizer is not None:
        return load(name, tokenizer=tokenizer)
    a = preset(name).architecture.with_values({"vocab_size": teacher.model.architecture.vocab_size})
    if layers:
        return _copied_student(a, teacher, task, layers)
    note(f"{name}: is a preset with fresh weights; where shapes agree, `layers=1,3,...` begins with the teacher's")
    student = random_model(a, {})
    student.tokenizer = teacher.model.tokenizer
    return student


def _copied_student(a: Architecture, teacher: Teacher, task: Task[Any], layers: str) -> Model:
    """Return a student that starts with some of the teacher's layers and, if it has the same one, its head."""
    model, teacher_a = teacher.model, teacher.model.architecture
    if not isinstance(a, Transformer) or not isinstance(teacher_a, Transformer):
        raise UserError("`layers`, `student=half`: are for transformers; a bilstm has no layers to copy")
    if (a.width, a.heads) != (teacher_a.width, teacher_a.heads):
        raise UserError(
            f"`layers`: the student is {a.width} wide with {a.heads} heads and its teacher {teacher_a.width} "
            f"with {teacher_a.heads}, so no layer fits; leave it out"
        )
    network = random_model(a, {task.head: model.classes[task.head]}).network
    copied = copy_weights(network, model.network, _initial_layers(layers, teacher_a.layers, a.layers, "`layers`"))
    if copied.misfit:
        raise UserError(f"`layers`, `student=half`: {copied.misfit}; leave out `layers` to start with random weights")
    head, teacher_head = (each.heads[task.head].state_dict() for each in (network, model.network))
    same = head.keys() == teacher_head.keys() and all(torch.equal(head[name], teacher_head[name]) for name in head)
    keeps_head = same and model.network.readout.trivial
    labels, about = (list(teacher.labels), {"name": task.name}) if keeps_head else ([], {})
    return make_model(Contents(a, network, model.tokenizer, labels, model.limit, about))


def reorder_classes(student: Model, teacher: Teacher, task: Task[Any]) -> None:
    """Put the classes of a head that was copied from the teacher into the task's order."""
    order = teacher.order(task)
    if order is None or student.labels != list(teacher.labels) or student.tokenizer is not teacher.tokenizer:
        return
    head = student.network.heads[task.head]
    assert isinstance(head, ClassHead)
    with torch.no_grad():
        for tensor in head.out.parameters():
            tensor.copy_(tensor[order].clone())
    student.labels[:] = task.labels


def build_text_student(recipe: DistillRecipe, teacher: Model, store: Store) -> tuple[Contents, str]:
    """Build the student of text: half of the teacher or a preset, with the recipe's changes; and a line about it."""
    teacher_a = teacher.architecture
    half = (recipe.model.get("preset") or HALF) == HALF
    base = halve(teacher_a) if half else recipe.base_architecture()
    a = recipe.with_axes(base, {"vocab_size": teacher_a.vocab_size} | recipe.axes)
    if a.causal != teacher_a.causal:
        attention, required = (each.axes()["attention"] for each in (a, teacher_a))
        raise UserError(f"{recipe.source}: model.attention: {attention}: must be the teacher's, {required}")
    if (a.direction, teacher_a.direction) != ("forward", "forward"):
        raise UserError(
            f"{recipe.source}: model.direction: distillation on text is for students and teachers that read forward; "
            "teach a task (`task=TASK` `data=DIR`)"
        )
    contents = build.build_untrained(a, {"mask": 0}, recipe.run.seed)
    if recipe.distill.vector:
        contents.network.vector = _student_pooling(a, teacher, recipe.run.seed)
    if contents.network.state_specs(1):
        raise UserError(f"{recipe.source}: model.memory: a student reads every sequence alone; set model.memory=0")
    contents.tokenizer = teacher.required_tokenizer
    line = "random"
    if recipe.distill.start == "teacher":
        named = recipe.distill.layers
        layers = _initial_layers(named, teacher_a.layers, a.layers, "distill.layers")
        tokens = _sampled_tokens(store) if a.embedding_width < teacher_a.embedding_width else None
        copied = copy_weights(contents.network, teacher.network, layers, tokens)
        if named and copied.layers < a.layers:
            raise UserError(f"distill.layers: {copied.misfit}; leave it out, or give the student the teacher's shape")
        total = len(contents.network.state_dict())
        which = f"layers {', '.join(map(str, layers))}" if copied.layers == a.layers else copied.misfit
        line = f"{copied.tensors} of {total} tensors from the teacher; {which}"
        if copied.positions and copied.layers == a.layers:
            contents.max_length = teacher.limit  # every position is copied
    return build.fit_to_recipe(contents, recipe, store), f"first weights: {line}"


def _sampled_tokens(store: Store) -> torch.Tensor:
    """Return tokens at equal distances in a text."""
    step = store.tokens // SAMPLED_TOKENS + 1
    ids = np.concatenate([shard.tokens[::step] for shard in store.shards]).astype(np.int64)
    return torch.from_numpy(ids[ids < store.vocab_size])


def _student_pooling(a: Architecture, teacher: Model, seed: int) -> SentencePooling:
    """Return the student's pooling: its teacher's, or with a linear layer to the width of the teacher's vectors if
    their hidden states differ in width."""
    same = a.output_width == teacher.pooling.state_width
    config = teacher.pooling.config
    if not same:
        config = replace(config, dense=(Dense(teacher.pooling.width, "identity"),))
    pooling = SentencePooling(a.output_width, config, a.ends_in_summary)
    if same:
        pooling.load_state_dict(teacher.pooling.state_dict())
        return pooling
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialize(pooling, a.output_width**-0.5)
    return pooling
