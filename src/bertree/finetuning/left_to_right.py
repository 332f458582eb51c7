"""What fine-tuning of a left-to-right model needs: tokens around the texts, the task's layout, the language-model loss.

The input transformations and the auxiliary loss are those of Radford et al. (2018).
"""

from typing import Any

import torch

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.finetuning.config import FineTuneConfig
from bertree.inference.load import make_model
from bertree.inference.model import Model
from bertree.interop.contents import Contents, head_classes
from bertree.model.network import Network, build
from bertree.objectives.supervised import HEAD_KINDS
from bertree.tasks.options import configure_task
from bertree.tasks.task import Task
from bertree.text.framing import add_task_tokens, frames_texts

LM_WEIGHT = 0.5  # of the language-model loss, unless set
SEED = 0  # of the embeddings of new tokens


def with_layout(task: Task[Any], model: Model, settings: Json) -> Task[Any]:
    """Return the task in the layout that suits the model; what the user has set stays."""
    return configure_task(task.for_left_to_right(), settings) if model.architecture.causal else task


def with_task_tokens(model: Model) -> Model:
    """Return the model with tokens around its texts: if it reads left to right and its tokenizer writes none, new
    ones are added to the vocabulary, with random embeddings. The model that is given stays as it is."""
    if not model.architecture.causal or model.tokenizer is None or frames_texts(model.tokenizer):
        return model
    tokenizer = add_task_tokens(model.tokenizer)
    a = model.architecture.with_values({"vocab_size": max(tokenizer.size, model.architecture.vocab_size)})
    network = model.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        grown = build(a, head_classes(network), network.readout, network.vector.config if network.vector else None)
    state = grown.state_dict()
    for name, tensor in network.state_dict().items():  # new rows come after the others
        state[name][tuple(slice(size) for size in tensor.shape)] = tensor.to(state[name])
    grown.load_state_dict(state)
    contents = Contents(a, grown.to(model.device), tokenizer, model.labels, model.limit, model.task, model.controls)
    return make_model(contents, model.trained)


def language_model_weight(
    config: FineTuneConfig, task: Task[Any], model: Model, default: float | None = LM_WEIGHT
) -> float | None:
    """Return the weight of the language-model loss, as set or the default; None if there is none."""
    asked = config.train.lm
    reasons = {
        "sentence vectors are trained without it": HEAD_KINDS[task.head].term is None,
        "the model does not read left to right": not model.architecture.causal,
        "the model has no language-model head": "mask" not in model.network.heads,
        "the head does not read the states that a language model reads (top)": config.top.reads_states,
    }
    missing = next((reason for reason, applies in reasons.items() if applies), "")
    if missing and asked:
        raise UserError(f"lm: {missing}, so there is no language-model loss; leave it out")
    return None if missing else default if asked is None else asked


def without_language_model(network: Network) -> Network:
    """Return the network without its language-model head, which is not part of a model of a task."""
    heads = {name: head for name, head in network.heads.items() if name != "mask"}
    parts = (network.readout, network.features, network.crf, network.vector, network.width)
    return network if len(heads) == len(network.heads) else Network(network.encoder, heads, *parts)
