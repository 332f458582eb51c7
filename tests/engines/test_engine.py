"""Blocks by workers: results in order, a bounded number at once, mistakes in their place; workers as processes."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import pytest

from bertree.engines.engine import HERE, map_in_order
from bertree.engines.local import Processes, choose_engine
from bertree.engines.ray_cluster import RayCluster
from bertree.errors import UserError
from tests.support.blocks import add_to
from tests.support.processes import PATIENCE

BOOKS = Path(__file__).parents[2] / "corpus" / "books.txt"


class Slow:
    """Workers that are never done before they are asked."""

    def __init__(self, ahead: int) -> None:
        self.ahead, self.running, self.most = ahead, 0, 0

    def submit(self, block: int) -> Callable[[], int]:
        self.running += 1
        self.most = max(self.most, self.running)

        def wait() -> int:
            self.running -= 1
            if block == 13:
                raise UserError("block 13: is unlucky")
            return -block

        return wait


def test_results_are_in_order_and_few_at_once() -> None:
    workers = Slow(3)
    results = list(map_in_order(workers, range(10), lambda number: number))
    assert results == [(number, -number) for number in range(10)]
    assert workers.most == 4


def test_a_mistake_comes_after_what_was_before_it() -> None:
    def tasks() -> Iterator[int]:
        yield from range(5)
        raise UserError("row 5: is damaged")

    results = map_in_order(Slow(3), tasks(), lambda number: number)
    assert [result for _, result in islice(results, 5)] == [0, -1, -2, -3, -4]
    with pytest.raises(UserError, match="row 5"):
        next(results)
    with pytest.raises(UserError, match="block 13"):
        list(map_in_order(Slow(3), range(20), lambda number: number))


def test_an_engine_is_chosen_by_its_name() -> None:
    assert choose_engine("local") is HERE
    assert isinstance(choose_engine("local", workers=3), Processes)
    with pytest.raises(UserError, match="engine 'rai': did you mean 'ray'"):
        choose_engine("rai")
    with pytest.raises(UserError, match="it needs `engine=ray`"):
        choose_engine("local", "10.0.0.1:6379")
    with pytest.raises(UserError, match="workers 0: must lie between 1"):
        choose_engine("local", workers=0)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertree.engines.ray_cluster.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'bertree\[ray\]'"):
        RayCluster()


@pytest.mark.process
def test_a_process_that_dies_ends_the_work_in_one_line() -> None:
    with Processes(1).start(add_to, 0) as workers:
        assert [workers.submit(block)() for block in range(2)] == [0, 1]
        with pytest.raises(UserError, match="a worker process died") as caught:
            workers.submit(99)()
    assert "at its start" not in str(caught.value)


UNGUARDED = """
from bertree.engines.local import Processes
from tests.support.blocks import add_to

print("begins")
with Processes(2).start(add_to, 5) as workers:
    for result in [workers.submit(block) for block in range(2)]:
        print(result())
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    path = os.pathsep.join([str(BOOKS.parents[1]), *sys.path])
    command = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.stdout.split() == ["begins", "5", "6"]
