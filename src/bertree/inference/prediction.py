"""Predictions of a model with the head of a task.

These functions are the methods of `TaskModel`. They are apart from `Model` because they import the tasks, which a model
without such a head does not need.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertree.console import note
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.inference.inputs import check_finite, check_inputs
from bertree.inference.loaded import LoadedModel
from bertree.objectives.supervised import HEAD_KINDS
from bertree.tasks.batches import inference_autocast, logits
from bertree.tasks.squad.task import Answers, SquadTask, choose_answer
from bertree.tasks.task import Logits, Task, Unit
from bertree.tasks.text import TextTask
from bertree.text.memory import Rows, is_table, rows_of
from bertree.text.records import text_field


def predict(
    model: LoadedModel,
    inputs: Iterable[str | tuple[str, str] | Json] | str | Json | Rows,
    max_length: int = 0,
    first: int = 1,
) -> list[Json]:
    """Return the predictions for inputs: for each `predicted`, `score`, and the values of its head.

    An input is a text, a pair of texts, or an object with the fields of the task (question and context; context,
    question and options; words); a single text or object is one input, and a row of a table (a
    frame, an Arrow table, a Dataset) too. `max_length`: tokens per sequence; 0: the length the model was fine-tuned
    with. `first`: number of the first input, for messages.
    """
    task = model.find_task()
    examples: list[Any] = []
    if is_table(inputs):
        inputs = rows_of(inputs, "inputs")
    records = [inputs] if isinstance(inputs, str | Mapping) else check_inputs(inputs)
    for number, record in enumerate(records, first):
        where = f"input {number}"
        if isinstance(record, tuple) and isinstance(task, TextTask) and not task.columns.pair:
            examples.append(_pair_example(model, task, record, where))
        else:
            examples += task.parse_all(_named_fields(record, task.head, where), where)
    return predict_examples(model, task, examples, max_length)


def predict_examples(model: LoadedModel, task: Task[Any], examples: Sequence[Any], max_length: int = 0) -> list[Json]:
    """Return the predictions for examples of a task, as `task.read` or `task.parse` make them."""
    return task.predict(examples, *_compute(model, task, examples, max_length))


def answer(model: LoadedModel, question: str, passages: Sequence[str] | str, *, k: int = 5) -> Answers:
    """Return the answer to a question from one passage or several, and the k most likely candidates.

    For models fine-tuned on SQuAD. The probabilities of the best spans of all passages add up to 1.
    """
    task = model.find_task()
    if not isinstance(task, SquadTask):
        raise UserError(f"answer: {model.name} was fine-tuned for {task.name}, not for questions (squad, squad2)")
    texts = [passages] if isinstance(passages, str) else list(passages)
    if not texts:
        raise UserError("answer: there is no passage to read")
    examples = [task.parse({"question": question, "context": text}, f"passage {n}") for n, text in enumerate(texts, 1)]
    contexts = [example.context for example in examples]
    return choose_answer(task, contexts, *_compute(model, task, examples), most=k)


def _compute(
    model: LoadedModel, task: Task[Any], examples: Sequence[Any], max_length: int = 0
) -> tuple[list[Unit], list[Logits]]:
    """Return what the network reads of examples, and the outputs of the task's head for it."""
    limit = model.sequence_length(max_length, model.task_length)
    units, truncation = task.units(examples, model.required_tokenizer, limit)
    if truncation.examples:
        note(truncation.message("input", len(examples), limit))
    outputs = logits(model.network, task.head, units, lambda: inference_autocast(model.device))
    for rows in outputs:
        check_finite(rows, model.name)
    return units, outputs


def _pair_example(model: LoadedModel, task: TextTask, pair: tuple[str, str], where: str) -> Any:
    """Return the example of a pair for a task that declares no pairs.

    The folder of another library does not say what its model reads: it may be a cross-encoder.
    """
    if model.task.get("name"):
        raise UserError(f"{where}: is a pair of texts, but {model.name} was fine-tuned on single texts ({task.name})")
    record = _named_fields(pair, task.head, where)
    assert isinstance(record, dict)
    return task.example(*(text_field(record, name, where) for name in record))


def _named_fields(record: Any, head: str, where: str) -> str | Json:
    """Name the texts of a pair, so that no character in them can be taken for a separator."""
    if isinstance(record, tuple):
        if len(record) != 2:
            raise UserError(f"{where}: a pair must have two texts, not {len(record)}")
        return dict(zip(HEAD_KINDS[head].pair_names, record, strict=True))
    if not isinstance(record, str | Mapping):
        raise UserError(f"{where}: must be a text, a pair of texts or an object, not {str(record)[:60]!r}")
    return record if isinstance(record, str) else dict(record)
