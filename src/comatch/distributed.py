"""Several processes that train together, each on its part of a batch.

`torchrun` starts the processes, called ranks. What a method computes over the whole batch is
gathered from all ranks, an order of images is drawn by the first, and decisions such as stopping
are taken by all at once. In a single process every function here is the identity: nothing is copied
and nothing waits.
"""

import gc
import time
import warnings
import zlib
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from comatch import launch
from comatch.errors import UserError

# For a rank that hangs: torchrun notices a dead one at once. Ranks may differ by minutes while they
# read images or compile.
TIMEOUT = timedelta(minutes=10)

PAUSE = 0.02  # seconds

_rank, _world = 0, 1
_launcher: dist.Store | None = None  # torchrun's store, which outlives the ranks
_store: dist.Store | None = None  # the part of it that belongs to this attempt


def rank() -> int:
    return _rank


def world() -> int:
    """The number of ranks."""
    return _world


def join() -> None:
    """Join the process group if there are several ranks. Calling it again does nothing."""
    global _rank, _world, _launcher, _store
    if not launch.several() or _world > 1:
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    launcher, number, count = next(dist.rendezvous("env://", timeout=TIMEOUT))
    # Ranks that torchrun restarts must not read the addresses of those before them.
    store = dist.PrefixStore(f"attempt-{launch.restarts()}", launcher)
    dist.init_process_group(backend, timeout=TIMEOUT, world_size=count, rank=number, store=store)
    _rank, _world, _launcher, _store = number, count, launcher, store


def leave() -> None:
    """Destroy the process group. A failed rank does not wait for the others: it calls `settle`."""
    global _rank, _world, _launcher, _store
    if _world > 1:
        # The group and its threads end only when no wrapped module refers to it any more.
        gc.collect()
        dist.destroy_process_group()
        settle()
    _rank, _world, _launcher, _store = 0, 1, None, None


def settle() -> None:
    """Wait a moment before the process ends.

    A thread of the group that frees a tensor after the interpreter's end would abort the process.
    """
    if _world > 1:
        time.sleep(PAUSE)


def device() -> torch.device:
    """The GPU of this rank."""
    if _world == 1:
        return torch.device("cuda")
    here, gpus = launch.local_rank(), torch.cuda.device_count()
    if here >= gpus:
        raise UserError(
            f"this machine has {gpus} GPUs and more processes than that: use "
            f"--nproc-per-node {gpus}, or --device cpu"
        )
    torch.cuda.set_device(here)
    return torch.device("cuda", here)


def first_to_fail() -> bool:
    """Whether this rank is the first to fail, and so reports the error.

    The others fail in the same way, or as a consequence. torchrun's store keeps the count, since it
    outlives the rank.
    """
    try:
        return launch.rank() == 0 if _store is None else _store.add("failed", 1) == 1
    except RuntimeError:  # torchrun itself is gone
        return _rank == 0


def is_connection_error(error: Exception) -> bool:
    """Whether the error says that another rank is gone or does not answer."""
    words = ("gloo", "nccl", "connection", "timed out", "timeout")
    return any(word in str(error).lower() for word in words)


def publish(key: str, value: str) -> None:
    """Leave a value for the ranks that torchrun starts if one of these fails."""
    if _launcher is not None:
        _launcher.set(key, value)


def published_value(key: str) -> str | None:
    """The value that ranks of an earlier attempt published, or None."""
    there = _launcher is not None and _launcher.check([key])
    value: str | None = collect(_launcher.get(key).decode() if _launcher and there else None)[0]
    return value


def seed(value: int, step: int = 0) -> None:
    """Give each rank random numbers of its own. The first keeps those of a single process."""
    if _rank or step:
        torch.manual_seed(zlib.crc32(f"{value} {_rank} {step}".encode()))


def share(batch: int) -> range:
    """This rank's rows of a batch."""
    part = batch // _world
    return range(_rank * part, (_rank + 1) * part)


class Gather(torch.autograd.Function):
    """The rows of all ranks. Backward sums the gradients of a row over all ranks."""

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        whole = rows.new_empty(_world * rows.shape[0], *rows.shape[1:])
        dist.all_gather_into_tensor(whole, rows.contiguous())
        return whole

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(_world)[_rank]


def gather(rows: Tensor) -> Tensor:
    """Rows [n, ...] of every rank as [ranks * n, ...], in the order of ranks.

    The gradient is that of the sum of all ranks' losses. DDP then divides it by their number.
    """
    return rows if _world == 1 else Gather.apply(rows)


def mean(value: Tensor) -> Tensor:
    """The mean over ranks, bit-identical on each."""
    return value if _world == 1 else gather(value[None]).mean(0)


def from_first_rank(value: Tensor) -> Tensor:
    """The first rank's value."""
    if _world > 1:
        value = value.contiguous()
        dist.broadcast(value, 0)
    return value


def any_rank(holds: bool) -> bool:
    """Whether it holds on any rank. The answer is the same on all, and no GPU is used."""
    if _world == 1:
        return holds
    flag = torch.tensor(int(holds))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def collect(value: Any) -> list[Any]:
    """The values of all ranks, in their order."""
    if _world == 1:
        return [value]
    values: list[Any] = [None] * _world
    dist.all_gather_object(values, value)
    return values


def wrap(module: nn.Module) -> nn.Module:
    """The module under DDP: gradients are means over ranks.

    Buffers are not broadcast, since every rank computes the same ones.
    """
    if _world == 1:
        return module
    # DDP would split a compiled module to send gradients early. That gains little, and the parts of
    # a graph may not contain collectives.
    torch._dynamo.config.optimize_ddp = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions have another name for it
        return DistributedDataParallel(module, broadcast_buffers=False)
