"""Fine-tuning of left-to-right models: layouts, new tokens, the language-model loss, and that it all is stored."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers

import bertree
from bertree.batch import Batch
from bertree.errors import UserError
from bertree.finetuning.feed import ShapeBuckets
from bertree.finetuning.job import with_task_tokens
from bertree.model.architecture import Transformer
from bertree.model.network import Network, build
from bertree.objectives.objective import WeightedTerms
from bertree.objectives.supervised import supervised_objective, with_language_model
from bertree.tasks.batches import collate, logits
from bertree.tasks.glue import TEXT_TASKS
from bertree.tasks.registry import make_task
from bertree.tasks.task import Unit
from bertree.text.framing import TASK_TOKENS
from bertree.text.tokenizer import Encoded, Tokenizer
from tests.support import learnable
from tests.support.batches import axes_of
from tests.support.command import Command
from tests.support.learnable import KINDS, SETTINGS
from tests.support.left_to_right import MEMBERS, gpt_tokenizer, member, save_member
from tests.support.shared import make_once, suite_has
from tests.support.units import CLASSES, VOCAB, units

SPECIAL = frozenset({3, 4, 5})
PAIRS = [("a lamp", "the stone on the road"), ("river", "cloud"), ("red tree", "red tree and boat")]


@pytest.fixture(scope="session")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained causal model whose tokenizer writes no special tokens."""
    where = tmp_path_factory.mktemp("gpt") / "start"
    return make_once(where, lambda path: learnable.model(path, gpt_tokenizer(), attention="causal", segments=0))


def language_model(vocab_size: int = VOCAB, a: Transformer | None = None) -> Network:
    """A small causal network with every head and a language model."""
    small = {"width": 16, "heads": 2, "layers": 2, "max_positions": 64, "init_std": 0.2, "vocab_size": vocab_size}
    torch.manual_seed(1)
    return build(a or Transformer(attention="causal").with_values(small), CLASSES | {"mask": 0}).eval()


def in_two_orders(count: int, seed: int) -> list[Unit]:
    ordered = units("sequence", 2 * count, seed)
    return [Unit(n, (ordered[2 * n].sequences[0], ordered[2 * n + 1].sequences[0]), answer=n % 3) for n in range(count)]


def test_only_the_order_of_similar_texts_has_no_meaning() -> None:
    assert {name for name, task in TEXT_TASKS.items() if task.symmetric} == {"mrpc", "qqp", "sts-b"}
    for name in TEXT_TASKS:
        task: Any = make_task(name)
        assert task.for_direction("forward").both_orders == TEXT_TASKS[name].symmetric
        assert not task.both_orders


def test_both_orders_are_read_and_their_states_are_added() -> None:
    words, task = learnable.tokenizer(), make_task("mrpc").for_direction("forward")
    examples = [task.parse({"sentence1": left, "sentence2": right}) for left, right in PAIRS]
    units_read, _ = task.units(examples, words, 32)
    for unit, (left, right) in zip(units_read, PAIRS, strict=True):
        orders = (left, right), (right, left)
        assert [s.ids for s in unit.sequences] == [words.encode([pair])[0].ids for pair in orders]
    net = language_model(words.size)
    rows = logits(net, "sequence", units_read)
    head = net.heads["sequence"]
    with torch.no_grad():
        for unit, row in zip(units_read, rows, strict=True):
            batch = Batch.pack([s.ids for s in unit.sequences], [s.segments for s in unit.sequences])
            pooled = net.encoder.pool(net(batch), batch)
            assert np.allclose(row, head.out(pooled[0] + pooled[1]).numpy(), atol=1e-6)
    swapped = [task.parse({"sentence1": right, "sentence2": left}) for left, right in PAIRS]
    again = logits(net, "sequence", task.units(swapped, words, 32)[0])
    assert np.allclose(np.concatenate(rows), np.concatenate(again), atol=1e-6), "the order has no meaning"


def test_one_text_has_no_second_order() -> None:
    task: Any = make_task("sst-2")
    task = replace(task, both_orders=True)
    with pytest.raises(UserError, match="has one text, but both_orders is for pairs"):
        task.units([task.parse("a lamp")], learnable.tokenizer(), 32)


