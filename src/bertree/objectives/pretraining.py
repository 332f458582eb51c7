"""The objectives of the papers: masked tokens, next sentence, sentence order."""

import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.model.network import Network
from bertree.objectives.objective import IGNORED, Loss, Objective, Term, cross_entropy


class MaskedTokens:
    """MLM: which token stood here; or, if the stream asks that, comes next. Only those asked go through the head."""

    def count(self, batch: Batch) -> int:
        """Masked tokens."""
        assert batch.targets is not None, "the stream must mask"
        return int((batch.targets != IGNORED).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy over the vocabulary."""
        assert batch.masked is not None, "the stream must mask"
        assert batch.targets is not None
        return cross_entropy(
            network.mask_logits(hidden_th, batch.masked, rounded=torch.is_grad_enabled()), batch.targets
        )


class SentencePair:
    """NSP or SOP: are the two segments as they stood in the text. The data decides which of the two is asked."""

    def count(self, batch: Batch) -> int:
        """Pairs that carry a label."""
        assert batch.pairs is not None, "the format must ask about pairs"
        return int((batch.pairs != IGNORED).sum())

    def loss(self, network: Network, hidden_th: Tensor, batch: Batch) -> Loss:
        """Cross-entropy over two classes."""
        assert batch.pairs is not None, "the format must ask about pairs"
        return cross_entropy(network.class_logits("pair", hidden_th, batch), batch.pairs)


def pretraining(mlm: float = 1.0, nsp: float = 0.0, sop: float = 0.0) -> Objective:
    """The sum of the terms whose weight is not 0."""
    terms: dict[str, Term] = {"mlm": MaskedTokens(), "nsp": SentencePair(), "sop": SentencePair()}
    weights = {name: weight for name, weight in (("mlm", mlm), ("nsp", nsp), ("sop", sop)) if weight}
    return Objective({name: terms[name] for name in weights}, weights)
