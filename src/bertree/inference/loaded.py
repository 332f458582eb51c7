"""A network with its tokenizer and the settings of its folder: moved, saved, trained, and its inputs prepared.

The functions of this package take a `LoadedModel`; `Model` adds them to it as methods.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from bertree.batch import Batch
from bertree.config.names import cached_name, parse_precision, remembered_name
from bertree.console import note
from bertree.errors import UserError, counted, device_problem
from bertree.errors.arguments import methods_check_arguments
from bertree.files.formats import Json
from bertree.inference.causal.decoders import DecoderChoice
from bertree.inference.cpu_encoder import CpuRuntime, weight_versions
from bertree.inference.cpu_linear import DTYPES, linear_class, note_missing, weights_dtype
from bertree.inference.inputs import Input, list_inputs, note_cuts, pack_inputs, tokenize_inputs
from bertree.interop import folder
from bertree.interop.contents import Contents, head_classes, maximum_length, task_length
from bertree.interop.weights import network_hash
from bertree.model.architecture import Architecture
from bertree.model.network import Network
from bertree.model.pooling import PoolingConfig, SentencePooling
from bertree.result_table import ResultTable
from bertree.text.cleaning import SpelledWord
from bertree.text.identity import tokenizer_hash
from bertree.text.tokenizer import Encoded, Tokenizer

if TYPE_CHECKING:
    from bertree.tasks.task import Task


@methods_check_arguments
class LoadedModel:
    """An encoder with its heads and, if its folder has one, its tokenizer."""

    def __init__(self, contents: Contents, trained: bool = True, source: Path | None = None) -> None:
        """`source`: the folder of the contents. `trained`: False if the weights are random."""
        self._contents = contents
        self._source = source
        self.trained = trained
        self.preset = ""  # whose random weights it has
        self._runtime = CpuRuntime()
        self.decoders = DecoderChoice()
        self._saved: Path | None = None  # where it was saved last
        self._digest: tuple[object, str] = (None, "")  # with the versions it was computed from
        self.network.eval()

    @property
    def name(self) -> str:
        """Name of the folder, with its run (my-run/model), of the preset, or on the Hugging Face hub."""
        if self._source is None:
            return self.preset or "bertree"
        path = self._source.resolve()
        return cached_name(path) or (f"{path.parent.name}/{path.name}" if path.name == "model" else path.name)

    @property
    def origin(self) -> str:
        """The name by which it can be loaded again from any folder; "" if there is none."""
        return self.preset if self._source is None else remembered_name(self._source)

    def __repr__(self) -> str:
        a = self.architecture
        heads = f", heads {', '.join(self.network.heads)}" if len(self.network.heads) else ""
        size = f"{a.body}, {counted(a.layers, 'layer')}, width {a.width}"
        return f"<bertree model {self.name}: {size}{heads}, on {self.device}>"

    def _repr_html_(self) -> str:
        a, tokenizer = self.architecture, self.tokenizer
        rows = [
            ("architecture", a.describe()),
            ("parameters", f"{sum(parameter.numel() for parameter in self.parameters()):,}"),
            ("heads", ", ".join(self.network.heads) or "none"),
            ("vocabulary", f"{tokenizer.size:,} tokens" if tokenizer else f"{a.vocab_size:,} ids, no tokenizer"),
            ("longest text", f"{self.max_length} tokens"),
            ("vectors", f"{self.vector.pooling}, {self.dimension} wide"),
            ("computed", f"on {self.device} in {self.precision}"),
        ]
        return ResultTable(self.name if self.trained else f"{self.name}: random weights", rows).html()

    @property
    def architecture(self) -> Architecture:
        """The architecture of the encoder."""
        return self._contents.architecture

    @property
    def network(self) -> Network:
        """The torch module: encoder and heads."""
        return self._contents.network

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer; None if the model has none and takes ids alone."""
        return self._contents.tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Tokenizer | None) -> None:
        self._contents.set_tokenizer(tokenizer)

    @property
    def required_tokenizer(self) -> Tokenizer:
        """The tokenizer; UserError if the model has none."""
        if self.tokenizer is None:
            raise UserError(f"{self.name}: has no tokenizer; give `tokenizer=FOLDER`")
        return self.tokenizer

    @property
    def labels(self) -> list[str]:
        """Names of the task head's classes."""
        return self._contents.labels

    @property
    def classes(self) -> dict[str, int]:
        """The heads and their numbers of classes."""
        return head_classes(self.network)

    @property
    def task(self) -> Json:
        """Name and settings of the task it was fine-tuned for, from its folder."""
        return self._contents.task

    @property
    def controls(self) -> tuple[str, ...]:
        """The control codes it was trained with; empty: none."""
        return tuple(self._contents.controls)

    @property
    def takes_given(self) -> bool:
        """Whether it was trained with texts, such as URLs, between the control code and what it predicts."""
        return self._contents.takes_given

    @property
    def limit(self) -> int | None:
        """The maximum length that its folder sets below the number of positions, or None."""
        return self._contents.max_length

    @property
    def max_length(self) -> int:
        """Its maximum length in tokens: as set in its folder (if bertree has trained it, the longest sequences
        it was trained on), else the number of its positions. Longer texts are cut."""
        return maximum_length(self.architecture, self.limit, self.task)

    @property
    def task_length(self) -> int:
        """Tokens of a sequence in its fine-tuning; 0 if it has not been fine-tuned."""
        return task_length(self.task)

    def sequence_length(self, requested: int = 0, usual: int = 0) -> int:
        """Return the tokens of a sequence: as requested, up to all positions, or the usual ones up to `max_length`."""
        most = self.architecture.longest_input
        if requested > most:
            raise UserError(f"max_length {requested}: the model has only {most} positions")
        if self.limit is not None and requested > self.max_length:
            note(
                f"max_length {requested}: the maximum length of {self.name} is {self.max_length} tokens; positions "
                "beyond it may be untrained"
            )
        return requested or min(usual or self.max_length, self.max_length)

    @property
    def vector(self) -> PoolingConfig:
        """How a text becomes one vector: as set in its folder, else the mean of its hidden states."""
        return self.pooling.config

    @vector.setter
    def vector(self, vector: PoolingConfig) -> None:
        before = self.pooling
        if vector.dense and (vector.dense, vector.pooling) != (before.config.dense, before.config.pooling):
            raise UserError(
                "vector: dense layers come with trained weights and belong to the pooling they were trained on; "
                "keep both, or leave out dense"
            )
        pooling = SentencePooling(before.state_width, vector, before.ends_in_summary)
        if vector.dense:
            pooling.dense = before.dense
        self.network.vector = pooling

    @property
    def pooling(self) -> SentencePooling:
        """The module from hidden states to sentence vectors: `model.pooling(states, batch)`."""
        ends_in_summary = self.architecture.ends_in_summary
        return self.network.vector or SentencePooling(self.network.width, PoolingConfig(), ends_in_summary)

    @property
    def dimension(self) -> int:
        """Width of its vectors."""
        return self.pooling.width

    @property
    def digest(self) -> str:
        """Hash of everything that determines its vectors: weights, tokenizer and settings.

        A model loaded in half precision has the digest of its folder.
        """
        settings = {key: value for key, value in self.vector.as_mapping().items() if key != "similarity"}
        key = weight_versions(self.network), id(self.tokenizer), repr(settings)
        if key[0] is None or self._digest[0] != key:
            network = self.network
            if self._source is not None and next(network.parameters()).dtype != torch.float32:
                network = folder.read(self._source).network
            words = tokenizer_hash(self.tokenizer) if self.tokenizer else ""
            self._digest = key, network_hash(network, f"{words} {settings}")
        return self._digest[1]

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.network.parameters()).device

    @property
    def precision(self) -> str:
        """The precision it computes vectors in: float32, bfloat16, float16 or int8."""
        return "int8" if self._runtime.int8 else str(next(self.network.parameters()).dtype).removeprefix("torch.")

    def to(
        self, device: str | torch.device | torch.dtype | None = None, precision: str | torch.dtype | None = None
    ) -> Self:
        """Move the model to a device, a precision, or both; return it.

        Precisions: float32, bfloat16, float16 or int8, also as fp32, bf16, fp16 or a torch dtype. int8: vectors are
        computed with 8-bit integers, on the CPU; the network itself, and everything else, stays float32. bfloat16
        and int8 on a CPU without instructions for them are float32, with a warning: emulated, they would be slower.
        """
        if isinstance(device, torch.dtype):
            device, precision = None, device
        chosen = parse_precision(precision) if precision is not None else None
        int8 = chosen == "int8" if chosen else self._runtime.int8
        target = str(self.device if device is None else device)
        if int8 and target.startswith("cpu") and linear_class(torch.int8) is None:
            note_missing("int8")
            int8, chosen = False, "float32"
        dtype = weights_dtype("float32" if int8 else chosen, target) if int8 or chosen else None
        try:
            if torch.device(target).type == "meta":
                raise RuntimeError("it holds no numbers")
            self.network.to(device=target, dtype=dtype)
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"device '{target}': cannot be used here ({device_problem(error)})") from None
        self._runtime.int8 = int8
        if int8:
            try:
                self._runtime.states_of(self.network)
            except UserError:
                self._runtime.int8 = False
                raise
        return self

    def train(self, mode: bool = True) -> Self:
        """Set training mode (dropout), as of a torch module, for your own training loop."""
        self.network.train(mode)
        return self

    def eval(self) -> Self:
        """Set evaluation mode, the one in which a model is loaded. Methods for inference use it in any case."""
        return self.train(False)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The network's parameters, for an optimizer."""
        return self.network.parameters()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The network's parameters with their names."""
        return self.network.named_parameters()

    def state_dict(self) -> dict[str, Any]:
        """The network's weights by name."""
        return self.network.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set the network's weights by name."""
        self.network.load_state_dict(state)

    def save(self, path: str | Path, precision: str | torch.dtype | None = None, force: bool = False) -> None:
        """Write the model as a folder, completely or not at all. Another model is replaced only with `force=True`.

        `precision`: of the written weights (float32, bfloat16, float16, int8) if not the model's own. int8 takes
        a quarter of float32 and is read by bertree alone; loaded, the weights are floating-point again.
        """
        dtype = DTYPES[parse_precision(precision)] if precision is not None else None
        own = {Path(place).resolve() for place in (self._source, self._saved) if place is not None}
        folder.write(self._contents, Path(path), dtype=dtype, force=force or Path(path).resolve() in own)
        self._saved = Path(path)

    def find_task(self, name: str | None = None, **columns: str | None) -> "Task[Any]":
        """Return the task the model answers: the one of that name, or the one it was fine-tuned for."""
        from bertree.tasks import registry

        return registry.task_of_model(self.classes, self.labels, self.task, self.network.crf is not None, name, columns)

    def tokenize(self, inputs: Sequence[Input], max_length: int | None = None) -> list[Encoded]:
        """Return ids and segments of each input, checked; texts that are too long are cut, with a warning."""
        limit = self.max_length if max_length is None else max_length
        encoded = tokenize_inputs(inputs, self.tokenizer, self.architecture, limit, self.name)
        note_cuts(encoded, limit)
        return encoded

    def tokens(self, text: Input, max_length: int | None = None) -> list[str]:
        """Return the tokens of one text or pair as the tokenizer writes them: [CLS], un, ##believ, ..."""
        self.required_tokenizer  # noqa: B018  # raises before ids are taken for tokens
        (encoded,) = self.tokenize([text], max_length)
        return self.token_names(encoded)

    def token_names(self, encoded: Encoded) -> list[str]:
        """Return the tokens of a tokenized text as the tokenizer writes them."""
        backend = self.required_tokenizer.backend
        return [
            token.word if isinstance(token, SpelledWord) else backend.id_to_token(token) or f"<{token}>"
            for token in encoded.ids
        ]

    def batch(self, texts: "Sequence[Input] | str", max_length: int | None = None) -> Batch:
        """Pack texts, pairs of texts or lists of token ids into one batch on the model's device.

        `model.network(batch)` gives the hidden states of all tokens, end to end (tokens x width);
        `batch.split(states)` cuts them by text, `model.network.sequence_states(states, batch)` has one row per text.
        """
        return self.pack(self.tokenize(list_inputs(texts), max_length)).to(self.device)

    def pack(self, encoded: Sequence[Encoded]) -> Batch:
        """Pack tokenized inputs into one batch, on the CPU."""
        return pack_inputs(encoded, self.architecture.vocab_size)

    def inference_encoder(self, int8: bool = True) -> Callable[[Batch], Tensor]:
        """Return what computes the hidden states that heads read: the fast CPU form if there is one, else the network.

        `int8=False`: not with 8-bit integers, which are for vectors alone.
        """
        return self.network if self._runtime.int8 and not int8 else self._runtime.states_of(self.network)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Compute in evaluation mode, then restore the mode of every module."""
        training = [module for module in self.network.modules() if module.training]
        for module in training:
            module.training = False
        try:
            yield
        finally:
            for module in training:
                module.training = True
