"""Old spellings of verbs and options go on working, and are not shown in help."""

import pytest

from bertree.cli.aliases import GROUPS, OPTIONS, translate
from tests.support.command import Command


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("config", "recipe list"),
        ("config --json", "recipe list --json"),
        ("config bert-base lr=1", "recipe show bert-base lr=1"),
        ("sentence train m --data d", "embeddings train m --data d"),
        ("distill t --corpus s --compare=0", "distill t --store s --seconds=0"),
        ("pairs m f --least 0.8", "pairs m f --min-similarity 0.8"),
        ("cluster m f --smallest 3 --least=0.9", "cluster m f --min-size 3 --min-similarity=0.9"),
        ("tokenizer train c --field body", "tokenizer train c --text body"),
        ("predict m -- --field", "predict m -- --field"),
        ("prepare c --out o -- --field", "prepare c --out o -- --field"),
        ("", ""),
    ],
)
def test_old_spellings_are_translated(old: str, new: str) -> None:
    assert translate(old.split()) == new.split()


def test_every_new_spelling_is_an_option_and_no_old_one_is_in_help(command: Command) -> None:
    for verb, options in OPTIONS.items():
        shown = command.well(*verb.split(), "--help").out
        for old, new in options.items():
            assert new in shown, f"{verb} {new}"
            assert old not in shown.split(), f"{verb} {old}"
    listed = command.well("--help").out
    assert not any(f"│ {old} " in listed for old in (*GROUPS, "config"))
