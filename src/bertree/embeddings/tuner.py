"""A run that trains sentence vectors: an encoder with pooling and, for classes of pairs, a classifier on top."""

from dataclasses import dataclass, field

import torch

from bertree.finetuning.tuner import FineTuning
from bertree.model.architecture import Architecture
from bertree.model.heads import PairClassifier
from bertree.model.init import without_weights
from bertree.model.network import Network, build
from bertree.model.pooling import Dense, DenseLayer, PoolingConfig, SentencePooling


@dataclass
class EmbeddingFineTuning(FineTuning):
    """A run that trains sentence vectors; `run` trains with one seed."""

    vector: PoolingConfig = field(default_factory=PoolingConfig)
    concat: tuple[str, ...] = ()  # parts of two vectors that a classifier reads; empty: no classifier

    @property
    def architecture(self) -> Architecture:
        """That of the initial model."""
        return self.initial.architecture.with_values({"attention_dropout": 0.0} | self.config.model)

    @property
    def reuses_head(self) -> bool:
        """Never: a classifier is not saved."""
        return False

    def network(self, seed: int) -> Network:
        """Build the network: pretrained encoder and pooling, where they fit, and a new classifier."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = self._built()
        known = made.state_dict()
        if made.vector is not None and made.vector.config.dense != self.initial_dense:
            _start_as_identity(made.vector)
            known = {name: tensor for name, tensor in known.items() if not name.startswith("vector.")}
        if not self.initial.reinitialize:
            there = {
                name: tensor
                for name, tensor in self.initial.network.state_dict().items()
                if name.startswith(("encoder.", "features.", "vector."))
                and name in known
                and known[name].shape == tensor.shape
            }
            made.load_state_dict(there, strict=False)
        return made.to(self.machine.device)

    @property
    def initial_dense(self) -> tuple[Dense, ...]:
        """The dense layers that the initial model has."""
        before = self.initial.network.vector
        return () if before is None else before.config.dense

    def check(self) -> None:
        """Raise an error if the network cannot be built, before anything is written."""
        with without_weights():
            self._built()

    def _built(self) -> Network:
        a = self.architecture
        made = build(a, {}, self.config.top, self.vector)
        if self.concat:
            assert made.vector is not None
            made.heads["compare"] = PairClassifier(made.vector.width, self.task.classes, self.concat, a.init_std)
        return made


def _start_as_identity(pooling: SentencePooling) -> None:
    """Let new dense layers change nothing, or as little as their width allows: training starts from the vectors as they
    were."""
    for layer in pooling.dense:
        assert isinstance(layer, DenseLayer)
        torch.nn.init.eye_(layer.linear.weight)
        if layer.linear.bias is not None:
            torch.nn.init.zeros_(layer.linear.bias)
