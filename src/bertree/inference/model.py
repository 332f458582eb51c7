"""A loaded model and what it can be asked: states, masks, vectors, a task."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from bertree.batch import Batch
from bertree.errors import BertreeWarning, Unable, UserError, suggest
from bertree.files import Json
from bertree.inference.batching import batch_by_length, map_jobs
from bertree.inference.cpu.encoder import CpuRuntime, weight_versions
from bertree.inference.embedding import Vectors, WindowSteps, embed_windows
from bertree.inference.inputs import Input, pack_inputs, tokenize_inputs
from bertree.inference.mask_filling import Candidate, normalize_mask_tokens, top_candidates
from bertree.inference.mteb import SentenceTransformersMethods, to_vectors
from bertree.inference.similarity import similarity_matrix
from bertree.interop import folder
from bertree.interop.folder import Contents
from bertree.interop.weights import network_hash
from bertree.model.architecture import Architecture
from bertree.model.network import Network
from bertree.model.pooling import PoolingConfig, SentencePooling
from bertree.objectives.supervised import HEAD_KINDS
from bertree.tasks import registry
from bertree.tasks.logits import effective_max_length, inference_autocast, logits
from bertree.tasks.task import Task
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Encoded, Tokenizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "int8": torch.int8}


class Model(SentenceTransformersMethods):
    """An encoder with its heads and, where the folder had one, its tokenizer.

    One with the head of a task is a `TaskModel`: it alone has `predict`.
    """

    def __new__(cls, contents: Contents | None = None, trained: bool = True, source: Path | None = None) -> "Model":
        """A `TaskModel` where there is the head of a task; without contents, what `copy` asks for."""
        of_task = (
            cls is Model and contents is not None and set(folder.head_classes(contents.network)) - {"mask", "pair"}
        )
        return super().__new__(TaskModel if of_task else cls)

    def __init__(self, contents: Contents, trained: bool = True, source: Path | None = None) -> None:
        """`source`: the folder the contents come from."""
        self._contents = contents
        self._source = source
        self.trained = trained
        self._runtime = CpuRuntime()
        self._digest: tuple[object, str] = (None, "")  # and what it was computed of
        self.network.eval()

    @property
    def name(self) -> str:
        """What its folder is called; of a model of a run (my-run/model), the run too."""
        if self._source is None:
            return "bertree"
        place = self._source.resolve()
        return f"{place.parent.name}/{place.name}" if place.name == "model" else place.name

    def __repr__(self) -> str:
        a = self.architecture
        heads = f", heads {', '.join(self.network.heads)}" if len(self.network.heads) else ""
        return f"<bertree model {self.name}: {a.body}, {a.layers} layers, width {a.width}{heads}, on {self.device}>"

    @property
    def architecture(self) -> Architecture:
        """The point of the design space."""
        return self._contents.architecture

    @property
    def network(self) -> Network:
        """The torch module: encoder and heads."""
        return self._contents.network

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None if the model came without one: then only ids are taken."""
        return self._contents.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self._contents.tokenizer = tokenizer

    @property
    def labels(self) -> list[str]:
        """Names of the task head's classes."""
        return self._contents.labels

    @property
    def classes(self) -> dict[str, int]:
        """The heads and how many scores each gives."""
        return folder.head_classes(self.network)

    @property
    def task(self) -> Json:
        """What the folder remembers of the task it was fine-tuned for: name and settings."""
        return self._contents.task

    @property
    def limit(self) -> int | None:
        """A length shorter than the positions allow, where the folder says so."""
        return self._contents.max_length

    @property
    def max_length(self) -> int:
        """Texts are cut to this many tokens."""
        limit = self.architecture.max_positions
        return min(limit, self._contents.max_length or limit)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    def to(self, device: str | torch.device | None = None, dtype: str | None = None) -> "Model":
        """Move the model to a device, a precision, or both.

        int8: vectors are computed with 8-bit integers, on the CPU; the network itself, and all else, is float32."""
        precision = parse_precision(dtype) if dtype else None
        whole = precision == torch.int8 if precision else self._runtime.int8
        self.network.to(device=device, dtype=torch.float32 if whole else precision)
        self._runtime.int8 = whole
        if whole:
            self._runtime.states_of(self.network)
        return self

    def save(self, path: str | Path, dtype: str | None = None) -> None:
        """Write the model as a folder, whole or not at all.

        `dtype`: precision of the written weights (float32, bfloat16, float16, int8), where not the model's own. int8
        is a quarter of float32 and for bertree alone; loaded, it is floating-point again.
        """
        folder.write(self._contents, Path(path), dtype=parse_precision(dtype) if dtype else None)

    def tokenize(self, inputs: Sequence[Input], max_length: int | None = None) -> list[Encoded]:
        """Ids and segments of each input, checked; texts that are too long are cut, with a warning."""
        limit = self.max_length if max_length is None else max_length
        return tokenize_inputs(inputs, self.tokenizer, self.architecture, limit)

    def _packed(self, encoded: Sequence[Encoded]) -> Batch:
        return pack_inputs(encoded, self.architecture.vocab_size)

    def hidden(self, inputs: Iterable[Input] | str, max_length: int | None = None) -> list[Tensor]:
        """Last hidden states of each input (tokens x width), in the order given.

        Inputs are texts, pairs of texts (as tuples), or lists of token ids. What else is in the list
        does not change the result.
        """
        encoded = self.tokenize([inputs] if isinstance(inputs, str) else list(inputs), max_length)
        results: dict[int, Tensor] = {}
        for rows, states in map_jobs(self._states, self._batches(encoded), self.device):
            results.update(zip(rows, states, strict=True))
        return [results[i] for i in range(len(encoded))]

    def _batches(self, encoded: Sequence[Encoded]) -> Iterator[tuple[list[int], Batch]]:
        """Packed batches of similar lengths and which inputs each holds."""
        for rows in batch_by_length([len(e.ids) for e in encoded], self.device):
            yield rows, self._packed([encoded[i] for i in rows])

    @torch.no_grad()
    def _states(self, job: tuple[list[int], Batch]) -> tuple[list[int], tuple[Tensor, ...]]:
        rows, batch = job
        return rows, batch.split(self.network.encoder(batch.to(self.device)))

    @property
    def vector(self) -> PoolingConfig:
        """How a text becomes one vector: as the folder says, or else by the mean of its tokens' states."""
        return self._pooling.config

    @vector.setter
    def vector(self, vector: PoolingConfig) -> None:
        before = self._pooling
        known = before.config
        if vector.dense and (vector.dense, vector.pooling) != (known.dense, known.pooling):
            raise UserError(
                "vector: dense layers come with trained weights and stand on the pooling they were trained on; "
                "leave both as they are, or dense out"
            )
        made = SentencePooling(before.state_width, vector)
        if vector.dense:
            made.dense = before.dense
        self.network.vector = made

    @property
    def _pooling(self) -> SentencePooling:
        return self.network.vector or SentencePooling(self.network.width, PoolingConfig())

    @property
    def dimension(self) -> int:
        """Width of its vectors."""
        return self._pooling.width

    @property
    def digest(self) -> str:
        """What tells its vectors from those of another model: of weights, tokenizer and settings.

        A model that was loaded in half precision is still the one in its folder."""
        settings = {key: value for key, value in self.vector.as_mapping().items() if key != "similarity"}
        now = weight_versions(self.network), id(self.tokenizer), repr(settings)
        if now[0] is None or self._digest[0] != now:
            network = self.network
            if self._source is not None and next(network.parameters()).dtype != torch.float32:
                network = folder.read(self._source).network
            words = tokenizer_hash(self.tokenizer) if self.tokenizer else ""
            self._digest = now, network_hash(network, f"{words} {settings}")
        return self._digest[1]

    def embed_windows(
        self,
        texts: Iterable[str] | str,
        *,
        prompt: str | None = None,
        max_length: int | None = None,
        batch_tokens: int = 0,
        advance: Callable[[int], None] = lambda count: None,
    ) -> Iterator[Vectors]:
        """As `embed`, for any number of texts: some thousand rows at a time, in the order given. `advance` hears how
        many more are done."""
        before, pooling = self.vector.prompt_text(prompt), self._pooling
        states = self._runtime.states_of(self.network)

        def tokenise(some: Sequence[str]) -> Sequence[Encoded]:
            return self.tokenize([_whole(text, before) for text in some], max_length)

        def vectors(batch: Batch) -> Tensor:
            batch = batch.to(self.device)
            with torch.no_grad():
                found: Tensor = pooling(states(batch), batch)
            return found

        parts = WindowSteps(tokenise, self._packed, vectors, self.device, self.dimension, batch_tokens, advance)
        return embed_windows(parts, [texts] if isinstance(texts, str) else texts)

    def embed(
        self,
        texts: Iterable[str] | str,
        *,
        prompt: str | None = None,
        max_length: int | None = None,
        batch_tokens: int = 0,
        progress: Callable[[int], None] = lambda rows: None,
    ) -> Vectors:
        """Vectors of texts: a row each, float32. What else is in the list does not change a text's vector.

        `prompt`: the kind of text, where the model was trained with prompts (query, document ...). `batch_tokens`:
        computed at once, 0: what suits the device. `progress` hears how many rows are done.
        """
        found = [np.empty((0, self.dimension), np.float32)]
        for rows in self.embed_windows(texts, prompt=prompt, max_length=max_length, batch_tokens=batch_tokens):
            found.append(rows)
            progress(len(rows))
        return np.concatenate(found)

    def similarity(self, a: Iterable[str] | str | Vectors, b: Iterable[str] | str | Vectors) -> Vectors:
        """How similar each of `a` is to each of `b` (texts, or their vectors): a row for each of `a`.

        By what the model's vectors are to be compared by: cosine, if nothing else is said."""
        one, other = (
            to_vectors(given) if isinstance(given, np.ndarray | Tensor) else self.embed(given) for given in (a, b)
        )
        return similarity_matrix(one, other, self.vector.similarity)

    @torch.no_grad()
    def fill_mask(self, text: str, k: int = 5) -> list[Candidate] | list[list[Candidate]]:
        """The k likeliest tokens at the mask, or one such list per mask if there are several."""
        if "mask" not in self.network.heads:
            raise UserError("this model has no MLM head, so it cannot fill a mask")
        if self.tokenizer is None or self.tokenizer.id_of("mask") is None:
            raise UserError(
                "this model has no tokenizer with a mask token; give one: tokenizer=FOLDER, or --tokenizer FOLDER"
            )
        if k < 1:
            raise UserError(f"k: must be at least 1, not {k}")
        text, wanted = normalize_mask_tokens(text, self.tokenizer)
        (encoded,) = self.tokenize([text])
        mask_id = self.tokenizer.id_of("mask")
        chosen = [i for i, token in enumerate(encoded.ids) if token == mask_id]
        if len(chosen) < wanted:
            raise UserError(
                f"a mask stands beyond the first {self.max_length} tokens and was cut off; shorten the text"
            )
        if self.architecture.attention == "causal":
            line = "this model sees only what stands before a mask; trained on next tokens, it says what follows it"
            warnings.warn(line, BertreeWarning, stacklevel=2)
        batch = self._packed([encoded]).to(self.device)
        logits = self.network.mask_logits(self.network(batch), torch.tensor(chosen, device=self.device))
        lists = top_candidates(logits, self.tokenizer, k)
        return lists[0] if len(lists) == 1 else lists

    def find_task(self, name: str | None = None, **columns: str | None) -> Task[Any]:
        """The task it answers: the one of that name, or the one it was fine-tuned for."""
        return registry.task_of_model(self.classes, self.labels, self.task, self.network.crf is not None, name, columns)

    def predict_examples(self, task: Task[Any], examples: Sequence[Any], max_length: int = 0) -> list[Json]:
        """Return the predictions for examples of a task, as `task.read` or `task.parse` make them."""
        longest = effective_max_length(
            max_length, self.task.get("max_length") or self.max_length, self.architecture.max_positions
        )
        units, cut = task.units(examples, self.required_tokenizer, longest)
        if cut.examples:
            warnings.warn(cut.message("input", len(examples), longest), BertreeWarning, stacklevel=2)
        found = logits(self.network, task.head, units, lambda: inference_autocast(self.device))
        return task.predict(examples, units, found)

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer, where there must be one."""
        if self.tokenizer is None:
            raise UserError("this model has no tokenizer; load it with tokenizer=FOLDER, or give --tokenizer FOLDER")
        return self.tokenizer

    if TYPE_CHECKING:

        def predict(
            self, inputs: Iterable[str | tuple[str, str] | Json], max_length: int = 0, first: int = 1
        ) -> list[Json]: ...

    else:

        def __getattr__(self, name: str) -> Any:
            """Why there is no `predict`; anything else is not there."""
            if name == "predict":
                try:
                    self.find_task()
                except UserError as error:
                    raise Unable(str(error)) from None
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")


class TaskModel(Model):
    """A model with the head of a task.

    A class of its own, because mteb takes whatever has a method `predict` for a cross-encoder, and would not ask a
    model of sentence vectors for any.
    """

    def predict(
        self, inputs: Iterable[str | tuple[str, str] | Json], max_length: int = 0, first: int = 1
    ) -> list[Json]:
        """What a fine-tuned model says about each input: `predicted`, `score`, and what belongs to its head.

        An input is a text, a pair of texts, or an object with the parts by name (question and context; context,
        question and options; words). `max_length`: tokens a sequence; 0: as it was fine-tuned. `first`: number of the
        first input, for messages.
        """
        task = self.find_task()
        examples: list[Any] = []
        for number, record in enumerate(inputs, first):
            examples += task.parse_all(_record(record, task.head), f"input {number}")
        return self.predict_examples(task, examples, max_length)


def parse_precision(name: str) -> torch.dtype:
    """The precision of a name."""
    if name not in DTYPES:
        raise UserError(f"precision '{name}': unknown, {suggest(name, DTYPES)}")
    return DTYPES[name]


def _record(record: str | tuple[str, str] | Json, head: str) -> str | Json:
    """A pair by its names, so that no character in it can divide it."""
    if not isinstance(record, tuple):
        return record
    return dict(zip(HEAD_KINDS[head].pair_names, record, strict=True))


def _whole(text: object, before: str) -> str:
    """A text with its prompt."""
    if not isinstance(text, str):
        raise UserError(f"a text to embed must be a string, not {str(text)[:60]!r}")
    return before + text
