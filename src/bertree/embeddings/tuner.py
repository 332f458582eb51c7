"""A run that trains sentence vectors: an encoder with pooling and, for classes of pairs, a classifier on top."""

from dataclasses import dataclass, field

import torch

from bertree.finetuning.tuner import FineTuning
from bertree.model.architecture import Architecture
from bertree.model.heads import PairClassifier
from bertree.model.network import Network, build
from bertree.model.pooling import DenseLayer, PoolingConfig, SentencePooling


@dataclass(kw_only=True)
class EmbeddingFineTuning(FineTuning):
    """A run that trains sentence vectors; `run` trains with one seed."""

    pooling: PoolingConfig = field(default_factory=PoolingConfig)
    concat: tuple[str, ...] = ()  # parts of two vectors that a classifier reads; empty: no classifier

    @property
    def architecture(self) -> Architecture:
        """The architecture of the initial model, with the changes of the configuration."""
        return self.initial.architecture.with_values({"attention_dropout": 0.0} | self.config.model)

    @property
    def reuses_head(self) -> bool:
        """Never: a classifier is not saved."""
        return False

    @property
    def pretrained(self) -> tuple[str, ...]:
        """Prefixes of the weights that are copied from the initial model, where they fit."""
        return ("encoder.", "features.") if self._has_new_dense else ("encoder.", "features.", "vector.")

    @property
    def _has_new_dense(self) -> bool:
        """Whether the dense layers after the pooling are not those of the initial model."""
        initial = self.initial.network.vector
        return self.pooling.dense != (() if initial is None else initial.config.dense)

    def network(self, seed: int) -> Network:
        """Build the network: pretrained encoder and pooling, where they fit, and a new classifier."""
        network = super().network(seed)
        if network.vector is not None and self._has_new_dense:
            _start_as_identity(network.vector)
        return network

    def new_network(self) -> Network:
        """Build the network with random weights."""
        a = self.architecture
        network = build(a, {}, self.config.readout.of_network, self.pooling)
        if self.concat:
            assert network.vector is not None
            network.heads["compare"] = PairClassifier(network.vector.width, self.task.classes, self.concat, a.init_std)
        return network


@torch.no_grad()
def _start_as_identity(pooling: SentencePooling) -> None:
    """Let new dense layers change nothing, or as little as their width allows: training starts from the vectors as they
    were."""
    for layer in pooling.dense:
        assert isinstance(layer, DenseLayer)
        torch.nn.init.eye_(layer.linear.weight)
        if layer.linear.bias is not None:
            torch.nn.init.zeros_(layer.linear.bias)
