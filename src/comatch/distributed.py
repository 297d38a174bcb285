"""Many processes that act as one: each sees its part of a batch, and together they see all of it.

`torchrun` starts the processes, called ranks. What looks across the batch gathers it from all of
them, what is drawn once is drawn by the first, and what is decided is decided together. In one
process all of this is the identity: nothing is copied, and nothing is waited for.
"""

import gc
import time
import uuid
import warnings
import zlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from comatch import launch
from comatch.errors import UserError

# A rank that died is noticed by torchrun at once; this is for one that hangs. It is more than any
# rank may need longer than another: to read its images, or to compile.
TIMEOUT = timedelta(minutes=10)

PAUSE = 0.02  # seconds

_rank, _world = 0, 1
_launcher: dist.Store | None = None  # torchrun's memory: it outlives the ranks
_store: dist.Store | None = None  # the part of it that is about these ranks


def rank() -> int:
    return _rank


def world() -> int:
    """How many ranks there are."""
    return _world


def join() -> None:
    """Meets the other ranks, if there are any; joining twice is joining once."""
    global _rank, _world, _launcher, _store
    if not launch.several() or _world > 1:
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    launcher, number, count = next(dist.rendezvous("env://", timeout=TIMEOUT))
    store = dist.PrefixStore(name_of_meeting(launcher, number, count), launcher)
    dist.init_process_group(backend, timeout=TIMEOUT, world_size=count, rank=number, store=store)
    _rank, _world, _launcher, _store = number, count, launcher, store


def name_of_meeting(store: dist.Store, rank: int, world: int) -> str:
    """A name that all ranks know and that no earlier meeting had.

    torchrun keeps its store when it starts the ranks again, and in it the addresses of the dead: a
    rank that is early would call there, and wait. So the first rank makes a name up, and answers
    only who calls it by that name; the others call by whatever name they read until they hear.
    """
    mine = name = uuid.uuid4().hex
    if rank == 0:
        store.set("meeting", name)
    for other in range(1, world) if rank == 0 else ():
        for _ in patience():
            call = store.get(f"call/{other}").decode()
            if call.startswith(name):
                store.set(call, "heard")
                break
    for _ in patience() if rank > 0 else ():
        name = store.get("meeting").decode()
        store.set(f"call/{rank}", f"{name}/{mine}")
        if store.check([f"{name}/{mine}"]):
            break
    return name


def patience() -> Iterator[None]:
    """Again and again, until it has been too long."""
    end = time.monotonic() + TIMEOUT.total_seconds()
    while time.monotonic() < end:
        yield
        time.sleep(PAUSE)
    raise UserError("the other processes do not come: start them all, within ten minutes")


def leave() -> None:
    """Parts in peace. A rank that fails does not wait for the others, and only settles."""
    global _rank, _world, _launcher, _store
    if _world > 1:
        # With no module wrapped any more, the group ends here, and its threads with it; a compiled
        # one keeps it.
        gc.collect()
        dist.destroy_process_group()
        settle()
    _rank, _world, _launcher, _store = 0, 1, None, None


def settle() -> None:
    """Before a rank ends: a thread of the group that lets go of a tensor after Python's end aborts
    the process, so all get a moment for what is left."""
    if _world > 1:
        time.sleep(PAUSE)


def device() -> torch.device:
    """The GPU of this rank: each has one of its own."""
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
    """Whether this rank is the first to fail, and so the one to say why.

    The others fail because of it a moment later, or in the same way. torchrun keeps the count, so
    it outlives the rank.
    """
    try:
        return launch.rank() == 0 if _store is None else _store.add("failed", 1) == 1
    except RuntimeError:  # torchrun itself is gone
        return _rank == 0


def is_connection_error(error: Exception) -> bool:
    """Whether it says that another rank is gone or does not answer."""
    words = ("gloo", "nccl", "connection", "timed out", "timeout")
    return any(word in str(error).lower() for word in words)


def publish(key: str, value: str) -> None:
    """Tells it to the ranks that torchrun may start in place of these."""
    if _launcher is not None:
        _launcher.set(key, value)


def published_value(key: str) -> str | None:
    """What the ranks before these have left, if these were started in place of others."""
    left = _launcher is not None and _launcher.check([key])
    word: str | None = collect(_launcher.get(key).decode() if _launcher and left else None)[0]
    return word


def seed(value: int, step: int = 0) -> None:
    """Random numbers of this rank's own; those of the first are the ones of a single process."""
    if _rank or step:
        torch.manual_seed(zlib.crc32(f"{value} {_rank} {step}".encode()))


def share(batch: int) -> range:
    """The places of a batch that are this rank's."""
    part = batch // _world
    return range(_rank * part, (_rank + 1) * part)


class Gather(torch.autograd.Function):
    """Rows of all ranks. What every rank makes of a row comes back as gradient to its owner."""

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

    The gradient is that of the sum of all ranks' losses; DDP then makes a mean of it.
    """
    return rows if _world == 1 else Gather.apply(rows)


def mean(value: Tensor) -> Tensor:
    """The mean over ranks: the same bits on each."""
    return value if _world == 1 else gather(value[None]).mean(0)


def from_first_rank(value: Tensor) -> Tensor:
    """What the first rank has."""
    if _world > 1:
        value = value.contiguous()
        dist.broadcast(value, 0)
    return value


def any_rank(holds: bool) -> bool:
    """Whether it holds on any rank: all get the same answer, without asking a GPU."""
    if _world == 1:
        return holds
    flag = torch.tensor(int(holds))
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def collect(value: Any) -> list[Any]:
    """A plain value of every rank, in the order of ranks."""
    if _world == 1:
        return [value]
    values: list[Any] = [None] * _world
    dist.all_gather_object(values, value)
    return values


def wrap(module: nn.Module) -> nn.Module:
    """The module, with gradients that are means over ranks.

    Its buffers are not sent around: every rank computes the same.
    """
    if _world == 1:
        return module
    # A compiled module stays one graph: cutting it where gradients are sent early gains little,
    # and the parts of a graph may not hold what ranks tell each other.
    torch._dynamo.config.optimize_ddp = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer versions have another name for it
        return DistributedDataParallel(module, broadcast_buffers=False)
