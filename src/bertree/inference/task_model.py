"""A model with the head of a task: predictions for texts."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bertree.errors import BertreeWarning, UserError
from bertree.files.formats import Json
from bertree.inference.inputs import check_finite, check_inputs
from bertree.inference.model import Model
from bertree.objectives.supervised import HEAD_KINDS
from bertree.tasks.logits import effective_max_length, inference_autocast, logits
from bertree.tasks.squad.answers import Answers, choose_answer
from bertree.tasks.squad.task import SquadTask
from bertree.tasks.task import Logits, Task, Truncation, Unit
from bertree.tasks.text import TextTask
from bertree.text.records import text_field


class TaskModel(Model):
    """A model with the head of a task.

    A class of its own, because mteb takes anything that has a method `predict` for a cross-encoder, and would not ask
    it for sentence vectors.
    """

    def predict(
        self, inputs: Iterable[str | tuple[str, str] | Json] | str | Json, max_length: int = 0, first: int = 1
    ) -> list[Json]:
        """Return the predictions for inputs: for each `predicted`, `score`, and the values of its head.

        An input is a text, a pair of texts, or an object with the parts by name (question and context; context,
        question and options; words); a single text or object is one input. `max_length`: tokens per sequence; 0: as it
        was fine-tuned. `first`: number of the first input, for messages.
        """
        task = self.find_task()
        examples: list[Any] = []
        records = [inputs] if isinstance(inputs, str | Mapping) else check_inputs(inputs)
        for number, record in enumerate(records, first):
            where = f"input {number}"
            if isinstance(record, tuple) and isinstance(task, TextTask) and not task.columns.pair:
                examples.append(self._pair_example(task, record, where))
            else:
                examples += task.parse_all(_record(record, task.head, where), where)
        return self.predict_examples(task, examples, max_length)

    def _pair_example(self, task: TextTask, pair: tuple[str, str], where: str) -> Any:
        """Return the example of a pair, if the task does not say that it has pairs. The folder of another library does
        not say what its model reads: it may be a cross-encoder."""
        if self.task.get("name"):
            raise UserError(
                f"{where}: is a pair of texts, but {self.name} was fine-tuned on single texts ({task.name})"
            )
        record = _record(pair, task.head, where)
        assert isinstance(record, dict)
        return task.example(*(text_field(record, name, where) for name in record))

    def predict_examples(self, task: Task[Any], examples: Sequence[Any], max_length: int = 0) -> list[Json]:
        """Return the predictions for examples of a task, as `task.read` or `task.parse` make them."""
        return task.predict(examples, *self._compute(task, examples, max_length))

    def answer(self, question: str, passages: Sequence[str] | str, *, k: int = 5) -> Answers:
        """Return the answer to a question from one passage or several, and the k likeliest candidates.

        For models fine-tuned on SQuAD. Probabilities are shared by the best spans of all passages.
        """
        task = self.find_task()
        if not isinstance(task, SquadTask):
            raise UserError(f"answer: {self.name} was fine-tuned for {task.name}, not for questions (squad, squad2)")
        texts = [passages] if isinstance(passages, str) else list(passages)
        if not texts:
            raise UserError("answer: there is no passage to read")
        examples = [
            task.parse({"question": question, "context": text}, f"passage {n}") for n, text in enumerate(texts, 1)
        ]
        contexts = [example.context for example in examples]
        return choose_answer(task, contexts, *self._compute(task, examples), most=k)

    def prepare_units(
        self, task: Task[Any], examples: Sequence[Any], max_length: int = 0
    ) -> tuple[list[Unit], Truncation]:
        """Return what the network reads of examples, in their order, and how much was cut."""
        return task.units(examples, self.required_tokenizer, self._longest(max_length))

    def unit_logits(self, task: Task[Any], units: Sequence[Unit]) -> list[Logits]:
        """Return the outputs of the task's head for units, which are computed together."""
        found = logits(self.network, task.head, units, lambda: inference_autocast(self.device))
        for rows in found:
            check_finite(rows, self.name)
        return found

    def _longest(self, max_length: int) -> int:
        usual = self.task.get("max_length") or self.max_length
        return effective_max_length(max_length, usual, self.architecture.longest_input)

    def _compute(
        self, task: Task[Any], examples: Sequence[Any], max_length: int = 0
    ) -> tuple[list[Unit], list[Logits]]:
        units, cut = self.prepare_units(task, examples, max_length)
        if cut.examples:
            line = cut.message("input", len(examples), self._longest(max_length))
            warnings.warn(line, BertreeWarning, stacklevel=3)
        return units, self.unit_logits(task, units)


def _record(record: Any, head: str, where: str) -> str | Json:
    """Name the texts of a pair, so that no character in them can divide it."""
    if isinstance(record, tuple):
        if len(record) != 2:
            raise UserError(f"{where}: a pair must have two texts, not {len(record)}")
        return dict(zip(HEAD_KINDS[head].pair_names, record, strict=True))
    if not isinstance(record, str | Mapping):
        raise UserError(f"{where}: must be a text, a pair of texts or an object, not {str(record)[:60]!r}")
    return record if isinstance(record, str) else dict(record)
