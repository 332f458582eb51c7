"""Side by side with Hugging Face: same weights, same batches, same optimizer settings, same losses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers
from torch.nn.functional import cross_entropy

from bertree.config.sections import OptimSettings, Phase, ScheduleSettings
from bertree.data.store import Store
from bertree.data.stream import Stream
from bertree.interop import folder
from bertree.interop.contents import Contents
from bertree.model.architecture import Architecture
from bertree.model.network import build
from bertree.model.presets import preset
from bertree.objectives.pretraining import pretraining_objective
from bertree.train.feed import StepBatches, TrainingSchedule
from bertree.train.loop import Loop
from bertree.train.optimizer import Lamb, build_optimizer
from tests.support.shared import suite_has

STEPS = 25
MEMBERS = {
    "bert": (transformers.BertForPreTraining, "segment-pair+nsp", "token+static", {"mlm": 1.0, "nsp": 1.0}, {}),
    "roberta": (transformers.RobertaForMaskedLM, "full-sentences", "token", {"mlm": 1.0}, {}),
    "albert": (
        transformers.AlbertForPreTraining,
        *("segment-pair+sop", "ngram", {"mlm": 1.0, "sop": 1.0}, {"embedding_width": 16}),
    ),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small take longer with two, and much longer beside other work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def architecture(family: str, store: Store, **axes: object) -> Architecture:
    small = {"vocab_size": store.vocab_size, "layers": 2, "width": 32, "heads": 2, "max_positions": 64}
    plain = {"dropout": 0.0, "attention_dropout": 0.0, "classifier_dropout": 0.0}
    return preset(f"{family}-base").architecture.with_values(small | plain | axes)


def theirs(model: transformers.PreTrainedModel, work: StepBatches, weights: dict[str, float]) -> torch.Tensor:
    """The loss of a step as Hugging Face computes it: padded batches, logits everywhere, labels of -100."""
    (batch,) = work.batches
    rows = batch.split(batch.ids)
    pad = model.config.pad_token_id
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
    kinds = torch.nn.utils.rnn.pad_sequence(batch.split(batch.segments), batch_first=True)
    labels = torch.full_like(batch.ids, -100)
    labels[batch.labels.masked] = batch.labels.targets
    labels = torch.nn.utils.rnn.pad_sequence(batch.split(labels), batch_first=True, padding_value=-100)
    real = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    out = model(input_ids=ids, attention_mask=real, token_type_ids=kinds if model.config.type_vocab_size > 1 else None)
    logits = out.logits if "logits" in out else out.prediction_logits
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    for name, pairs in (("nsp", "seq_relationship_logits"), ("sop", "sop_logits")):
        if name in weights:
            loss = loss + weights[name] * cross_entropy(out[pairs], batch.labels.pairs)
    return loss


TRAINED = [("bert", "adamw"), ("roberta", "adamw"), ("albert", "lamb")]


@pytest.mark.parametrize(("family", "optimizer"), suite_has(TRAINED[2:], TRAINED))
def test_the_first_losses(family: str, optimizer: str, token_store: Path, tmp_path: Path) -> None:
    kind, format_, masking, weights, axes = MEMBERS[family]
    store = Store.open(token_store)
    a = architecture(family, store, **axes)
    torch.manual_seed(3)
    network = build(a, dict.fromkeys(["mask", *(["pair"] if len(weights) > 1 else [])], 0))
    folder.write(Contents(a, network), tmp_path / "start")
    # Their RoBERTa counts positions from the padding id: none of the tokens may be it.
    model = kind.from_pretrained(tmp_path / "start", attn_implementation="eager").train()
    if family == "roberta":
        model.config.pad_token_id = 1
    decayed = [p for p in model.parameters() if p.ndim >= 2]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]
    # In theirs queries, keys and values are three tensors, so LAMB needs to know of nothing.
    optimizer_class = {"adamw": torch.optim.AdamW, "lamb": Lamb}[optimizer]
    rate = {"adamw": 2e-3, "lamb": 0.1}[optimizer]
    peer = optimizer_class(groups, lr=rate, betas=(0.9, 0.98), eps=1e-6)
    settings = OptimSettings(name=optimizer, lr=rate, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)
    loop = Loop(network, pretraining_objective(**weights), build_optimizer(network, settings), clip=1.0)
    schedule = TrainingSchedule([Phase(STEPS)], ScheduleSettings(warmup=10), rate)
    stream = Stream(store, format=format_, masking=masking, batch_tokens=512, max_length=48)
    differences, losses = [], []
    for update in schedule.updates:
        work = StepBatches(update, [stream[update.number]], 0.0)
        if family == "roberta":
            work.batches[0].ids[work.batches[0].ids == 1] = 6
        loss = theirs(model, work, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in peer.param_groups:
            group["lr"] = update.lr
        peer.step()
        peer.zero_grad()
        losses.append(loop.step(work).loss)
        differences.append(abs(losses[-1] - float(loss.detach())))
    print(f"{family}, {optimizer}: largest difference {max(differences):.1e}")
    assert max(differences) < 1e-3
    assert losses[-1] < losses[0] - 0.15, "and both learn"
