"""`Model`: a loaded model with everything that can be asked of it.

Each method checks nothing and computes nothing itself: the work is done by a function of this package that takes the
loaded model. So this file is the list of what a model can do, and the place to look for a method's keywords.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from torch import Tensor

from bertree.console import note, showing
from bertree.errors import TextsCut, Unable, UserError
from bertree.errors.arguments import methods_check_arguments
from bertree.inference import mask_filling, mteb
from bertree.inference.causal.generation import Generation, GenerationOptions, TextStream, generate
from bertree.inference.causal.perplexity import LastWords, Perplexity, Reading, measure_perplexity, predict_last_words
from bertree.inference.causal.sampling import Sampling
from bertree.inference.causal.scoring import Attribution, Prior, attribute
from bertree.inference.causal.texts import read_texts
from bertree.inference.embedding import (
    BatchEmbedder,
    Vectors,
    embed_all,
    pair_similarities,
    pairwise_similarity,
    percentiles,
    random_sentences,
    similarity_matrix,
)
from bertree.inference.inputs import Input
from bertree.inference.loaded import LoadedModel
from bertree.inference.mask_filling import Candidate, FilledMask, MaskedText
from bertree.inference.states import Inspection, Layers, hidden_states, inspect_text, text_attentions

if TYPE_CHECKING:
    from bertree.inference import prediction
    from bertree.report.layers import LayerMeasures


@methods_check_arguments
class Model(LoadedModel):
    """A loaded model: `embed`, `similarity`, `hidden`, `inspect`, `layers`, `fill_mask`, `generate`, `save`.

    `bertree.load` gives a model with the head of a task as a `TaskModel`, which also has `predict` and `answer`.
    """

    # Sentence vectors

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
        this many numbers of each vector, the first ones (Matryoshka), and scale it to length 1 again if the model does.
        `batch_tokens`: tokens computed at once; 0: the default of the device.
        """
        with showing(progress):
            return embed_all(self, texts, dimensions, prompt=prompt, max_length=max_length, batch_tokens=batch_tokens)

    def batch_embedder(self) -> BatchEmbedder:
        """Return a function that embeds tokenized texts as one batch, for servers: threads may call it at once."""
        return BatchEmbedder(self)

    def similarity(self, a: Iterable[str] | str | Vectors, b: Iterable[str] | str | Vectors) -> Vectors:
        """Return the similarity of each of `a` to each of `b` (texts, or their vectors): a row for each of `a`.

        The measure is the model's own; by default the cosine.
        """
        return similarity_matrix(self._vectors_of(a), self._vectors_of(b), self.vector.similarity)

    def _vectors_of(self, side: Any) -> Any:
        return side if isinstance(side, np.ndarray | Tensor) else self.embed(side)

    def percentile(self, similarities: Vectors | float, *, prompt: str | None = None) -> Vectors:
        """Return, for each similarity, the percentage of random pairs of sentences that are less similar.

        Models differ in scale; this says how to read a score. The pairs are of English sentences from books, which are
        embedded for each call.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TextsCut)
            vectors = self.embed(random_sentences(), prompt=prompt)
        return percentiles(similarities, pair_similarities(vectors, self.vector.similarity))

    # Layers

    @overload
    def hidden(  # type: ignore[overload-overlap]  # a text is a sequence of texts too
        self,
        texts: str | tuple[str, str] | Sequence[int] | Tensor,
        layers: Layers = -1,
        *,
        max_length: int | None = None,
    ) -> Tensor: ...
    @overload
    def hidden(self, texts: Iterable[Input], layers: Layers = -1, *, max_length: int | None = None) -> list[Tensor]: ...
    def hidden(
        self, texts: Iterable[Input] | Input, layers: Layers = -1, *, max_length: int | None = None
    ) -> Tensor | list[Tensor]:
        """Return the hidden states of a text or pair (tokens x width), or of each input.

        Inputs are texts, pairs of texts (as tuples), or lists of token ids. The rest of the list does not change an
        input's states. `layers`: 0 for the embeddings, 1, 2 ... for the layers, negative numbers from the last; for
        several, or "all", each input gets a stack (layers x tokens x width).
        """
        return hidden_states(self, texts, layers, max_length)

    @overload
    def attentions(  # type: ignore[overload-overlap]  # a text is a sequence of texts too
        self, texts: str | tuple[str, str] | Sequence[int] | Tensor, *, max_length: int | None = None
    ) -> Tensor: ...
    @overload
    def attentions(self, texts: Iterable[Input], *, max_length: int | None = None) -> list[Tensor]: ...
    def attentions(self, texts: Iterable[Input] | Input, *, max_length: int | None = None) -> Tensor | list[Tensor]:
        """Return the attentions of a text or pair (probabilities, layers x heads x tokens x tokens), or of each input.

        Row i of a head says how much token i attends to each token; `model.tokens(text)` names them. Transformers only.
        """
        return text_attentions(self, texts, max_length)

    def inspect(self, text: str | tuple[str, str], *, k: int = 3, max_length: int | None = None) -> Inspection:
        """Return what every layer computes for one text or pair: attention, the k most likely tokens at each token
        (the logit lens), and the lengths of the hidden states.

        The lens reads the states of every layer with the MLM or LM head, as if it were the last one. Below the last
        layer that is a view into the model, not what it predicts.
        """
        return inspect_text(self, text, k, max_length)

    def layers(
        self,
        texts: Iterable[Input],
        *,
        max_length: int | None = None,
        batch_tokens: int = 0,
        progress: bool | None = None,
    ) -> "LayerMeasures":
        """Measure what each layer does to texts: distance and cosine of its input and output, norms and anisotropy of
        its states, CKA of all layers, what each attention head looks at, and what each layer would predict.

        Texts are read once, and only sums are kept. `bertree.layers` compares two models and writes a page.
        """
        from bertree.inference.layer_sums import analyze

        with showing(progress):
            return analyze([self], texts, max_length, batch_tokens).models[0]

    # Masks, for models with an MLM head

    def fill_mask(self, text: str, k: int = 5) -> list[Candidate] | list[list[Candidate]]:
        """Return the k most likely tokens at the mask, or one such list per mask if there are several."""
        lists = [mask.candidates for mask in self.fill_masks(text, k)]
        return lists[0] if len(lists) == 1 else lists

    def fill_masks(self, text: str, k: int = 5) -> list[FilledMask]:
        """Return every mask of a text with its span in characters and the k most likely tokens for it."""
        masked = self.prepare_masks(text, k)
        if dropped := masked.encoded.dropped:
            note(TextsCut(1, 1, self.max_length, dropped))
        return self.fill_prepared([masked])[0]

    def prepare_masks(self, text: str, k: int = 5) -> MaskedText:
        """Check and tokenize a text with masks; `encoded.dropped` of the result counts the tokens that were cut."""
        return mask_filling.prepare_masks(self, text, k)

    def fill_prepared(self, texts: Sequence[MaskedText]) -> list[list[FilledMask]]:
        """Return the masks of each text of `prepare_masks`; the texts are computed as one batch."""
        return mask_filling.fill_prepared(self, texts)

    # Text, for models that read left to right and have an LM head

    def generate(
        self,
        prompts: Iterable[Input] | str,
        *,
        tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        penalty: float = 1.0,
        beams: int = 1,
        count: int = 1,
        seed: int = 0,
        control: str | None = None,
        given: str | None = None,
        stop: bool = True,
        on_text: Callable[[int, str], None] | None = None,
    ) -> Generation:
        """Continue prompts: texts, or lists of token ids. The same seed gives the same texts, alone or in a list.

        `tokens`: how many at most; by default 100, or as many as fit. `temperature`: 0 takes the most likely token.
        `top_k`, `top_p`: draw only from the k most likely tokens, or from the most likely ones that together have
        probability p. `penalty`: above 1, tokens that occurred before are less likely (CTRL: 1.2). `beams`: above 1, a
        beam search of this width. `count`: continuations of each prompt. `control`: one of `model.controls`; `given`: a
        text after it, such as a URL. `stop`: False continues after the token that ends a text. `on_text` is called with
        the number of a text and each piece of it as it is generated.
        """
        sampling = Sampling(temperature, top_k, top_p, penalty)
        options = GenerationOptions(
            tokens=tokens,
            count=count,
            seed=seed,
            control=control,
            given=given,
            stop=stop,
            beams=beams,
            sampling=sampling,
        )
        return generate(self, prompts, options, on_text)

    def stream(
        self,
        prompt: str,
        *,
        tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        penalty: float = 1.0,
        seed: int = 0,
        control: str | None = None,
        given: str | None = None,
        stop: bool = True,
    ) -> TextStream:
        """Continue a prompt piece by piece: an iterator over the pieces of the text that `generate` returns.

        Each token gives a piece, which is empty until a word is complete. To stop early, stop iterating.
        """
        sampling = Sampling(temperature, top_k, top_p, penalty)
        options = GenerationOptions(
            tokens=tokens, seed=seed, control=control, given=given, stop=stop, sampling=sampling
        )
        return TextStream(self, prompt, options)

    def perplexity(
        self,
        texts: Iterable[str] | str | Path,
        *,
        context: int | None = None,
        stride: int | None = None,
        memory: int | None = None,
        control: str | None = None,
        given: str | None = None,
        lines: bool = False,
    ) -> Perplexity:
        """Predict every token of texts (or of a file, as a `Path`) exactly once, from those before it.

        `context`: tokens of a window; by default as many as the model reads. `stride`: new tokens that each
        window predicts, the others are context; by default half a window; 1 is a window for every token. `memory`:
        read segments of `context` tokens with this many remembered ones instead, which needs relative positions; the
        default of a model that was trained with a memory. `control`: the code of all texts; `given`: the
        text after it. `lines`: every line of a text file is a text of its own.
        """
        documents = read_texts(texts, lines=lines) if isinstance(texts, Path) else texts
        return measure_perplexity(self, documents, Reading(context, stride, memory, control, given))

    def last_words(self, passages: Iterable[str] | Path) -> LastWords:
        """Predict the last word of each passage, as in LAMBADA: accuracy, and perplexity of the word.

        A word is right if each of its tokens is the most likely one, given those before it.
        """
        texts = read_texts(passages, lines=True) if isinstance(passages, Path) else passages
        return predict_last_words(self, list(texts))

    def attribute(
        self,
        texts: Iterable[str] | str,
        *,
        codes: Iterable[str] | None = None,
        given: Iterable[str] = (),
        prior: Prior = "uniform",
    ) -> list[Attribution]:
        """Rank the control codes of each text by the likelihood they give it.

        `codes`: which of `model.controls`; by default all. `given`: texts after the codes, such as URLs; each is ranked
        with each code. `prior`: "uniform", a weight for each code, or the folder of a token store, in which a code is
        as likely as it is frequent among the documents.
        """
        return attribute(self, [texts] if isinstance(texts, str) else list(texts), codes, prior, given)

    # The interface of sentence-transformers and mteb

    def encode(
        self,
        sentences: Any,
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        convert_to_tensor: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        task_metadata: Any = None,
        prompt_type: Any = None,
        **keywords: Any,
    ) -> Any:
        """As `embed`, with the keywords of sentence-transformers and mteb. Keywords that would change the result
        are refused, others (batch_size, show_progress_bar ...) ignored.

        One text gives one vector, not a matrix with one row.
        """
        if convert_to_tensor:
            keywords.pop("convert_to_numpy", None)
        mteb.check_keywords(keywords)
        name = prompt_name or mteb.choose_prompt(dict(self.vector.prompts), task_metadata, prompt_type)
        vectors = mteb.encode(self, sentences, name, prompt, truncate_dim, normalize_embeddings)
        return vectors if convert_to_tensor else vectors.numpy()

    def similarity_pairwise(self, a: Any, b: Any) -> Vectors:
        """Return the similarity of the first of `a` to the first of `b`, and so on; texts or vectors."""
        left, right = (self.embed(mteb.extract_texts(side)) if mteb.are_texts(side) else side for side in (a, b))
        return pairwise_similarity(left, right, self.vector.similarity)

    @property
    def mteb_model_meta(self) -> Any:
        """Metadata for mteb; it does not exist if mteb is not installed."""
        return mteb.model_metadata(self)

    # Tasks: only a `TaskModel` has these methods, because mteb takes any object with `predict` for a cross-encoder

    if TYPE_CHECKING:
        predict = prediction.predict
        predict_examples = prediction.predict_examples
        answer = prediction.answer
    else:

        def __getattr__(self, name: str) -> Any:
            """Say why there is no `predict` or `answer`; any other attribute does not exist."""
            if name in ("predict", "predict_examples", "answer"):
                try:
                    self.find_task()
                except UserError as error:
                    raise Unable(str(error)) from None
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
