"""The command in several processes that were started together, as torchrun and srun start them."""

import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.support import faults, runs
from tests.support.processes import PATIENCE, PROCESSES


class RankOutputs(NamedTuple):
    """Exit codes of the ranks, and what each printed."""

    codes: list[int | None]
    texts: list[str]


def run_commands(
    folder: Path,
    arguments: Sequence[Sequence[str]],
    env: Mapping[str, str] | None = None,
    planted: Sequence[str] = (),
    patience: float = 0.0,
) -> RankOutputs:
    """Run `bertree` in one process for each list of arguments; the ranks meet in a file, unless `env` says where.

    `planted`: the faults of each rank. `patience`: seconds that they wait for each other at the start."""
    folder.mkdir(exist_ok=True)
    logs = [folder / f"log-{rank}" for rank in range(len(arguments))]
    started = []
    for rank, own in enumerate(arguments):
        place = {"RANK": rank, "WORLD_SIZE": len(arguments), "LOCAL_RANK": rank, "MASTER_ADDR": f"file://{folder}/meet"}
        environment = {name: str(value) for name, value in (place | dict(env or {})).items()}
        fault = planted[rank] if planted else ""
        started.append(PROCESSES.Process(target=_command, args=(tuple(own), environment, logs[rank], fault, patience)))
    for process in started:
        process.start()
    for process in started:
        process.join(PATIENCE)
        assert process.exitcode is not None, "a rank hangs"
    return RankOutputs([process.exitcode for process in started], [path.read_text() for path in logs])


def _command(arguments: tuple[str, ...], env: dict[str, str], log: Path, fault: str, patience: float) -> None:
    from datetime import timedelta

    from bertree.scale import world

    os.environ.update(env)
    if patience:
        world.START_TIMEOUT = timedelta(seconds=patience)
    faults.plant(fault)
    runs.run_command(arguments, log)


def torchrun(*arguments: str, log: Path, planted: str) -> int | None:
    """Run torchrun, with these words after its name, to its end; return its exit code.

    Its ranks are forked from the server, like all processes of the tests. `planted`: a fault of rank 1, the first time
    it is started.
    """
    process = PROCESSES.Process(target=_torchrun, args=(arguments, log, planted))
    process.start()
    process.join(PATIENCE)
    return process.exitcode


def _torchrun(arguments: tuple[str, ...], log: Path, planted: str) -> None:
    from torch.distributed import run

    read = run.config_from_args

    def forked(options: Namespace) -> tuple[Any, Callable[..., None], tuple[Any, ...]]:
        config, _, words = read(options)
        config.start_method = "forkserver"
        return config, _rank_of_torchrun, (words[words.index("bertree") + 1 :], log, planted)

    run.config_from_args = forked
    run.main(list(arguments))


def _rank_of_torchrun(arguments: Sequence[str], log: Path, planted: str) -> None:
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        faults.plant(planted)
    runs.run_command(arguments, log)
