"""Cloze probes: the bundled file, rank and probability against `fill_mask`, words of several tokens, refusals."""

import math
from pathlib import Path

import pytest

import bertree
from bertree.errors import UserError
from bertree.inference.load import load
from bertree.inference.zero_shot import BLANK, Probe, ask_probes, read_probes
from tests.support import learnable

PROBES = [
    Probe("syntax", "the boat ___ red", "is"),
    Probe("syntax", "a red ___ by the river", "lamp"),
    Probe("trivia", "Ada is in ___", "Turin"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable.model(tmp_path_factory.mktemp("cloze") / "model", learnable.tokenizer())


def test_the_bundled_probes_are_of_three_kinds_and_none_is_there_twice() -> None:
    probes = read_probes()
    kinds = [probe.kind for probe in probes]
    assert set(kinds) == {"trivia", "syntax", "coreference"}
    assert min(map(kinds.count, set(kinds))) >= 15
    assert len({probe.text for probe in probes}) == len(probes)


def test_ranks_and_probabilities_are_those_of_filled_masks(path: Path) -> None:
    model = load(path)
    figures, lines = ask_probes(model, PROBES)
    for line, probe in zip(lines, PROBES, strict=True):
        candidates = model.fill_masks(probe.text.replace(BLANK, "[MASK]"), 10_000)[0].candidates
        rank, candidate = next((n, c) for n, c in enumerate(candidates, 1) if c.token == probe.word)
        assert line["rank"] == rank
        assert line["probability"] == pytest.approx(candidate.probability, rel=1e-5)
        assert line["predicted"] == candidates[0].token
    ranks = [line["rank"] for line in lines]
    assert figures["reciprocal_rank"] == pytest.approx(sum(1 / rank for rank in ranks) / 3)
    assert figures["accuracy"] == sum(rank == 1 for rank in ranks) / 3
    assert figures["syntax_within_5"] == sum(rank <= 5 for rank in ranks[:2]) / 2
    assert (figures["syntax_examples"], figures["trivia_examples"], figures["several_tokens"]) == (2, 1, 0)


def test_a_word_of_several_tokens_has_a_probability_and_no_rank(path: Path) -> None:
    model = load(path)
    figures, (line,) = ask_probes(model, [Probe("syntax", "the boat ___ red", "boatlamp")])
    ids = model.required_tokenizer.encode_plain(["boatlamp"])[0].ids
    assert line["tokens"] == len(ids) > 1
    masks = [mask.candidates for mask in model.fill_masks("the boat " + "[MASK]" * len(ids) + " red", 10_000)]
    product = math.prod(next(c.probability for c in mask if c.id == i) for mask, i in zip(masks, ids, strict=True))
    assert line["probability"] == pytest.approx(product, rel=1e-4)
    assert line["rank"] is None
    assert (figures["accuracy"], figures["reciprocal_rank"], figures["several_tokens"]) == (0.0, 0.0, 1)


def test_a_file_of_ones_own_is_read_and_mistakes_are_one_line(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "probes.csv"
    file.write_text("text,word\nthe ___ is red,boat\n")
    scores = bertree.evaluate(path, task="cloze", data=file, out=tmp_path / "out", device="cpu")
    assert scores.metrics["all_examples"] == scores.metrics["examples"] == 1
    assert (tmp_path / "out" / "metrics.json").is_file()
    file.write_text("text,word\nthe boat is red,boat\n")
    with pytest.raises(UserError, match=r"line 2: needs a text with one ___ and the word"):
        bertree.evaluate(path, task="cloze", data=file, device="cpu")
    causal = learnable.model(tmp_path / "causal", learnable.tokenizer(), attention="causal", pooler=False)
    with pytest.raises(UserError, match="reads left to right"):
        bertree.evaluate(causal, task="cloze", device="cpu")
