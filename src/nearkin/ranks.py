"""The processes of one run, as torchrun starts them, and their communication.

In a single process every function here returns its argument. In several, all ranks compute the same from gathered
values, so their gradient is already complete. Gradients are summed only where ranks compute different parts.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from nearkin.errors import LostRankError, RecipeError

PATIENCE = timedelta(days=1)  # for work of one rank while the others wait, such as decoding images
MEETING = timedelta(minutes=10)  # for all processes to be started
STEP_TIMEOUT = timedelta(seconds=60)  # for collectives within a step, in case a machine has disappeared
BUCKET = 1 << 23  # numbers that are summed over the ranks at once

_REMEDY = "start them with torchrun, or unset WORLD_SIZE for one process alone"

T = TypeVar("T")

_size, _rank = 1, 0
_groups: dict[str, Any] | None = None
"""Process groups by the type of device that tensors are on; None while this process is alone."""


@contextlib.contextmanager
def joined() -> Iterator[None]:
    """Join the other processes that torchrun started, if any; nested it does nothing.

    An existing process group of the caller is used and kept.

    >>> with joined():
    ...     rank(), world()
    (0, 1)
    """
    global _size, _rank, _groups
    if _groups is not None or (started_together() == 1 and not dist.is_initialized()):
        yield
        return
    made = not dist.is_initialized()
    if made:
        _join()
    _size, _rank, _groups = dist.get_world_size(), dist.get_rank(), {}
    try:
        yield
        wait_for_all()
        if made:
            dist.destroy_process_group()
    finally:
        _size, _rank, _groups = 1, 0, None


def started_together() -> int:
    """The number of processes that torchrun has started, or 1."""
    size = os.environ.get("WORLD_SIZE") or "1"
    if not size.isdecimal() or int(size) == 0:
        raise RecipeError(
            f"WORLD_SIZE must be the number of processes that torchrun has started, got {size!r}: {_REMEDY}"
        )
    return int(size)


def _join() -> None:
    # Some systems set WORLD_SIZE for other purposes, and no other process would answer.
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]:
        raise RecipeError(f"WORLD_SIZE is {started_together()}, but not set: {', '.join(missing)}; {_REMEDY}")
    with _peers():
        store, number, size = next(iter(rendezvous("env://", timeout=MEETING)))
        # A store may survive a restart, with the addresses of the old processes.
        store = PrefixStore(f"nearkin/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        # Gloo for objects and barriers on every device; tensors have their own group.
        dist.init_process_group("gloo", store=store, rank=number, world_size=size, timeout=PATIENCE)


def was_restarted() -> bool:
    """Whether torchrun has started the processes again after one of them was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def world() -> int:
    """The number of processes."""
    return _size


def rank() -> int:
    """The number of this process, counted from 0."""
    return _rank


def is_first() -> bool:
    """Whether this is the process that writes files and prints."""
    return rank() == 0


def local_rank() -> int:
    """The number of this process among those on this machine, counted from 0."""
    return 0 if _groups is None else int(os.environ.get("LOCAL_RANK", "0"))


def on_this_machine() -> int:
    """The number of processes on this machine."""
    return 1 if _groups is None else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def share_of(count: int, *, of: int | None = None) -> range:
    """This rank's (or rank ``of``'s) contiguous share of the indices below ``count``; the first ranks have one more.

    >>> share_of(5)
    range(0, 5)
    """
    size, remainder = divmod(count, world())
    number = rank() if of is None else of
    start = number * size + min(number, remainder)
    return range(start, start + size + (number < remainder))


def gather_rows(rows: Tensor, count: int) -> Tensor:
    """All ``count`` rows in order, from the ranks' shares of them (:func:`share_of`).

    All ranks compute the same from them, so a rank's rows take their part of its own gradient.
    """
    return rows if world() == 1 else _Gathered.apply(rows, count)  # type: ignore[no-untyped-call]


def gather_columns(columns: Tensor, count: int) -> Tensor:
    """As :func:`gather_rows`, for shares of the columns of a matrix."""
    return columns if world() == 1 else gather_rows(columns.T, count).T.contiguous()


def with_summed_gradient(x: Tensor) -> Tensor:
    """``x``, equal on all ranks, which compute different parts from it: its gradient is summed over the ranks."""
    if world() == 1 or not x.requires_grad:
        return x

    def summed(gradient: Tensor) -> Tensor:
        if torch.is_grad_enabled():  # create_graph=True
            raise RuntimeError("second derivatives are computed by one process only, not over several")
        return _all_reduce(gradient.clone(memory_format=torch.contiguous_format))

    x = x.view_as(x)
    x.register_hook(summed)  # type: ignore[no-untyped-call]
    return x


