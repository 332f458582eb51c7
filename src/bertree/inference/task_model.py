"""A model with the head of a task."""

from bertree.errors.arguments import methods_check_arguments
from bertree.inference import prediction
from bertree.inference.model import Model


@methods_check_arguments
class TaskModel(Model):
    """A model with the head of a task: it also has `predict`, `predict_examples` and `answer`.

    A class of its own, because mteb takes any object with a method `predict` for a cross-encoder and does not ask it
    for sentence vectors.
    """

    predict = prediction.predict
    predict_examples = prediction.predict_examples
    answer = prediction.answer
