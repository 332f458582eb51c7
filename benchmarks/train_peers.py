"""transformers' models in a plain training loop, for `benchmarks.train`: batches on the device, compiled on a GPU."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import Clock
from bertree.batch import Batch, PretrainingLabels
from bertree.data.stream import Stream
from bertree.interop.huggingface.config import config_from_architecture, family_of_architecture
from bertree.model.architecture import Architecture
from bertree.train.device_setup import DeviceSetup

Given = tuple[dict[str, Any], int]  # arguments of the model, and the real tokens in them
MASK, PAD, SPECIAL = 103, 0, (0, 100, 101, 102, 103)
XLNET_BATCHES = 4  # their masks take length squared


def their_config(a: Architecture) -> Any:
    """Return transformers' configuration of an architecture."""
    import transformers

    settings = config_from_architecture(a, family_of_architecture(a), 0)
    return transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)


class Theirs:
    """A model of transformers with a plain loop around it."""

    def __init__(self, model: torch.nn.Module, batches: list[Given], machine: DeviceSetup) -> None:
        self.model = model.to(machine.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.compute: Callable[..., Any] = torch.compile(self.model) if machine.compiled else self.model
        self.batches, self.machine = batches, machine

    def run(self, steps: int, warm: int) -> float:
        """Return the real tokens a second after the first `warm` steps."""
        clock = Clock(warm)
        for number in range(steps):
            given, real = self.batches[number % len(self.batches)]
            with torch.autocast(self.machine.device.type, torch.bfloat16, enabled=self.machine.bf16):
                loss = self.loss(given)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            clock.count(number + 1, real)
        return clock.tokens_per_second()

    def loss(self, given: dict[str, Any]) -> torch.Tensor:
        """Return the loss of one batch."""
        return self.compute(**given).loss


def masked_or_causal(
    a: Architecture, stream: Stream, length: int, tokens: int, full: bool, machine: DeviceSetup
) -> Theirs:
    """Return the model for masked or next tokens, on the sequences of a stream padded to one length."""
    import transformers

    torch.manual_seed(0)
    kind = transformers.AutoModelForCausalLM if a.causal else transformers.AutoModelForMaskedLM
    try:
        made = kind.from_config(their_config(a), attn_implementation="sdpa")
    except ValueError:  # its GPT-1 has plain attention alone
        made = kind.from_config(their_config(a), attn_implementation="eager")
    batches = [padded(stream[k], length, tokens // length, full, a.causal, machine.device) for k in range(12)]
    return Theirs(made, batches, machine)


def padded(batch: Batch, length: int, rows: int, full: bool, causal: bool, device: torch.device) -> Given:
    """Return the first `rows` sequences of a packed batch as transformers takes them, and how many tokens they hold."""
    masked, targets = PretrainingLabels.of(batch).predicted
    labels = torch.full_like(batch.ids, -100)
    labels[masked + 1 if causal else masked] = targets  # their loss shifts the labels itself
    ids_sl, labels_sl = torch.zeros(rows, length, dtype=torch.long), torch.full((rows, length), -100)
    mask_sl = torch.zeros(rows, length, dtype=torch.long)
    real = 0
    pieces = list(zip(batch.split(batch.ids), batch.split(labels), strict=True))
    for row, (ids, answers) in enumerate((pieces * (rows // len(pieces) + 1))[:rows]):
        ids_sl[row, : len(ids)], labels_sl[row, : len(ids)], mask_sl[row, : len(ids)] = ids, answers, 1
        real += len(ids)
    given = {"input_ids": ids_sl, "labels": labels_sl}
    if not full:
        given["attention_mask"] = mask_sl
    return {name: tensor.to(device) for name, tensor in given.items()}, real


class _Special:
    """What the collator asks of a tokenizer."""

    mask_token, mask_token_id, pad_token, pad_token_id = "[MASK]", MASK, "[PAD]", PAD

    def get_special_tokens_mask(self, ids: list[int], already_has_special_tokens: bool = True) -> list[int]:
        """Return 1 for each special token."""
        return [int(token in SPECIAL) for token in ids]


class TheirXLNet(Theirs):
    """XLNetLMHeadModel on batches of DataCollatorForPermutationLanguageModeling, with a memory if the model has one.

    The collator asks for a query row at every token. `targets`: at the tokens to predict alone, as the authors' own
    code has it, which is the faster of the two.
    """

    def __init__(self, a: Architecture, length: int, tokens: int, machine: DeviceSetup, targets: bool) -> None:
        import transformers

        config = their_config(a)
        self._memory = int(a.axes()["memory"])
        config.mem_len, config.reuse_len, config.use_cache = self._memory or None, None, False
        torch.manual_seed(0)
        batches = [permuted(a.vocab_size, length, tokens, targets, machine.device) for _ in range(XLNET_BATCHES)]
        super().__init__(transformers.XLNetLMHeadModel(config), batches, machine)
        self._mems: Any = None

    def loss(self, given: dict[str, Any]) -> torch.Tensor:
        """Return the loss of one batch, which sees the states of the one before it if there is a memory."""
        mems = {"mems": self._mems} if self._mems is not None else {}
        try:
            found = self.compute(**given, **mems, use_mems=bool(self._memory))
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            if self.compute is self.model:
                raise
            warnings.warn(f"transformers' XLNet does not compile ({type(error).__name__}): eager", stacklevel=2)
            self.compute = self.model
            return self.loss(given)
        self._mems = list(found.mems) if self._memory else None
        return found.loss


def permuted(vocabulary: int, length: int, tokens: int, targets: bool, device: torch.device) -> Given:
    """Return random text with the collator's order and targets."""
    from transformers import DataCollatorForPermutationLanguageModeling

    rows = tokens // length
    texts = [torch.randint(1000, vocabulary, (length,)) for _ in range(rows)]
    given = DataCollatorForPermutationLanguageModeling(_Special()).torch_call(texts)
    if targets:
        labels = given["labels"]
        most = int((labels != -100).sum(1).max())
        first = (labels == -100).int().argsort(dim=1, stable=True)[:, :most]
        given["labels"] = labels.gather(1, first)
        given["target_mapping"] = torch.nn.functional.one_hot(first, length).float()
    return {name: tensor.to(device) for name, tensor in given.items()}, rows * length