def test_no_answer_and_words_are_read_where_all_of_them_is_seen() -> None:
    words = gpt_tokenizer()
    squad: Any = make_task("squad2")
    asked = [squad.parse({"question": "which colour ?", "context": "a red lamp on the road"})]
    (first,), (last,) = (task.units(asked, words, 40)[0] for task in (squad, squad.for_direction("forward")))
    assert first.sequences == last.sequences
    assert last.chosen == [len(last.sequences[0].ids) - 1, *first.chosen[1:]]
    tags: Any = make_task("tagging")
    sentence = [tags.parse({"words": ["lamplight", "a", "unstoned"]})]
    (first,), (last,) = (task.units(sentence, words, 40)[0] for task in (tags, tags.for_direction("forward")))
    pieces = [len(words.encode_plain([f" {word}"])[0].ids) for word in sentence[0].words]
    assert max(pieces) > 1
    assert last.chosen == [start + size - 1 for start, size in zip(first.chosen, pieces, strict=True)]
    with pytest.raises(UserError, match="subword 'lats': unknown; did you mean 'last'"):
        replace(tags, subword="lats")
    with pytest.raises(UserError, match="no_answer 'middle': unknown"):
        replace(squad, no_answer="middle")


def test_the_next_tokens_are_those_of_the_texts() -> None:
    sequences = (Encoded([3, 10, 11, 4, 12, 5], None, 0), Encoded([3, 13, 5], None, 0), Encoded([9], None, 0))
    units_read = [Unit(n, (sequence,), answer=0) for n, sequence in enumerate(sequences)]
    labels = collate(units_read, "sequence", special=SPECIAL).labels.texts
    assert labels.masked.tolist() == [0, 1, 3, 6]  # start, 10, delimiter; start
    assert labels.targets.tolist() == [10, 11, 12, 13]
    assert collate(units_read, "sequence").labels.texts is None


@pytest.mark.parametrize("head", CLASSES)
@pytest.mark.parametrize("name", suite_has(list(MEMBERS)[:2], MEMBERS))
def test_the_loss_is_the_tasks_and_half_the_language_models(head: str, name: str) -> None:
    model, some = language_model(a=member(name, 150)), units(head, 6, 3)
    batch = collate(some, head, special=SPECIAL)
    plain = supervised_objective(head)
    both = with_language_model(plain, 0.5)
    assert both.weights == {head: 1.0, "lm": 0.5}

    def mean(objective: WeightedTerms, name: str) -> torch.Tensor:
        return objective(model, batch).losses[name].sum / objective.counts(batch)[name]

    def gradients(loss: torch.Tensor) -> list[torch.Tensor]:
        gradients = torch.autograd.grad(loss, model.parameters(), allow_unused=True)
        return [torch.zeros(()) if gradient is None else gradient for gradient in gradients]

    text = batch.labels.texts
    masked, targets = model.encoder.predictions(batch, text.masked, text.targets)  # of each direction
    reference = F.cross_entropy(model.mask_logits(model(batch), masked), targets)
    total = sum((weight * mean(both, name) for name, weight in both.weights.items()), torch.zeros(()))
    assert total.item() == pytest.approx(mean(plain, head).item() + 0.5 * reference.item(), rel=1e-6)
    parts = zip(*map(gradients, (mean(plain, head), reference, total)), strict=True)
    for own, of_text, gradient in parts:
        wanted = own + 0.5 * of_text
        assert (gradient - wanted).abs().max() <= 1e-5 * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("two", [False, True])
def test_padding_changes_no_loss(count: int, two: bool) -> None:
    model = language_model()
    some = in_two_orders(count, count) if two else units("sequence", count, count)
    batch = collate(some, "sequence", special=SPECIAL)
    filled = ShapeBuckets("sequence", 8, 1 + two)(batch)
    objective = with_language_model(supervised_objective("sequence"), 0.5)
    assert objective.counts(batch) == objective.counts(filled)
    plain, full = (objective(model, b).losses for b in (batch, filled))
    for name in ("sequence", "lm"):
        assert full[name].sum.item() == pytest.approx(plain[name].sum.item(), rel=1e-5)


