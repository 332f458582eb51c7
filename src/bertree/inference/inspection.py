"""What every layer makes of a text: attention, the logit lens, and the lengths of the states.

Shape letters: t tokens of one text, h width, v vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bertree.errors import UserError
from bertree.inference.inputs import check_finite
from bertree.inference.loaded import LoadedModel
from bertree.inference.mask_filling import Candidate, top_candidates
from bertree.inference.states import attention_probabilities
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder, unknown_attention
from bertree.text.tokenizer import Tokenizer

Lens = list[list[list[Candidate]]]  # layer -> token -> candidates


@dataclass(frozen=True)
class Inspection:
    """One text in every layer of a model."""

    tokens: list[str]
    attention: Tensor | None  # layers x heads x tokens x tokens; None: this kind of attention cannot be shown
    lens: Lens | None  # of the embeddings and of each layer; None: the model has no head that reads them
    norms: Tensor  # lengths of the states: layers + 1 x tokens
    dropped: int  # tokens that were cut


class InspectionMethods(LoadedModel):
    """`inspect`."""

    def inspect(self, text: str | tuple[str, str], *, k: int = 3, max_length: int | None = None) -> Inspection:
        """Return what every layer makes of one text or pair: attention, the k likeliest tokens at each token (the
        logit lens), and the lengths of the states.

        The lens reads the states of every layer with the MLM or LM head, as if it were the last one. Below the last
        layer that is a view into the model, not what it predicts.
        """
        if k < 1:
            raise UserError(f"k: must be at least 1, not {k}")
        tokenizer = self.required_tokenizer
        (encoded,) = tokenizer.encode([text], min(max_length or self.max_length, self.max_length))
        batch = self._pack([encoded]).to(self.device)
        with self._evaluating(), torch.no_grad():
            states = list(self.network.encoder.states(batch))
            shown = not unknown_attention(self.network.encoder)
            attention = attention_probabilities(self.network.encoder, batch) if shown else None
            lens = logit_lens(self.network, states, tokenizer, k)
        norms = torch.stack([state_th.float().norm(dim=1) for state_th in states])
        check_finite(norms, self.name)
        tokens = [tokenizer.backend.id_to_token(token) or f"<{token}>" for token in encoded.ids]
        return Inspection(tokens, attention, lens, norms, encoded.dropped)


def logit_lens(network: Network, states: list[Tensor], tokenizer: Tokenizer, k: int) -> Lens | None:
    """Return the k likeliest tokens at each token of each layer, as the MLM or LM head reads its states (t x h).

    States before the last layer are normed as the last ones are. None if there is no such head, or if it reads other
    states: those of a query stream, or of a readout.
    """
    encoder = network.encoder
    if "mask" not in network.heads or network.features is not None or not isinstance(encoder, TransformerEncoder):
        return None
    if encoder.query_start is not None:
        return None
    found: Lens = []
    for depth, state_th in enumerate(states):
        normed_th = encoder.norm(state_th) if encoder.norm is not None and depth < encoder.depth else state_th
        every_t = torch.arange(len(state_th), device=state_th.device)
        shares_tv = network.mask_logits(normed_th, every_t).float()[:, : tokenizer.size].softmax(-1)
        found.append(top_candidates(shares_tv, tokenizer, k))
    return found
