"""A device or a pipe as an output is written, and stays what it is."""

import os
import stat
from pathlib import Path

import pytest

from bertree.errors import UserError
from bertree.files.atomic import write_atomically


def test_a_pipe_is_written_and_stays_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(path, "a page")
    assert os.read(reader, 100) == b"a page"
    os.close(reader)
    assert stat.S_ISFIFO(path.lstat().st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(UserError, match="pipe: cannot be written"):
        write_atomically(path, "a page")
    assert stat.S_ISFIFO(path.lstat().st_mode)


def test_the_null_device_stays_one() -> None:
    write_atomically(Path("/dev/null"), "a page")
    assert stat.S_ISCHR(Path("/dev/null").lstat().st_mode)


def test_a_link_that_stands_for_a_file_is_replaced(tmp_path: Path) -> None:
    """What is inside a folder of ours never leads out of it."""
    path = tmp_path / "store.json"
    path.symlink_to("/dev/null")
    write_atomically(path, "{}")
    assert not path.is_symlink()
    assert path.read_text() == "{}"