def test_new_tokens_change_nothing_else(gpt: Path) -> None:
    model = bertree.load(gpt)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    grown = with_task_tokens(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert grown.architecture == model.architecture.with_values({"vocab_size": model.tokenizer.size + 3})
    ids = model.tokenizer.encode(["a lamp on the road"])[0].ids
    assert torch.equal(model.hidden([ids])[0], grown.hidden([ids])[0])
    table = grown.network.encoder.embeddings.tokens.weight.detach()
    assert table[-3:].std() == pytest.approx(0.1, rel=0.3), "as other embeddings are initialized"
    again = with_task_tokens(bertree.load(gpt))
    assert all(torch.equal(t, again.state_dict()[n]) for n, t in grown.state_dict().items()), "and always the same"
    assert with_task_tokens(grown) is grown


def finetuned(command: Command, model: Path, kind: str, where: Path, *settings: str) -> Path:
    data = learnable.prepared(KINDS[kind], where / "data")
    arguments = ("finetune", model, *KINDS[kind].options, "--data", data, "--out", where / "out")
    command.well(*arguments, *SETTINGS, *KINDS[kind].settings, *settings)
    return where / "out"


@pytest.mark.parametrize("kind", suite_has(("ner",), ["classification", "ner", "squad2", "choice"]))
def test_what_can_be_learned_is_learned_left_to_right(kind: str, gpt: Path, command: Command, tmp_path: Path) -> None:
    """The bars are lower: a token sees only what is before it."""
    longer = {"classification": ("epochs=7",), "choice": ("epochs=4",)}
    out = finetuned(command, gpt, kind, tmp_path, *longer.get(kind, ()))
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics[KINDS[kind].metric] >= (0.8 if kind != "ner" else 0.9)
    history = [json.loads(line) for line in (out / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    lm = [line["lm"] for line in history if "lm" in line]
    assert lm[-1] < lm[0], "the language model learns too"
    saved = bertree.load(out / "model")
    assert set(saved.classes) == {make_task(KINDS[kind].options[1]).head}
    assert saved.tokenizer.size == saved.architecture.vocab_size
    assert saved.tokens("a")[0] == TASK_TOKENS[0]
    again = command.well("evaluate", out / "model", *KINDS[kind].options, "--data", tmp_path / "data", "--json").json
    assert again[KINDS[kind].metric] == pytest.approx(metrics[KINDS[kind].metric], abs=1e-6)


def test_both_orders_are_stored_and_used_again(gpt: Path, command: Command, tmp_path: Path) -> None:
    rows = [
        {"sentence1": r["one"], "sentence2": r["two"], "label": int(r["kind"] == "good")} for r in learnable.pairs(60)
    ]
    learnable.write(tmp_path / "MRPC" / "train.tsv", rows)
    learnable.write(tmp_path / "MRPC" / "dev.tsv", rows[:20])
    result = command.well(
        "finetune", gpt, "--task", "mrpc", "--data", tmp_path, "--out", tmp_path / "o", *SETTINGS, "epochs=1", "lm=0.25"
    )
    assert "0.25 times the language-model loss" in result.out
    model = bertree.load(tmp_path / "o" / "model")
    assert model.task["both_orders"] is True
    tasks: list[Any] = [model.find_task(), model.find_task("qqp")]  # whatever the task's name is
    assert all(task.both_orders for task in tasks)
    pair = ("a fine lamp", "the road")
    forward, swapped = (model.predict([p])[0]["probabilities"] for p in (pair, pair[::-1]))
    assert forward == pytest.approx(swapped, abs=1e-6)
    recipe = (tmp_path / "o" / "seed-0" / "recipe.toml").read_text()
    assert "lm = 0.25" in recipe
    off = tmp_path / "off"
    command.well(
        "finetune", gpt, "--task", "mrpc", "--data", tmp_path, "--out", off, *SETTINGS, "epochs=1", "lm=0",
        "both_orders=false",
    )  # fmt: skip
    assert "both_orders" not in bertree.load(off / "model").task
    lines = [json.loads(line) for line in (off / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    assert not any("lm" in line for line in lines)


def test_models_that_read_both_ways_are_fine_tuned_as_before(
    trained: learnable.Trained, command: Command, tmp_path: Path
) -> None:
    arguments = (
        "finetune",
        trained.start,
        *KINDS["pair"].options,
        "--data",
        learnable.prepared(KINDS["pair"], tmp_path / "d"),
    )
    command.well(*arguments, "--out", tmp_path / "o", *SETTINGS, "epochs=1")
    assert "lm =" not in (tmp_path / "o" / "seed-0" / "recipe.toml").read_text()
    result = command(*arguments, "--out", tmp_path / "p", *SETTINGS, "epochs=1", "lm=0.5")
    assert result.code == 2
    assert result.lines == ["bertree: lm: the model does not read left to right, so there is no "
                          "language-model loss; leave it out"]  # fmt: skip


def test_a_language_model_needs_its_head_and_its_states(gpt: Path, command: Command, tmp_path: Path) -> None:
    data = learnable.prepared(KINDS["pair"], tmp_path / "data")
    bare = learnable.model(tmp_path / "bare", gpt_tokenizer(), heads={}, attention="causal")
    arguments = (*KINDS["pair"].options, "--data", data, "--out", tmp_path / "o", *SETTINGS)
    assert "has no language-model head" in command("finetune", bare, *arguments, "lm=0.5").err
    assert (
        "the head does not read the last hidden states" in command("finetune", gpt, *arguments, "lm=0.5", "lstm=8").err
    )
    assert "train.lm: must not be negative" in command("finetune", gpt, *arguments, "lm=-1").err
    command.well("finetune", gpt, *arguments, "epochs=0.2", "lstm=8")


@pytest.mark.parametrize("name", MEMBERS)
def test_every_member_gets_new_tokens(name: str, tmp_path: Path) -> None:
    model = bertree.load(save_member(name, tmp_path / "m", gpt_tokenizer()))
    grown = with_task_tokens(model)
    ids = model.tokenizer.encode(["a lamp on the road"])[0].ids
    assert torch.equal(model.hidden([ids])[0], grown.hidden([ids])[0])
    with torch.no_grad():
        before, after = (m.network.mask_logits(m.network(b := m.batch([ids])), b.last) for m in (model, grown))
    size = len(before[0])
    assert len(after[0]) == size + 3
    for start, end in pairwise(axes_of(model).cluster_starts):  # new tokens take their share of the last cluster
        shares, grown_shares = (logits[:, start:end].softmax(-1) for logits in (before, after))
        assert torch.allclose(shares, grown_shares, atol=1e-6), "what was known is as likely, compared with each other"
    grown.save(tmp_path / "grown")
    again = bertree.load(tmp_path / "grown")
    text = "a lamp on the road"
    assert torch.equal(again.hidden([text])[0], grown.hidden([text])[0])


@pytest.mark.parametrize("name", ["gpt2", "ctrl"])
def test_transformers_computes_the_same(name: str, command: Command, tmp_path: Path) -> None:
    start = save_member(name, tmp_path / "m", gpt_tokenizer())
    data = learnable.prepared(KINDS["classification"], tmp_path / "data")
    arguments = (*KINDS["classification"].options, "--data", data, "--out", tmp_path / "o")
    command.well("finetune", start, *arguments, *SETTINGS, "epochs=0.2")
    folder = tmp_path / "o" / "model"
    words = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    ours = bertree.load(folder)
    assert theirs.config.vocab_size == len(words) == ours.architecture.vocab_size
    for text in ("a fine lamp", "the gloomy road"):
        with torch.no_grad():
            expected = theirs(words(text, return_tensors="pt")["input_ids"]).logits[0].softmax(-1).tolist()
        assert list(ours.predict([text])[0]["probabilities"].values()) == pytest.approx(expected, abs=1e-5)


def test_a_vocabulary_with_spare_rows_grows_no_more_than_it_must(tmp_path: Path) -> None:
    words: Tokenizer = gpt_tokenizer()
    model = bertree.load(learnable.model(tmp_path / "m", words, vocab_size=words.size + 2, attention="causal"))
    assert with_task_tokens(model).architecture.vocab_size == words.size + 3
