"""Next-token logits, one token per lane and step, over a cache of keys and values.

`FastDecoder` computes an encoder of known components from its weights; `ModuleDecoder` calls the modules of any encoder
with a cache. On a GPU, `GraphDecoder` records the step of either as a CUDA graph, because launching its operations one
by one takes longer than computing them.

Shape letters: s sequences, one in each lane; t tokens, h width, v vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from bertree.batch import Batch, Continuation
from bertree.inference.causal.fast_decoder import DecoderWeights, FastDecoder, one_token_batch
from bertree.inference.cpu_encoder import weight_versions
from bertree.model.encoder import State, all_finite
from bertree.model.memory import KEYS, LENGTHS
from bertree.model.network import Network
from bertree.model.transformer import TransformerEncoder

FIRST_LENGTH = 256  # tokens of each lane that a recorded step attends to; doubled whenever they are full


class NotFinite(Exception):
    """The model holds or computes NaN or infinity; the caller knows its name."""


class Decoder(Protocol):
    """Continues sequences, one in each lane."""

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> Tensor:
        """Read prompts, one for each lane, and return the logits of their next tokens (s x v).

        `capacity`: how many tokens the longest sequence will have."""

    def step(self, ids_s: Tensor) -> Tensor:
        """Read the next token of every lane and return the logits of the token after it (s x v)."""

    def keep(self, lanes: Sequence[int]) -> None:
        """Continue with these lanes, in this order; a lane may occur several times."""


class StepDecoder(Decoder, Protocol):
    """A decoder whose steps can be recorded: they change nothing but tensors that stay where they are."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each lane."""

    @property
    def capacity(self) -> int:
        """Tokens that a lane can hold."""

    def compute(self, ids_s: Tensor, length: int, even: bool) -> Tensor:
        """Compute a step without counting its tokens on the host.

        It attends to the first `length` tokens of each lane; `even`: all lanes have this many, the new one included."""

    def count(self, tokens: int) -> None:
        """Count tokens of every lane, on the host."""

    def rewind(self) -> None:
        """Undo the count of a computed step on the device."""


class ModuleDecoder:
    """Calls the network's modules with a cache, or with a memory where texts start with one of zeros."""

    def __init__(self, network: Network) -> None:
        self.network = network
        encoder = network.encoder
        assert isinstance(encoder, TransformerEncoder)
        self.encoder = encoder
        self.with_memory = encoder.memory is not None and encoder.memory.starts_with_zeros
        self.state: State = {}
        self.lengths: Sequence[int] = []
        self.positions_s = torch.empty(0)

    @property
    def in_place(self) -> bool:
        """Whether a step only changes tensors in place."""
        return not self.with_memory

    @property
    def capacity(self) -> int:
        """Tokens that a lane can hold."""
        return self.state[KEYS].shape[3]

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> Tensor:
        """Read prompts and return the logits of their next tokens."""
        batch = Batch.pack(prompts).to(next(self.network.parameters()).device)
        count = len(prompts)
        state = self.encoder.start_memory(count) if self.with_memory else self.encoder.start_cache(count, capacity)
        hidden_th = self._encode(batch, state)
        self.lengths, self.positions_s = list(map(len, prompts)), batch.lengths.long()
        return self.network.mask_logits(hidden_th, batch.last)

    def step(self, ids_s: Tensor) -> Tensor:
        """Read the next token of every lane and return the logits of the token after it."""
        logits_sv = self.compute(ids_s)
        self.count(1)
        return logits_sv

    def compute(self, ids_s: Tensor, length: int = 0, even: bool = False) -> Tensor:
        """Compute a step that attends to all tokens."""
        lanes_s = torch.arange(len(ids_s), device=ids_s.device)
        continuation = Continuation(lanes_s, torch.zeros_like(lanes_s, dtype=torch.bool), len(ids_s))
        batch = replace(one_token_batch(ids_s, self.positions_s), continuation=continuation)
        logits_sv = self.network.mask_logits(self._encode(batch, self.state), lanes_s)
        self.positions_s += 1
        return logits_sv

    def _encode(self, batch: Batch, state: State) -> Tensor:
        hidden_th, after = self.network.encode(batch, state)
        assert after is not None
        self.state = after
        return hidden_th

    def count(self, tokens: int) -> None:
        """Count tokens of every lane, on the host."""
        self.lengths = [length + tokens for length in self.lengths]

    def rewind(self) -> None:
        """Undo the count of a computed step on the device."""
        self.positions_s -= 1
        self.state[LENGTHS].sub_(1)

    def keep(self, lanes: Sequence[int]) -> None:
        """Continue with these lanes, in this order."""
        rows_s = torch.tensor(lanes, device=self.positions_s.device)
        self.state = {name: x[rows_s] if name == LENGTHS else x[:, rows_s] for name, x in self.state.items()}
        self.lengths, self.positions_s = [self.lengths[lane] for lane in lanes], self.positions_s[rows_s]


