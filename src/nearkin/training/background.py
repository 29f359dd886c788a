"""Files of a run, written in a thread of its own while training goes on, from copies of what they hold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

Write = Callable[[], None]
_PLAIN = (torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool)


class BackgroundWriter:
    """Does what it is given one after another; after a failure nothing more.

    Before anything of another step :meth:`make_way` waits, so that copies do not pile up; whoever would rather go on
    asks whether it :attr:`is_busy`. Best weights are put off until the checkpoint that points at them. A failure is
    raised in the caller's thread, at the next call. Leaving the context waits.

    >>> written = []
    >>> with BackgroundWriter() as writer:
    ...     writer.begin(lambda: written.append("weights"))
    ...     writer.wait()
    ...     written
    ['weights']
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="nearkin-writer")
        self._pending: list[Future[None]] = []
        self._step: int | None = None
        self._put_off: Write | None = None

    def __enter__(self) -> BackgroundWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._pool.shutdown(wait=True)
        if kind is None:
            self.wait()

    def make_way(self, step: int) -> None:
        """Wait for what was given at other steps."""
        if step != self._step:
            self.wait()
        self._step = step

    @property
    def is_busy(self) -> bool:
        """Whether something is still being written."""
        return not all(future.done() for future in self._pending)

    def put_off(self, write: Write) -> None:
        """Have something written just before what is begun next, in the place of what was put off until then."""
        self._put_off = write

    def begin(self, write: Write) -> None:
        """Have something written; the next call, or :meth:`wait`, raises what goes wrong."""
        before = self._pending[-1] if self._pending else None
        first, self._put_off = self._put_off, None

        def after() -> None:
            if before is not None:
                before.result()
            if first is not None:
                first()
            write()

        self._pending.append(self._pool.submit(after))

    def check(self) -> None:
        """Raise a failure that is known by now."""
        if any(future.done() and future.exception() for future in self._pending):
            self.wait()

    def wait(self) -> None:
        """Wait until all is written."""
        pending, self._pending = self._pending, []
        for future in pending:
            future.result()


def copied_to_host(content: Any) -> tuple[Any, Write]:
    """A copy of dictionaries, lists and tensors that stays as it is, in host memory; and what waits until it is there.

    Tensors of a GPU are copied into pinned memory in the order of its work, so that the caller need not wait: whatever
    it does to them next comes later. Tensors that are one and the same stay so.
    """
    copies: dict[tuple[Any, ...], Tensor] = {}

    def copied(value: Any) -> Any:
        if isinstance(value, Tensor):
            key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            if key not in copies:
                copies[key] = _on_host(value.detach())
            return copies[key]
        if isinstance(value, tuple):
            return tuple(copied(each) for each in value)
        if isinstance(value, dict | list):
            value = copy.copy(value)  # with the versions of modules that a state dictionary has as an attribute
            for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
                value[key] = copied(each)
            return value
        return copy.deepcopy(value)

    whole = copied(content)
    devices = {device for device, *_ in copies if device.type == "cuda"}
    copying = [torch.cuda.current_stream(device).record_event() for device in devices]

    def arrive() -> None:
        for event in copying:
            event.synchronize()

    return whole, arrive


def _on_host(value: Tensor) -> Tensor:
    if value.is_cuda:
        return torch.empty_like(value, device="cpu", pin_memory=True).copy_(value, non_blocking=True)
    if value.device.type == "cpu" and value.dtype in _PLAIN:
        # By numpy, in this thread alone: torch's threads would wait for each other at every tensor.
        return torch.from_numpy(np.array(value.numpy(), order="K"))
    return value.to("cpu", copy=True)
