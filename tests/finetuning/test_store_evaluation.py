"""`evaluate --store`: masked tokens, next and swapped sentences of a token store; the same figures as transformers."""

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bertree
from bertree.data.held_out import HiddenDocuments, MaskedDocuments
from bertree.data.store import Store
from bertree.errors import UserError
from bertree.finetuning.store_evaluation import TOKENS, evaluate_on_store
from bertree.inference.load import random_model
from bertree.model.presets import preset
from bertree.text.tokenizer import Tokenizer
from tests.support import learnable
from tests.support.command import Command

LENGTH = 48
HEADS = {"mask": 0, "pair": 0}


def store_tokenizer(store: Path) -> Tokenizer:
    tokenizer = Tokenizer.load(store / "tokenizer")
    assert tokenizer is not None
    return tokenizer


def test_a_hugging_face_folder_has_the_figures_of_transformers(token_store: Path, tmp_path: Path) -> None:
    import transformers

    store = Store.open(token_store)
    config = transformers.BertConfig(
        vocab_size=store.vocab_size,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.2,
        pad_token_id=store.special["pad"],
    )
    torch.manual_seed(1)
    theirs = transformers.BertForPreTraining(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    shutil.copytree(token_store / "tokenizer", tmp_path / "theirs", dirs_exist_ok=True)

    scores = bertree.evaluate(
        tmp_path / "theirs", task="mlm", store=token_store, split="all", max_length=LENGTH, device="cpu"
    ).metrics

    total, right, count, pad = 0.0, 0, 0, torch.nn.utils.rnn.pad_sequence
    for batch in MaskedDocuments(store, max_length=LENGTH, tokens=TOKENS).one_epoch():
        labels = torch.full_like(batch.ids, -100)
        labels[batch.labels.masked] = batch.labels.targets
        rows = batch.split(batch.ids)
        with torch.no_grad():
            logits = theirs(
                input_ids=pad(rows, batch_first=True, padding_value=config.pad_token_id),
                attention_mask=pad([torch.ones_like(row) for row in rows], batch_first=True),
            ).prediction_logits
        gold = pad(batch.split(labels), batch_first=True, padding_value=-100)
        total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), gold.flatten(), reduction="sum"))
        right, count = right + int((logits.argmax(-1) == gold).sum()), count + int((gold != -100).sum())
    assert scores["masked_tokens"] == count
    assert scores["tokens"] == store.tokens
    assert scores["accuracy"] == pytest.approx(right / count, abs=1.5 / count)  # a tie may fall either way
    assert scores["loss"] == pytest.approx(total / count, abs=1e-5)
    assert scores["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-4)


@pytest.mark.slow
def test_a_query_stream_predicts_the_masked_tokens_without_seeing_them(token_store: Path, tmp_path: Path) -> None:
    store = Store.open(token_store)
    axes = {"layers": 2, "width": 32, "heads": 2, "vocab_size": store.vocab_size, "dropout": 0.0, "init_std": 0.2}
    model = random_model(preset("xlnet-base").architecture.with_values(axes), {"mask": 0}, 0)
    (masked,) = MaskedDocuments(store, max_length=LENGTH, tokens=2000).one_epoch()
    (hidden,) = HiddenDocuments(store, max_length=LENGTH, tokens=2000).one_epoch()
    assert torch.equal(masked.labels.targets, hidden.labels.targets)
    other_ids = hidden.ids.clone()
    other_ids[masked.labels.masked] = masked.labels.targets.roll(1)
    with torch.no_grad():
        model.network.eval()
        logits = [
            model.network.mask_logits(model.network(batch), batch.labels.masked)
            for batch in (hidden, replace(hidden, ids=other_ids))
        ]
    assert torch.equal(*logits)
    assert logits[0].std(0).max() > 0, "but they see the others"
    figures = evaluate_on_store(model, "xlnet", "mlm", token_store, split="all", max_length=LENGTH)
    assert figures["masked_tokens"] > 0
    assert math.isfinite(figures["loss"])


@pytest.mark.parametrize("task", ["nsp", "sop"])
def test_sentence_pairs(task: str, token_store: Path, tmp_path: Path) -> None:
    model = bertree.load(learnable.model(tmp_path / "model", store_tokenizer(token_store), heads=HEADS, segments=2))
    with torch.no_grad():  # a model that gives every pair the first class: accuracy is the share of that class
        for name, parameter in model.network.heads["pair"].named_parameters():
            parameter.zero_()
            if name.endswith("bias"):
                parameter[0] = 20.0
    scores = bertree.evaluate(model, task=task, store=token_store, split="all", device="cpu")
    figures = scores.metrics
    assert scores.task == task
    assert scores.splits == ["all"]
    assert figures["pairs"] > 50
    assert figures["loss"] == pytest.approx(20.0 * (1 - figures["accuracy"]), abs=1e-3)
    assert 0.3 < figures["accuracy"] < 0.7


def test_the_verb(token_store: Path, tmp_path: Path, command: Command) -> None:
    model = learnable.model(tmp_path / "model", store_tokenizer(token_store), heads=HEADS, segments=2)
    arguments = ("evaluate", model, "--task", "mlm", "--store", token_store, "--device", "cpu")
    figures = command.well(*arguments, "--json", "--out", tmp_path / "out").json
    assert figures["split"] == "held-out"
    assert figures["length"] == 64  # the model's positions: fewer than 128
    assert 0 < figures["masked_tokens"] < figures["tokens"] < Store.open(token_store).tokens / 10
    assert figures["bits_per_byte"] > 0
    assert (tmp_path / "out" / "metrics.json").is_file()
    shown = command.well(*arguments)
    for line in ("accuracy", "perplexity", "bits per byte", "masked tokens"):
        assert line in shown.out
    assert f"{figures['perplexity']:.3f}" in shown.out
    assert "are few for an evaluation" in shown.err


def test_what_is_refused(token_store: Path, tmp_path: Path, command: Command) -> None:
    words = store_tokenizer(token_store)
    plain = learnable.model(tmp_path / "plain", words)
    causal = learnable.model(tmp_path / "causal", words, attention="causal")
    other = learnable.model(tmp_path / "other", learnable.tokenizer())
    store, data = ("--store", token_store), ("--data", tmp_path)
    refusals: dict[str, tuple[object, ...]] = {
        "plain: has no head for sentence pairs, so nsp cannot be evaluated": (plain, "--task", "nsp", *store),
        "causal: reads left to right, so it fills no masks": (causal, "--task", "mlm", *store),
        "was made with another tokenizer": (other, "--task", "mlm", *store),
        "--split dev: of a token store there are: held-out, all": (plain, "--task", "mlm", *store, "--split", "dev"),
        "plain reads up to 64 tokens": (plain, "--task", "mlm", *store, "--max-length", "128"),
        "--task mlm: reads a token store; give it with --store": (plain, "--task", "mlm"),
        "is for the tasks mlm, nsp, sop, not sst-2": (plain, "--task", "sst-2", *store),
        "is for the tasks mlm, nsp, sop; name one with --task": (plain, *store),
        "--data: is not for --task mlm": (plain, "--task", "mlm", *store, *data),
        "give the task's files with --data": (plain, "--task", "sst-2"),
    }
    for message, arguments in refusals.items():
        result = command("evaluate", *arguments, "--device", "cpu")
        assert result.code == 2, message
        assert message in " ".join(result.err.split()), result.err
        assert len(result.lines) == 1, result.err


def test_perplexity_points_to_masked_tokens(token_store: Path, tmp_path: Path) -> None:
    model = bertree.load(learnable.model(tmp_path / "model", store_tokenizer(token_store)))
    with pytest.raises(UserError, match=r"bertree evaluate --task mlm --store STORE"):
        model.perplexity("A text.")