def sum_of_parts(part: Tensor) -> Tensor:
    """The sum over the ranks, from which all compute the same: every part takes the whole gradient."""
    return part if world() == 1 else _SumOfParts.apply(part)  # type: ignore[no-untyped-call]


def sum_within(part: Tensor) -> Tensor:
    """The sum over the ranks, from which they compute different parts: every part takes the sum of the gradients."""
    return with_summed_gradient(sum_of_parts(part))


def add_up_(tensors: Sequence[Tensor]) -> None:
    """Replace tensors of one type by their sums over the ranks."""
    if world() == 1:
        return
    bucket: list[Tensor] = []
    for number, tensor in enumerate(tensors, start=1):
        bucket.append(tensor)
        sizes = [x.numel() for x in bucket]
        if sum(sizes) >= BUCKET or number == len(tensors):
            sums = _all_reduce(torch.cat([x.flatten() for x in bucket]))
            for x, summed in zip(bucket, torch.split(sums, sizes), strict=True):
                x.copy_(summed.view_as(x))
            bucket = []


def from_first(compute: Callable[[], T]) -> T:
    """The result of ``compute`` on the first rank, or its error, on all ranks."""
    if world() == 1:
        return compute()
    outcome: list[Any] = [None, None]
    if is_first():
        try:
            outcome = [compute(), None]
        except Exception as error:
            outcome = [None, error]
    with _peers():
        dist.broadcast_object_list(outcome, src=0)
    result, failure = outcome
    if failure is not None:
        raise failure
    return result  # type: ignore[no-any-return]


def first_on_each_machine(compute: Callable[[], T]) -> T:
    """``compute`` on all ranks; on each machine one rank goes first and the others reuse its files."""
    if local_rank() == 0:
        result = compute()
    wait_for_all()
    return result if local_rank() == 0 else compute()


def wait_for_all() -> None:
    """Wait for all ranks, however long that takes."""
    if world() > 1:
        with _peers():
            dist.barrier()


def is_first_to_fail() -> bool:
    """Whether no other rank has called this before: only the first to fail explains why all of them end."""
    if not dist.is_initialized():
        return os.environ.get("RANK", "0") == "0"
    try:
        store = dist.distributed_c10d._get_default_store()
        return bool(store.add("nearkin/failed", 1) == 1)
    except RuntimeError:  # the rank that kept the store is gone, and has explained why
        return False


class Agreement:
    """Requests of any rank that all ranks follow together, one step later so that no rank waits."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, Any] | None = None

    def on(self, *requests: bool) -> list[bool]:
        """Which requests any rank made in its previous call; in a single process, those of this call."""
        if world() == 1:
            return list(requests)
        with _peers():
            agreed = [False] * len(requests)
            if self._pending is not None:
                self._pending[1].wait()
                agreed = [value > 0 for value in self._pending[0].tolist()]
            counts = torch.tensor([float(request) for request in requests])
            self._pending = (counts, dist.all_reduce(counts, group=_group(counts), async_op=True))
        return agreed


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, count: int) -> Tensor:
        ctx.local = share_of(count)
        # Shares differ by one row at most, and collectives need equal sizes.
        padded = rows.new_zeros(len(share_of(count, of=0)), *rows.shape[1:])
        padded[: len(rows)] = rows.detach()
        pieces = [torch.empty_like(padded) for _ in range(world())]
        with _peers():
            dist.all_gather(pieces, padded, group=_group(rows))
        return torch.cat([piece[: len(share_of(count, of=number))] for number, piece in enumerate(pieces)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient[ctx.local.start : ctx.local.stop], None


class _SumOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor) -> Tensor:
        return _all_reduce(part.detach().clone(memory_format=torch.contiguous_format))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def _all_reduce(tensor: Tensor) -> Tensor:
    with _peers():
        dist.all_reduce(tensor, group=_group(tensor))
    return tensor


def _group(tensor: Tensor) -> Any:
    """The process group for tensors on this device type, made on first use."""
    assert _groups is not None
    device = tensor.device
    if device.type not in _groups:
        backend = "gloo"
        if device.type == "cuda":
            devices: list[Any] = [None] * _size
            dist.all_gather_object(devices, (socket.gethostname(), device.index))
            # NCCL needs a GPU for each rank; ranks that share one, as in a test, communicate through the host.
            backend = "nccl" if len(set(devices)) == _size else "gloo"
        _groups[device.type] = dist.new_group(backend=backend, timeout=STEP_TIMEOUT)
    return _groups[device.type]


@contextlib.contextmanager
def _peers() -> Iterator[None]:
    """Turn the error that another rank does not answer into one line."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise LostRankError(
            f"another process of this run has ended or does not answer ({reason}); if it printed nothing, it was "
            f"killed, perhaps for lack of memory. Continue with --resume; torchrun --max-restarts=3 does so by itself"
        ) from error
