"""Choose an engine by its name."""

from bertree.engines.engine import HERE, Engine
from bertree.engines.processes import Processes
from bertree.engines.ray_cluster import RayCluster
from bertree.errors import UserError, suggest

ENGINES = ("local", "ray")
MOST_WORKERS = 4096


def choose_engine(name: str, address: str | None = None, workers: int | None = None) -> Engine:
    """Return an engine: "local" (this machine) or "ray" (a Ray cluster; `address`: where it is).

    `workers`: processes; None: this one, or of a cluster, all.
    """
    if name not in ENGINES:
        raise UserError(f"engine '{name}': {suggest(name, ENGINES)}")
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"workers {workers}: must lie between 1 and {MOST_WORKERS}")
    if name == "ray":
        return RayCluster(address, workers)
    if address is not None:
        raise UserError(f"address {address}: is that of a Ray cluster; it needs engine ray (--engine ray)")
    return HERE if workers is None or workers == 1 else Processes(workers)
