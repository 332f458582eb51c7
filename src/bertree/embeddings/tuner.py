"""One run that trains vectors: the encoder under what makes a vector of its states and, for classes, a classifier."""

from dataclasses import dataclass, field

import torch

from bertree.finetuning.tuner import FineTuning
from bertree.model.architecture import Architecture
from bertree.model.heads import PairClassifier
from bertree.model.network import Network, build
from bertree.model.pooling import PoolingConfig


@dataclass
class EmbeddingFineTuning(FineTuning):
    """A task of vectors to be learned from a start; `run` learns it with one seed."""

    vector: PoolingConfig = field(default_factory=PoolingConfig)
    concat: tuple[str, ...] = ()  # what a classifier reads of two vectors; nothing: there is none

    @property
    def architecture(self) -> Architecture:
        """That of the start."""
        return self.start.architecture.with_values({"attention_dropout": 0.0} | self.config.model)

    @property
    def reuses_head(self) -> bool:
        """There is no head to go on with: a classifier is not kept."""
        return False

    def network(self, seed: int) -> Network:
        """The trained encoder, with what stood on it where it is the same, and a fresh classifier."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            made = self._built()
        if not self.start.reinitialize:
            known = made.state_dict()
            there = {
                name: tensor
                for name, tensor in self.start.network.state_dict().items()
                if name.startswith(("encoder.", "features.", "vector."))
                and name in known
                and known[name].shape == tensor.shape
            }
            made.load_state_dict(there, strict=False)
        return made.to(self.machine.device)

    def check(self) -> None:
        """Refuse what cannot be built, before anything is written."""
        with torch.device("meta"):
            self._built()

    def _built(self) -> Network:
        a = self.architecture
        made = build(a, {}, self.config.top, self.vector)
        if self.concat:
            assert made.vector is not None
            made.heads["compare"] = PairClassifier(made.vector.width, self.task.classes, self.concat, a.init_std)
        return made
