"""The contents of a model folder in memory, and the empty network that they are loaded into."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.interop import sentence_transformers
from bertree.model.architecture import Architecture
from bertree.model.heads import ClassHead
from bertree.model.layers.basic import without_weights
from bertree.model.layers.embeddings import spell_network
from bertree.model.network import Network, build
from bertree.model.pooling import PoolingConfig, SentencePooling
from bertree.model.readout import Readout
from bertree.text.tokenizer import Tokenizer


@dataclass
class Contents:
    """The contents of a model folder."""

    architecture: Architecture
    network: Network
    tokenizer: Tokenizer | None = None
    labels: list[str] = field(default_factory=list)  # names of the classes of the task head
    max_length: int | None = None  # if the folder sets one below the number of positions
    task: Json = field(default_factory=dict)  # name and settings of the task that the model was trained for
    controls: tuple[str, ...] = ()  # control codes that texts may begin with
    takes_given: bool = False  # other texts, such as URLs, may follow the codes

    def __post_init__(self) -> None:
        self.set_tokenizer(self.tokenizer)

    def set_tokenizer(self, tokenizer: Tokenizer | None) -> None:
        """Set the tokenizer, and let a network that reads characters know how its tokens are spelled."""
        self.tokenizer = tokenizer
        length = self.architecture.axes().get("characters", 0)
        if length and tokenizer is not None:
            spell_network(self.network, torch.from_numpy(tokenizer.spelling(length)))


def maximum_length(a: Architecture, limit: int | None, task: Json) -> int:
    """Return the maximum length of a model whose folder sets this limit and this task. It is fine-tuned on sequences of
    the task's length, so those positions are trained too."""
    return a.max_positions if limit is None else min(a.max_positions, max(limit, task_length(task)))


def task_length(task: Json) -> int:
    """Return the tokens of a sequence in the fine-tuning on a task; 0 if there was none."""
    length = task.get("max_length")
    return length if type(length) is int and length > 0 else 0


def head_classes(network: Network) -> dict[str, int]:
    """Return the heads of a network and their numbers of classes."""
    return {n: h.out.out_features if isinstance(h, ClassHead) else 0 for n, h in network.heads.items()}


def build_empty(
    a: Architecture,
    heads: dict[str, int],
    where: Path,
    readout: Readout | None = None,
    vector: PoolingConfig | None = None,
) -> Network:
    """Build a network without storage, to be loaded."""
    try:
        with without_weights():
            return build(a, heads, readout, vector)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def add_pooling(
    network: Network, a: Architecture, vector: PoolingConfig | None, folder: Path, dtype: torch.dtype
) -> None:
    """Add the pooling of a folder of sentence-transformers."""
    if vector is None:
        return
    with without_weights():
        pooling = SentencePooling(a.output_width, vector, a.ends_in_summary)
    if vector.dense:
        sentence_transformers.load_dense(pooling, sentence_transformers.dense_folders(folder), dtype)
    network.vector = pooling
