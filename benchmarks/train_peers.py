"""transformers' models in a plain training loop, for `benchmarks.train`: batches on the device, compiled on a GPU."""

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import Clock
from bertree.batch import Batch, PretrainingLabels
from bertree.data.stream import Stream
from bertree.interop.huggingface.config import config_from_architecture, family_of_architecture
from bertree.model.architecture import Architecture
from bertree.train.device_setup import DeviceSetup

ModelInput = tuple[dict[str, Any], int]  # arguments of the model, and the real tokens in them


def their_config(a: Architecture) -> Any:
    """Return transformers' configuration of an architecture."""
    import transformers

    settings = config_from_architecture(a, family_of_architecture(a), 0)
    return transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)


class Theirs:
    """A model of transformers with a plain loop around it."""

    def __init__(self, model: torch.nn.Module, batches: list[ModelInput], machine: DeviceSetup) -> None:
        self.model = model.to(machine.device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.compute: Callable[..., Any] = torch.compile(self.model) if machine.compiled else self.model
        self.batches, self.machine = batches, machine

    def run(self, steps: int, warm: int) -> float:
        """Return the real tokens a second after the first `warm` steps."""
        clock = Clock(warm)
        for number in range(steps):
            arguments, real = self.batches[number % len(self.batches)]
            with torch.autocast(self.machine.device.type, torch.bfloat16, enabled=self.machine.bf16):
                loss = self.compute(**arguments).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            clock.count(number + 1, real)
        return clock.tokens_per_second()


def masked_or_causal(
    a: Architecture, stream: Stream, length: int, tokens: int, full: bool, machine: DeviceSetup
) -> Theirs:
    """Return the model for masked or next tokens, on the sequences of a stream padded to one length."""
    import transformers

    torch.manual_seed(0)
    kind = transformers.AutoModelForCausalLM if a.causal else transformers.AutoModelForMaskedLM
    try:
        model = kind.from_config(their_config(a), attn_implementation="sdpa")
    except ValueError:  # its GPT-1 has plain attention alone
        model = kind.from_config(their_config(a), attn_implementation="eager")
    batches = [padded(stream[k], length, tokens // length, full, a.causal, machine.device) for k in range(12)]
    return Theirs(model, batches, machine)


def padded(batch: Batch, length: int, rows: int, full: bool, causal: bool, device: torch.device) -> ModelInput:
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
    arguments = {"input_ids": ids_sl, "labels": labels_sl}
    if not full:
        arguments["attention_mask"] = mask_sl
    return {name: tensor.to(device) for name, tensor in arguments.items()}, real
