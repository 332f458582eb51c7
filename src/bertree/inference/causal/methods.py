"""The methods of a model that reads from left to right."""

from collections.abc import Callable, Iterable
from pathlib import Path

from bertree.inference.causal.attribution import Attribution, Prior, attribute
from bertree.inference.causal.generation import Generation, GenerationOptions, TextStream, generate
from bertree.inference.causal.perplexity import LastWords, Perplexity, Reading, measure_perplexity, predict_last_words
from bertree.inference.causal.sampling import Sampling
from bertree.inference.causal.texts import read_texts
from bertree.inference.inputs import Input
from bertree.inference.loaded import LoadedModel


class CausalMethods(LoadedModel):
    """`generate`, `stream`, `perplexity`, `attribute`: for models with causal attention and an LM head."""

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
        stop: bool = True,
        on_text: Callable[[int, str], None] | None = None,
    ) -> Generation:
        """Continue prompts: texts, or lists of token ids. The same seed gives the same texts, alone or in a list.

        `tokens`: how many at most; by default 100, or as many as fit. `temperature`: 0 takes the likeliest token.
        `top_k`, `top_p`: draw only from the k likeliest tokens, or from the likeliest ones that together have
        probability p. `penalty`: above 1, tokens that occurred before are less likely (CTRL: 1.2). `beams`:
        above 1, a beam search of this width for the likeliest texts. `count`: continuations of each prompt. `control`:
        one of `model.controls`. `stop`: False goes on after the token that ends a text. `on_text` is
        called with the number of a text and each piece of it as it comes.
        """
        sampling = Sampling(temperature, top_k, top_p, penalty)
        options = GenerationOptions(tokens, count, seed, control, stop, beams, sampling)
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
        stop: bool = True,
    ) -> TextStream:
        """Continue a prompt piece by piece: an iterator over the pieces of the text that `generate` gives.

        Each token gives a piece, which is empty until a word is complete. To stop early, ask for no more.
        """
        sampling = Sampling(temperature, top_k, top_p, penalty)
        return TextStream(self, prompt, GenerationOptions(tokens, 1, seed, control, stop, 1, sampling))

    def perplexity(
        self,
        texts: Iterable[str] | str | Path,
        *,
        context: int | None = None,
        stride: int | None = None,
        memory: int | None = None,
        control: str | None = None,
        lines: bool = False,
    ) -> Perplexity:
        """Predict every token of texts (or of a file, as a `Path`) exactly once, from those before it.

        `context`: tokens of a window; by default as many as the model reads. `stride`: tokens that a window predicts
        anew, the others are their context; by default half a window, 1 computes the window for every token. `memory`:
        read segments of `context` tokens with so many remembered ones instead, which a model with relative positions
        can; the default of a model that was trained with a memory. `control`: the code of all texts. `lines`: every
        line of a text file is a text of its own.
        """
        given = read_texts(texts, lines=lines) if isinstance(texts, Path) else texts
        return measure_perplexity(self, given, Reading(context, stride, memory, control))

    def last_words(self, passages: Iterable[str] | Path) -> LastWords:
        """Predict the last word of each passage, as LAMBADA asks: accuracy, and perplexity of the word.

        A word is right if all of its tokens are the likeliest, one after the other.
        """
        given = read_texts(passages, lines=True) if isinstance(passages, Path) else passages
        return predict_last_words(self, list(given))

    def attribute(
        self,
        texts: Iterable[str] | str,
        *,
        codes: Iterable[str] | None = None,
        prior: Prior = "uniform",
    ) -> list[Attribution]:
        """Rank the control codes of each text by the likelihood they give it.

        `codes`: which of `model.controls`; by default all. `prior`: "uniform", a weight for each code, or the folder
        of a token store, in which a code is as likely as it is frequent among the documents.
        """
        given = [texts] if isinstance(texts, str) else list(texts)
        return attribute(self, given, codes, prior)
