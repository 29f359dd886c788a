"""Memory that is full in the middle of the work: what to say in the place of a traceback."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from nearkin.errors import LackOfMemoryError

ON_A_GPU = (
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "MPS backend out of",
)
"""What is said where it was not PyTorch's own allocator that had no more."""

LESS = (
    "take fewer images at a time (training.batch_size or, for the same training in pieces, training.micro_batch; "
    "training.evaluation_batch_size) or smaller ones (data.image_size)"
)
KEPT = "What was saved is kept: --resume goes on from there, and of a study the same command"


@contextlib.contextmanager
def memory_watched() -> Iterator[None]:
    """Memory that is full within becomes an error that says what to do."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (full := lack_of_memory(error)) is None:
            raise
        raise full from error


def lack_of_memory(error: BaseException) -> LackOfMemoryError | None:
    """What to tell a person of ``error``, or None where it is of something else.

    >>> print(lack_of_memory(MemoryError("Unable to allocate 7 TiB")))
    this machine's memory is full (Unable to allocate 7 TiB): take fewer images at a time (training.batch_size ...
    >>> lack_of_memory(ValueError("7 TiB")) is None
    True
    """
    said = str(error)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in said:
        reason = said.splitlines()[0].rpartition("DefaultCPUAllocator: ")[2] if said else "no more was to be had"
        return LackOfMemoryError(f"this machine's memory is full ({reason}): {LESS}. {KEPT}")
    # By its name, as torch is too slow to import for a command that does without.
    if type(error).__name__ == "OutOfMemoryError" or any(each in said for each in ON_A_GPU):
        return LackOfMemoryError(f"the GPU's memory is full{_figures()}. {KEPT}")
    return None


def _figures() -> str:
    """Who holds it, as far as that can be known, and what to do then."""
    try:
        cuda = sys.modules["torch"].cuda
        (free, total), own = cuda.mem_get_info(), cuda.memory_reserved()
    except (KeyError, RuntimeError, AssertionError):  # no torch, no CUDA, or not even room to ask
        return f": {LESS}"
    others = max(0, total - free - own)
    shown = f" ({own / 1e9:.1f} of its {total / 1e9:.0f} GB held by this process, {others / 1e9:.1f} by others)"
    if others > total / 10:
        return f"{shown}: wait for the others, run fewer at a time (--jobs), or {LESS}"
    return f"{shown}: {LESS}"
