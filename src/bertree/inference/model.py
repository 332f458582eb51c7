"""Inference with a loaded model: hidden states, attention, sentence vectors, masks."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bertree.batch import Batch
from bertree.console import bar, showing
from bertree.errors import TextsCut, Unable, UserError
from bertree.files.formats import Json
from bertree.inference.batching import batch_by_length, map_jobs
from bertree.inference.causal.methods import CausalMethods
from bertree.inference.embedding import Vectors, WindowSteps, embed_windows
from bertree.inference.inputs import Input, check_finite, check_inputs, list_inputs
from bertree.inference.inspection import InspectionMethods
from bertree.inference.mask_filling import MaskMethods
from bertree.inference.mteb import SentenceTransformersMethods, to_vectors
from bertree.inference.similarity import pair_similarities, percentiles, random_sentences, similarity_matrix
from bertree.inference.states import Layers, attention_probabilities, layer_states, parse_layers
from bertree.text.tokenizer import Encoded

if TYPE_CHECKING:
    from bertree.tasks.squad.answers import Answers
    from bertree.tasks.task import Task


class Model(MaskMethods, InspectionMethods, CausalMethods, SentenceTransformersMethods):
    """A loaded model: `embed`, `similarity`, `hidden`, `attentions`, `inspect`, `fill_mask`, `generate`, `save`.

    `bertree.load` gives a model with the head of a task as a `TaskModel`, which also has `predict` and `answer`.
    """

    def hidden(
        self, texts: Iterable[Input] | str, layers: Layers = -1, *, max_length: int | None = None
    ) -> list[Tensor]:
        """Return the hidden states of each input (tokens x width), in the order given.

        Inputs are texts, pairs of texts (as tuples), or lists of token ids. The rest of the list does not change an
        input's states. `layers`: 0 for the embeddings, 1, 2 ... for the layers, negative numbers from the last; for
        several, or "all", each input gets a stack (layers x tokens x width).
        """
        encoded = self.tokenize(list_inputs(texts), max_length)
        depths = parse_layers(layers, self.architecture.layers)

        @torch.no_grad()
        def states(rows: list[int]) -> tuple[list[int], Sequence[Tensor]]:
            batch = self._pack([encoded[row] for row in rows]).to(self.device)
            found = layer_states(self.network.encoder, batch, depths)
            if isinstance(layers, int):
                return rows, batch.split(found[0])
            return rows, torch.stack(found).split(batch.lengths.tolist(), 1)

        results: dict[int, Tensor] = {}
        with self._evaluating():
            for rows, found in map_jobs(
                states, batch_by_length([len(e.ids) for e in encoded], self.device), self.device
            ):
                results.update(zip(rows, found, strict=True))
        return [results[row] for row in range(len(encoded))]

    def attentions(self, text: Input, *, max_length: int | None = None) -> Tensor:
        """Return the attention probabilities of one text or pair: layers x heads x tokens x tokens.

        Row i of a head says how much token i attends to each token; `model.tokens(text)` names them. Transformers only.
        """
        if not self.architecture.has_attention:
            raise UserError(f"attentions: a {self.architecture.body} has no attention")
        (encoded,) = self.tokenize([text], max_length)
        with self._evaluating(), torch.no_grad():
            return attention_probabilities(self.network.encoder, self._pack([encoded]).to(self.device))

    def embed_windows(
        self,
        texts: Iterable[str] | str,
        *,
        prompt: str | None = None,
        max_length: int | None = None,
        batch_tokens: int = 0,
        dimensions: int | None = None,
        advance: Callable[[int], None] = lambda count: None,
        first: int | None = None,
    ) -> Iterator[Vectors]:
        """Embed any number of texts: yield some thousand rows at a time, in the order given.

        `advance` is called with the number of texts that are done. `first`: the texts go on from this row, and the
        first windows are small (`window_end`). For the rest see `embed`.
        """
        before, pooling = self.vector.prompt_text(prompt, self.name), self.pooling
        texts = [texts] if isinstance(texts, str) else check_inputs(texts)
        if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= self.dimension):
            raise UserError(
                f"dimensions: must be a whole number from 1 to {self.dimension}, the width of this model's vectors, "
                f"not {dimensions!r}"
            )
        states = self._runtime.states_of(self.network)

        def tokenize(some: Sequence[str]) -> Sequence[Encoded]:
            return self.tokenize([_with_prompt(text, before) for text in some], max_length)

        @torch.no_grad()
        def vectors(batch: Batch) -> Tensor:
            batch = batch.to(self.device)
            found_sd: Tensor = pooling(states(batch), batch)[:, :dimensions]
            cut = dimensions is not None and self.vector.normalize
            return F.normalize(found_sd, dim=-1) if cut else found_sd

        width = dimensions or self.dimension
        steps = WindowSteps(tokenize, self._pack, vectors, self.device, width, batch_tokens, advance)

        def windows() -> Iterator[Vectors]:
            with self._evaluating():
                yield from embed_windows(steps, texts, first)

        return windows()

    def batch_embedder(self) -> Callable[[Sequence[Encoded]], Vectors]:
        """Return a function that embeds tokenized texts as one batch: vectors before they are scaled to length 1.

        For servers: it may be called by several threads at once, and it holds the weights as they are now, so changes
        to them are not seen. `finish_vectors` makes of its rows what `embed` returns.
        """
        states, pooling, device = self._runtime.states_of(self.network), self.pooling, self.device

        @torch.no_grad()
        def vectors(encoded: Sequence[Encoded]) -> Vectors:
            order = sorted(range(len(encoded)), key=lambda row: len(encoded[row].ids))
            batch = self._pack([encoded[row] for row in order]).to(device)
            found = np.empty((len(encoded), pooling.width), np.float32)
            found[order] = pooling.unscaled(states(batch), batch).float().cpu().numpy()
            return found

        return vectors

    def embed(
        self,
        texts: Iterable[str] | str,
        *,
        prompt: str | None = None,
        max_length: int | None = None,
        batch_tokens: int = 0,
        dimensions: int | None = None,
        progress: bool | None = None,
    ) -> Vectors:
        """Return the vectors of texts: a row each, float32. The rest of the list does not change a text's vector.

        `prompt`: name of a prompt, if the model was trained with prompts (query, document ...). `dimensions`: keep only
        the first so many numbers of each vector (Matryoshka) and, if the model gives vectors of length 1, scale them to
        it again. `batch_tokens`: tokens computed at once; 0: what suits the device.
        """
        total = 1 if isinstance(texts, str) else len(texts) if isinstance(texts, Sized) else None
        with showing(progress), bar("embedding", total, speed="texts") as shown:
            windows = self.embed_windows(
                texts,
                prompt=prompt,
                max_length=max_length,
                batch_tokens=batch_tokens,
                dimensions=dimensions,
                advance=shown.advance,
            )
            vectors = np.concatenate([np.empty((0, dimensions or self.dimension), np.float32), *windows])
        check_finite(vectors, self.name)
        return vectors

    def similarity(self, a: Iterable[str] | str | Vectors, b: Iterable[str] | str | Vectors) -> Vectors:
        """Return the similarity of each of `a` to each of `b` (texts, or their vectors): a row for each of `a`.

        The measure is the model's own; by default the cosine.
        """
        one, other = (
            to_vectors(given) if isinstance(given, np.ndarray | Tensor) else self.embed(given) for given in (a, b)
        )
        return similarity_matrix(one, other, self.vector.similarity)

    def percentile(self, similarities: Vectors | float, *, prompt: str | None = None) -> Vectors:
        """Return, for each similarity, the percentage of random pairs of sentences that are less similar.

        Models differ in scale; this says how to read a score. The pairs are of English sentences from books, which are
        embedded for each call.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TextsCut)
            vectors = self.embed(random_sentences(), prompt=prompt)
        return percentiles(similarities, pair_similarities(vectors, self.vector.similarity))

    def find_task(self, name: str | None = None, **columns: str | None) -> "Task[Any]":
        """Return the task the model answers: the one of that name, or the one it was fine-tuned for."""
        from bertree.tasks import registry

        return registry.task_of_model(self.classes, self.labels, self.task, self.network.crf is not None, name, columns)

    if TYPE_CHECKING:

        def predict(
            self, inputs: Iterable[str | tuple[str, str] | Json] | str | Json, max_length: int = 0, first: int = 1
        ) -> list[Json]: ...

        def predict_examples(self, task: Task[Any], examples: Sequence[Any], max_length: int = 0) -> list[Json]: ...

        def answer(self, question: str, passages: Sequence[str] | str, *, k: int = 5) -> Answers: ...

    else:

        def __getattr__(self, name: str) -> Any:
            """Say why there is no `predict` or `answer`; any other attribute does not exist."""
            if name in ("predict", "predict_examples", "answer"):
                try:
                    self.find_task()
                except UserError as error:
                    raise Unable(str(error)) from None
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


def _with_prompt(text: object, prompt: str) -> str:
    if not isinstance(text, str):
        raise UserError(f"a text to embed must be a string, not {str(text)[:60]!r}")
    return prompt + text