class GraphDecoder:
    """Records the operations of a decoder's step as a CUDA graph and replays them."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.decoder = decoder
        self._length = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._ids_s = self._logits_sv = torch.empty(0)

    def start(self, prompts: Sequence[Sequence[int]], capacity: int) -> Tensor:
        """Read prompts and return the logits of their next tokens."""
        return self.decoder.start(prompts, capacity)

    def step(self, ids_s: Tensor) -> Tensor:
        """Read the next token of every lane and return the logits of the token after it."""
        longest = max(self.decoder.lengths)
        if self._graph is None or (longest >= self._length and self._length < self.decoder.capacity):
            self._record(ids_s, longest)
        assert self._graph is not None
        self._ids_s.copy_(ids_s)
        self._graph.replay()
        self.decoder.count(1)
        return self._logits_sv

    def keep(self, lanes: Sequence[int]) -> None:
        """Continue with these lanes, in this order."""
        self.decoder.keep(lanes)
        self._graph = None

    def _record(self, ids_s: Tensor, longest: int) -> None:
        """Record a step that attends to more tokens than the longest lane has.

        Before that it is computed twice, because what libraries set up on their first call must not be recorded.
        This leaves no trace: the next step writes keys and values at the same positions.
        """
        length = FIRST_LENGTH
        while length <= longest:
            length *= 2
        self._length = min(length, self.decoder.capacity)
        self._ids_s = ids_s.clone()
        with torch.cuda.device(ids_s.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(2):
                    self.decoder.compute(self._ids_s, self._length, False)
                    self.decoder.rewind()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._logits_sv = self.decoder.compute(self._ids_s, self._length, False)


class DecoderChoice:
    """Chooses what computes a network's next tokens, and keeps the weights prepared for it until they change."""

    def __init__(self) -> None:
        self._built: tuple[object, DecoderWeights | None] = (None, None)
        self._finite: object = None  # versions of weights that were found to be finite
        self._lock = Lock()

    def __deepcopy__(self, memo: object) -> "DecoderChoice":
        """Copy nothing: packed weights are those of the original."""
        return DecoderChoice()

    def choose(
        self, network: Network, lanes: int, greedy: Tensor | None = None, record: bool = True
    ) -> Callable[[], Decoder]:
        """Return a function that makes decoders of a network, for at most `lanes` lanes.

        `greedy`: the most likely token is always chosen, among those that are 0 here, not -inf (v). `record`: False if
        lanes change with every step, so that recording a step is of no use. Weights that are not finite are a
        `NotFinite` error."""
        versions = weight_versions(network)
        if versions is None or versions != self._finite:
            if not all(all_finite(weight) for weight in network.state_dict().values()):
                raise NotFinite
            self._finite = versions
        weights = self._weights(network, lanes == 1, greedy is not None)
        record = record and next(network.parameters()).is_cuda

        def make() -> Decoder:
            decoder = ModuleDecoder(network) if weights is None else FastDecoder(weights, greedy)
            return GraphDecoder(decoder) if record and decoder.in_place else decoder

        return make

    def _weights(self, network: Network, one_lane: bool, greedy: bool) -> DecoderWeights | None:
        versions = weight_versions(network)
        key = (versions, one_lane, one_lane and greedy)
        with self._lock:  # threads that generate at the same time may need different weights
            if versions is None or self._built[0] != key:
                self._built = (None, None)  # frees the memory of the previous weights first
                self._built = key, DecoderWeights.of(network, one_lane, greedy)
            return self._built[1]
