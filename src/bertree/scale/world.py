"""The processes that train one model together: their ranks, and small collective operations outside of the network.

A rank is `data_rank * tensor + tensor_rank`. Data ranks read different batches. Tensor ranks hold shards of the same
tensors and read the same batch. Groups of `shard` neighboring data ranks share one copy of what ZeRO shards.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.rendezvous import rendezvous

from bertree.errors import UserError
from bertree.scale.launch import Launch

T = TypeVar("T")
MAX_DIMENSIONS = 3  # of a tensor whose rows are gathered
MESSAGE_BYTES = 1000  # a longer message between ranks is truncated
START_TIMEOUT = timedelta(minutes=5)  # until all ranks have started
TIMEOUT = timedelta(minutes=60)  # of a collective operation afterwards: one rank may be writing a large model


class SharedError(UserError):
    """An error that every rank raises: only rank 0 prints it."""


class RankError(UserError):
    """An error of one rank that the others do not know of: this rank prints it."""

    of_one_rank = True


@dataclass(frozen=True, eq=False)
class World:
    """The ranks of a run, as one of them sees them."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    data: int = 1  # ranks that read different batches
    tensor: int = 1  # ranks that hold shards of the same tensors
    shard: int = 1  # data ranks that share one copy
    joined: bool = False  # there is a process group
    mesh: Any = None  # DeviceMesh of this rank's data ranks: replicate x shard
    data_group: Any = None
    shard_group: Any = None
    tensor_group: Any = None

    @classmethod
    def alone(cls) -> "World":
        """Return the world of one process; torch.distributed is not touched."""
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which prints, logs and writes for all."""
        return self.rank == 0

    @property
    def data_rank(self) -> int:
        """This rank's number among those that read different batches."""
        return self.rank // self.tensor

    @property
    def tensor_rank(self) -> int:
        """This rank's number among those that hold shards of the same tensors."""
        return self.rank % self.tensor

    @property
    def shard_rank(self) -> int:
        """This rank's number among those that share one copy."""
        return self.data_rank % self.shard

    def sum_over_data(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the data ranks, in place."""
        return _sum(tensor, self.data, self.data_group)

    def sum_over_shards(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the ranks that share this rank's copy, in place."""
        return _sum(tensor, self.shard, self.shard_group)

    def sum_over_tensor(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over the tensor ranks, in place."""
        return _sum(tensor, self.tensor, self.tensor_group)

    def agree(self, numbers: Mapping[str, int]) -> dict[str, int]:
        """Sum numbers over the data ranks; tensor ranks agree already. A flag set on any rank stays non-zero."""
        if self.size == 1:
            return dict(numbers)
        total = torch.tensor(list(numbers.values()), dtype=torch.int64)
        distributed.all_reduce(total)
        return {name: -(-value // self.tensor) for name, value in zip(numbers, total.tolist(), strict=True)}

    def gather(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of every rank."""
        if self.size == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.float64)
        return [row.tolist() for row in self._gather(mine)]

    def gather_rows(self, rows: Tensor) -> list[Tensor]:
        """Return the rows of every data rank, without gradients. The number of rows may differ between ranks; a rank
        without rows need not know their shape."""
        if self.data == 1:
            return [rows.detach()]
        sizes = (*rows.shape, 0, 0)[:MAX_DIMENSIONS]
        shapes = [tuple(map(int, row)) for row in self.gather([rows.ndim, *sizes])[:: self.tensor]]
        ndim, most, *inner = max(shapes, key=lambda shape: shape[1])
        padded = rows.new_zeros((most, *inner[: ndim - 1]))
        padded[: len(rows)] = rows.detach().view(len(rows), *padded.shape[1:])
        gathered = [torch.empty_like(padded) for _ in shapes]
        distributed.all_gather(gathered, padded, group=self.data_group)
        return [rank_rows[: shape[1]] for rank_rows, shape in zip(gathered, shapes, strict=True)]

    def check_together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank. If one fails, all raise the same error, so that none waits forever."""
        if self.size == 1:
            return work()
        failure, result = "", None
        try:
            result = work()
        except Exception as error:
            failure = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            failure, cause = failure or type(error).__name__, error
        failures = self._gather_texts(failure)
        if not any(failures):
            return result  # type: ignore[return-value]
        if failure and not isinstance(cause, UserError):
            raise cause  # a bug of ours, with its traceback
        first = next(rank for rank, text in enumerate(failures) if text)
        where = "" if all(failures) or first == 0 else f"rank {first}: "
        raise SharedError(where + failures[first])

    def check_same(self, what: str, text: str) -> None:
        """Check that a text is the same on every rank."""
        if self.size == 1:
            return
        digests = self._gather_texts(hashlib.sha256(text.encode(errors="replace")).hexdigest())
        different = next((rank for rank, digest in enumerate(digests) if digest != digests[0]), None)
        if different is not None:
            raise SharedError(f"{what}: rank {different} has a different value than rank 0")

    def _gather_texts(self, text: str) -> list[str]:
        """Return the text of every rank, truncated to `MESSAGE_BYTES`."""
        mine = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8)
        encoded = text.encode(errors="replace")[:MESSAGE_BYTES]
        mine[: len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8) if encoded else 0
        return [bytes(row.tolist()).rstrip(b"\0").decode(errors="ignore") for row in self._gather(mine)]

    def _gather(self, mine: Tensor) -> list[Tensor]:
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        distributed.all_gather(rows, mine)
        return rows


def _sum(tensor: Tensor, size: int, group: Any) -> Tensor:
    if size > 1:
        distributed.all_reduce(tensor, group=group)
    return tensor


def mesh_sizes(size: int, data: int, tensor: int, zero: int, shard: int) -> tuple[int, int]:
    """Return the number of data ranks and of ranks that share one copy. 0 means: as many as there are."""
    ranks = "1 process was" if size == 1 else f"{size} processes were"
    if size % tensor:
        raise SharedError(f"scale.tensor: {tensor}: {ranks} started, which is no multiple of it")
    if data and data * tensor != size:
        raise SharedError(
            f"scale.data: {data} data ranks of {tensor} tensor ranks each are {data * tensor} processes, but {ranks} "
            "started; leave it out (0), or start as many"
        )
    data = size // tensor
    if shard and not zero:
        raise SharedError(f"scale.shard: {shard}: without scale.zero=1, 2 or 3 nothing is sharded")
    if shard and data % shard:
        raise SharedError(f"scale.shard: {shard}: must divide the {data} data ranks")
    return data, (shard or data) if zero else 1


@contextmanager
def join(
    launch: Launch, *, data: int = 0, tensor: int = 1, zero: int = 0, shard: int = 0, cuda: bool = False
) -> Iterator[World]:
    """Join the ranks that were started together; the process group lasts as long as the block."""
    data, shard = mesh_sizes(launch.size, data, tensor, zero, shard)
    if launch.size == 1 and not zero:
        yield World.alone()
        return
    kind = "cuda" if cuda else "cpu"
    _connect(launch, "cpu:gloo,cuda:nccl" if cuda and torch.cuda.is_available() else "gloo")
    try:
        ranks = {"rank": launch.rank, "size": launch.size, "local_rank": launch.local_rank}
        if cuda:
            World(**ranks, joined=True).check_together(lambda: _choose_device(launch))
            _check_devices(World(**ranks, joined=True))
        sizes = {"replicate": data // shard, "shard": shard, "tensor": tensor}
        mesh = init_device_mesh(kind, tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        grid = init_device_mesh(kind, (data, tensor), mesh_dim_names=("data", "tensor"))
        yield World(
            **ranks,
            data=data,
            tensor=tensor,
            shard=shard,
            joined=True,
            mesh=mesh["replicate", "shard"] if shard < data else mesh["shard"],
            data_group=grid.get_group("data"),
            shard_group=mesh.get_group("shard"),
            tensor_group=grid.get_group("tensor"),
        )
    except UserError as error:
        if launch.rank and not isinstance(error, SharedError | RankError):
            raise RankError(f"rank {launch.rank}: {error}") from None
        raise
    finally:
        distributed.destroy_process_group()


def _connect(launch: Launch, backend: str) -> None:
    """Start the process group."""
    try:
        distributed.init_process_group(backend, None, TIMEOUT, launch.size, launch.rank, _rendezvous_store(launch))
    except (RuntimeError, ValueError) as error:
        port_in_use = "EADDRINUSE" in str(error) or "already in use" in str(error)
        reason = "the port is in use; set MASTER_PORT to another" if port_in_use else str(error).splitlines()[0][:200]
        rank = f"rank {launch.rank}: " if launch.rank else ""
        raise RankError(f"{rank}{launch.host}:{launch.port}: the ranks cannot connect here ({reason})") from None


def _rendezvous_store(launch: Launch) -> Any:
    """Return the store through which the ranks find each other; a single process needs no port."""
    if launch.size == 1:
        return distributed.HashStore()  # type: ignore[attr-defined]
    address = launch.host if "://" in launch.host else f"tcp://{launch.host}:{launch.port}"
    shared_store = _call_with_timeout(
        START_TIMEOUT, lambda: next(rendezvous(address, launch.rank, launch.size, timeout=START_TIMEOUT))[0]
    )
    # The prefix hides keys of other jobs, and of this job before torchrun restarted it.
    store = distributed.PrefixStore(f"{launch.job}/{launch.restarts}", shared_store)  # type: ignore[attr-defined]
    store.set(f"rank {launch.rank}", "is here")
    store.wait([f"rank {rank}" for rank in range(launch.size)], START_TIMEOUT)
    return store


def _call_with_timeout(timeout: timedelta, call: Callable[[], T]) -> T:
    """Return the result of a call. PyTorch's own timeout does not cover a server that accepts and never answers."""
    results: list[T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout.total_seconds() + 1)
    if errors:
        raise errors[0]
    if not results:
        raise RuntimeError(f"no answer in {timeout.total_seconds():.0f} seconds")
    return results[0]


def _choose_device(launch: Launch) -> None:
    """Select this rank's GPU. If the scheduler shows each rank only its own GPU, that one is taken."""
    if not torch.cuda.is_available():
        raise UserError("run.device: there is no CUDA device here")
    torch.cuda.set_device(launch.local_rank % torch.cuda.device_count())


def _check_devices(world: World) -> None:
    """Check that no two ranks use the same GPU."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    number = int.from_bytes(hashlib.sha256(str(properties.uuid).encode()).digest()[:6])
    seen = [row[0] for row in world.gather([number])]
    if len(set(seen)) < world.size:
        raise SharedError(
            f"{world.size} processes were started for {len(set(seen))} CUDA devices; start one for each, or set "
            "run.device=cpu"
        )
