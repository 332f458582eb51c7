"""The messages that docs/messages.md explains are those that the commands before them print."""

import re
import shlex
from pathlib import Path

import pytest

from tests.support import documentation
from tests.support.command import Command
from tests.support.documentation import ROOT, CodeBlock, Library
from tests.support.shared import common_folder

BLOCKS = documentation.blocks(ROOT / "docs" / "messages.md")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line {block.line}")
def test_a_message_is_printed_as_the_page_shows_it(
    block: CodeBlock,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    command: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    library = Library(common_folder(tmp_path_factory) / "library")
    for line in re.split(r"^\$ bertree ", block.text, flags=re.MULTILINE)[1:]:
        asked, *shown = line.strip().splitlines()
        words = shlex.split(asked)
        files = {*documentation.files_of_command(words), *words}
        library.provide(sorted(files - {"default"}), tmp_path)  # the page shows what the bundled model itself prints
        result = command(*words, *(["device=cpu"] if words[0] in ("finetune", "adapt") else []))
        assert result.code == (0 if "cut to" in line else 1 if "learned" in line else 2)
        for expected, printed in zip(shown, result.lines, strict=True):
            assert re.fullmatch(".*".join(map(re.escape, expected.split("..."))), printed)
