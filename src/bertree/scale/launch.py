"""How this process was started: one of many, by torchrun or SLURM, or alone. Imports no torch."""

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

FIRST_PORT, PORTS = 20000, 20000  # a SLURM job's own port, unless MASTER_PORT says another


class Launch(NamedTuple):
    """The rank of this process among those that were started together."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # on its machine
    restarts: int = 0  # how often torchrun has started the processes again
    host: str = ""  # where rank 0 answers
    port: int = 0
    job: str = ""


def launched(env: Mapping[str, str] = os.environ) -> Launch:
    """Return the rank that torchrun or srun gave this process; without them it is alone.

    A shell that sbatch or salloc opened is no step of srun: a command there is alone.
    """
    if "RANK" in env and "WORLD_SIZE" in env:
        return Launch(
            _number(env, "RANK"),
            _number(env, "WORLD_SIZE", 1),
            _number(env, "LOCAL_RANK"),
            _number(env, "TORCHELASTIC_RESTART_COUNT"),
            env.get("MASTER_ADDR", "localhost"),
            _number(env, "MASTER_PORT"),
            env.get("TORCHELASTIC_RUN_ID", ""),
        )
    if "SLURM_PROCID" in env and ("SLURM_STEP_ID" in env or "SLURM_STEPID" in env):
        tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
        return Launch(
            _number(env, "SLURM_PROCID"),
            _number(env, tasks, 1),
            _number(env, "SLURM_LOCALID"),
            _number(env, "SLURM_RESTART_COUNT"),
            env.get("MASTER_ADDR") or _first_host(env.get("SLURM_STEP_NODELIST", "localhost")),
            _number(env, "MASTER_PORT") or FIRST_PORT + _number(env, "SLURM_JOB_ID") % PORTS,
            f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}",
        )
    return Launch()


def _number(env: Mapping[str, str], name: str, default: int = 0) -> int:
    text = env.get(name, "")
    return int(text) if text.isdecimal() else default


def _first_host(names: str) -> str:
    """Return the first of a list of hosts as SLURM writes it: node[03-07,12],other."""
    match = re.match(r"([^\[,]+)(?:\[(\w+))?", names)
    return f"{match[1]}{match[2] or ''}" if match else names
