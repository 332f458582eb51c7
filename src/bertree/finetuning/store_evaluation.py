"""Evaluate a model's pretraining objectives on a token store: masked tokens (`mlm`), next (`nsp`) or swapped (`sop`)
sentences.

Format, masking, length and seed belong to the evaluation, not to the recipe of the model, so that figures of different
models of one tokenizer can be compared; with bits per byte also those of different tokenizers. A model with a query
stream (XLNet) predicts the same tokens, hidden instead of masked.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bertree.batch import Batch
from bertree.console import bar, note
from bertree.data.held_out import HiddenDocuments, MaskedDocuments, split_held_out
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.errors import UserError
from bertree.files.formats import Json
from bertree.inference.model import Model
from bertree.objectives.objective import Term
from bertree.objectives.pretraining import TERMS, pretraining_objective
from bertree.tasks.batches import inference_autocast
from bertree.text.identity import tokenizer_hash
from bertree.train.held_out import HeldOutText, evaluate_held_out

OBJECTIVES = tuple(TERMS)
SPLITS = ("held-out", "all")
LENGTH, TOKENS = 128, 262_144  # of a sequence, and of the text that is read
HELD_OUT_SHARE, BATCH_TOKENS, SEED = 0.01, 16_384, 0


def evaluate_on_store(
    model: Model, name: str, objective: str, store: str | Path, *, split: str | None = None, max_length: int = 0
) -> Json:
    """Return the figures of a model on the held-out documents of a store (those that `pretrain` holds out), or on all.

    `max_length=0` is 128 tokens, or fewer if the model reads fewer.
    """
    split = split or SPLITS[0]
    if split not in SPLITS:
        raise UserError(f"`split={split}`: of a token store there are: {', '.join(SPLITS)}")
    _check_model(model, name, objective)
    opened = Store.open(store)
    opened.check_sample()
    if model.tokenizer is not None:
        opened.require_tokenizer(tokenizer_hash(model.tokenizer), name)
    if split == SPLITS[0]:
        _, opened = split_held_out(opened, HELD_OUT_SHARE, min_documents=2 if objective == "nsp" else 1)
    longest = model.architecture.longest_input
    length = max_length or min(LENGTH, longest or LENGTH)
    if longest and length > longest:
        raise UserError(f"`max_length={length}`: {name} reads up to {longest} tokens")
    text: Any
    if objective == "mlm":
        documents = HiddenDocuments if getattr(model.architecture, "query_stream", False) else MaskedDocuments
        text, tokens = documents(opened, max_length=length, tokens=TOKENS, batch_tokens=BATCH_TOKENS), None
    else:
        pairs, tokens = f"segment-pair+{objective}", TOKENS  # with BERT's masks
        batch_tokens = max(BATCH_TOKENS, 6 * length)
        text = Stream(opened, format=pairs, batch_tokens=batch_tokens, max_length=length, seed=SEED)
    terms = pretraining_objective(**{objective: 1.0})
    with bar("evaluating", min(TOKENS, opened.tokens), speed="tokens") as progress:
        counted = _CountedText(text, TERMS[objective], progress.advance)
        figures = evaluate_held_out(model.network, terms, counted, tokens, lambda: inference_autocast(model.device))
    shown: Json = {"accuracy": figures[TERMS[objective].accuracy], "loss": figures[objective]}
    if objective == "mlm":
        bits = figures["mlm"] * counted.predictions / math.log(2)
        shown |= {"perplexity": figures["perplexity"], "bits_per_byte": bits / text.target_bytes}
        shown |= {"masked_tokens": counted.predictions, "tokens": text.tokens}
    else:
        shown |= {"pairs": counted.predictions, "tokens": counted.tokens}
    if opened.tokens < TOKENS // 10:
        note(f"{store}: {opened.tokens:,} tokens are few for an evaluation; figures of small differences say little")
    return shown | {"task": objective, "split": split, "length": length, "model": name, "store": str(store)}


class _CountedText:
    """Text whose predictions and tokens are counted as they are read."""

    def __init__(self, text: HeldOutText, term: Term, advance: Callable[[int], None]) -> None:
        self._text, self._term, self._advance = text, term, advance
        self.predictions = self.tokens = 0

    def one_epoch(self) -> Iterator[Batch]:
        """Yield the text in batches."""
        for batch in self._text.one_epoch():
            self.predictions += self._term.count(batch)
            self.tokens += batch.ids.numel()
            yield batch
            self._advance(batch.ids.numel())


def _check_model(model: Model, name: str, objective: str) -> None:
    """Check that the model has what the objective asks."""
    head = TERMS[objective].head
    if objective == "mlm" and model.architecture.causal:
        raise UserError(f"{name}: reads left to right, so it fills no masks; measure it with `bertree perplexity`")
    if head not in model.network.heads:
        what = "masked tokens" if head == "mask" else "sentence pairs"
        raise UserError(f"{name}: has no head for {what}, so {objective} cannot be evaluated")
