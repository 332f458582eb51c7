"""`generate`, `perplexity` and `attribute` as a user runs them."""

import io
import json
from pathlib import Path

import pytest

from tests.support.command import Command
from tests.support.language_models import CODES, language_model
from tests.support.shared import make_once


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.getbasetemp() / "left-to-right"
    make_once(root / "gpt", lambda folder: language_model("gpt2").save(folder))
    make_once(root / "ctrl", lambda folder: language_model("ctrl", CODES).save(folder))
    make_once(root / "xl", lambda folder: language_model("transformer-xl-base").save(folder))
    return root


def test_one_text_is_printed_as_it_comes_and_several_one_after_the_other(command: Command, models: Path) -> None:
    text = command.well("generate", models / "gpt", "the boat", "--tokens", 12, "--seed", 3).out
    assert text.startswith("the boat ")
    again = command.well("generate", models / "gpt", "the boat", "--tokens", 12, "--seed", 3, "--json").json
    assert again["prompt"] + str(again["text"]) == text.removesuffix("\n")
    assert again["number"] == 0
    several = command.well("generate", models / "gpt", "the boat", "tree", "-n", 2, "--tokens", 12, "--seed", 3).out
    assert f"--- 1\n{text}" in several
    assert several.count("--- ") == 4


def test_prompts_come_from_a_file_or_from_standard_input(
    command: Command, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "prompts.txt").write_text("the boat\n\ntree\n")
    out = command.well(
        "generate", models / "gpt", "--file", tmp_path / "prompts.txt", "--tokens", 3, "--temperature", 0, "--json"
    ).out
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["the boat", "tree"]
    monkeypatch.setattr("sys.stdin", io.StringIO("the boat\n"))
    assert command.well("generate", models / "gpt", "-", "--tokens", 3).out.startswith("the boat")
    beams = command.well("generate", models / "gpt", "the boat", "--beams", 3, "--tokens", 3).out
    assert beams.startswith("--- 1\nthe boat")


def test_perplexity_says_what_was_measured(command: Command, models: Path, tmp_path: Path) -> None:
    path = tmp_path / "book.txt"
    path.write_text("the boat of the river\n" * 30)
    output = command.well("perplexity", models / "gpt", path, "--context", 20, "--stride", 5).out
    assert "per token" in output
    assert "150 words divided by white space" in output
    assert "180 with line ends" in output
    assert "each from 1 or more tokens before it" in output
    assert "tokens/s" in output
    report = command.well("perplexity", models / "gpt", path, "--json").json
    assert report["words"] == 150
    assert report["documents"] == 1
    lines = command.well("perplexity", models / "gpt", path, "--lines", "--json").json
    assert lines["documents"] == 30
    memory = command.well("perplexity", models / "xl", path, "--memory", 16, "--context", 8, "--json").json
    assert memory["tokens"] == report["tokens"]
    assert 0 < memory["context_mean"] <= 24
    passages = tmp_path / "passages.jsonl"
    passages.write_text('{"text": "the boat of the river"}\n' * 3)
    assert "3 passages" in command.well("perplexity", models / "gpt", passages, "--task", "lambada").out
    assert command.well("perplexity", models / "gpt", passages, "--task", "lambada", "--json").json["passages"] == 3


def test_codes_are_shown_with_bars(command: Command, models: Path) -> None:
    output = command.well("attribute", models / "ctrl", "the lamp of a stone").out
    assert all(code in output for code in CODES)
    assert "█" in output
    report = command.well("attribute", models / "ctrl", "the lamp", "--code", "tree", "--code", "boat", "--json").json
    assert {code["code"] for code in report["codes"]} == {"tree", "boat"}
    coded = command.well("generate", models / "ctrl", "the", "--control", "boat", "--tokens", 4, "--json").json
    assert coded["control"] == "boat"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["generate", "default", "the"], "only left-to-right models"),
        (["perplexity", "default", "FILE"], "only left-to-right models"),
        (["attribute", "default", "the"], "only left-to-right models"),
        (["generate", "gpt"], "no prompt given"),
        (["generate", "gpt", "the", "--file", "FILE"], "give a prompt or --file, not both"),
        (["generate", "gpt", "the", "--control", "boat"], "was not trained with control codes"),
        (["generate", "ctrl", "the", "--control", "bot"], "did you mean 'boat'"),
        (["generate", "gpt", "the", "--tokens", "60"], "longer than the 48 positions"),
        (["perplexity", "gpt", "FILE", "--memory", "0"], "memory: must be 1 or more"),
        (["perplexity", "gpt", "FILE", "--memory", "9"], "has no relative positions"),
        (["perplexity", "gpt", "FILE", "--task", "lambda"], "--task lambda: unknown; known: lambada"),
        (["perplexity", "gpt", "FILE", "--task", "lambada", "--stride", "2"], "--stride: has no meaning"),
        (["perplexity", "gpt", "EMPTY"], "holds no text"),
        (["attribute", "gpt", "the"], "was not trained with control codes"),
    ],
)
def test_a_mistake_is_one_line(command: Command, models: Path, tmp_path: Path, arguments: list[str], line: str) -> None:
    (tmp_path / "text.txt").write_text("the boat of the river\n")
    (tmp_path / "empty.txt").write_text("")
    places = {name: str(models / name) for name in ("gpt", "ctrl")}
    places |= {"FILE": str(tmp_path / "text.txt"), "EMPTY": str(tmp_path / "empty.txt")}
    verb, *rest = arguments
    result = command(verb, *(places.get(word, word) for word in rest))
    assert result.code == 2
    assert len(result.lines) == 1
    assert line in result.err


def test_a_preset_has_random_weights_and_no_tokenizer(command: Command) -> None:
    result = command("generate", "bert-tiny", "the")
    assert result.code == 2
    assert "only left-to-right models" in result.err
