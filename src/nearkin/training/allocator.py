"""Freed memory is kept for the next step, where the system's allocator would hand it back each time.

A step on a CPU takes and frees gigabytes of feature maps. The allocator of glibc asks the kernel for every large one
anew, and the kernel clears each of its pages, which takes a good part of the time of a training step.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

import torch

OFF = "NEARKIN_ALLOCATOR"
"""Environment variable: ``system`` leaves the allocator as it is."""

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Of glibc's ``malloc.h``."""

NEVER = 2**31 - 1


def keep_freed_memory(device: torch.device) -> bool:
    """Let this process keep what it frees, where it computes on the CPU with glibc's allocator; says whether it does.

    Nothing happens elsewhere, nor where the environment already says how memory is to be allocated. The process then
    holds the most that it has ever needed at a time until it ends, and gaps beside: with glibc 2.36 a step that needs
    2.4 GB was seen to hold 3.2 to 3.8.
    """
    return device.type == "cpu" and _set_up()


@cache
def _set_up() -> bool:
    if sys.platform != "linux" or os.environ.get(OFF) == "system" or _is_chosen_by_user(os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):  # musl and others
        return False
    return bool(library.mallopt(M_MMAP_MAX, 0)) and bool(library.mallopt(M_TRIM_THRESHOLD, NEVER))


def _is_chosen_by_user(environment: os._Environ[str] | dict[str, str]) -> bool:
    """Whether the environment tunes glibc's allocator or puts another in its place.

    >>> _is_chosen_by_user({"MALLOC_ARENA_MAX": "1"}), _is_chosen_by_user({"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"})
    (True, True)
    >>> _is_chosen_by_user({"HOME": "/"})
    False
    """
    tuned = any(name.startswith("MALLOC_") for name in environment) or "glibc.malloc" in environment.get(
        "GLIBC_TUNABLES", ""
    )
    return tuned or "malloc" in environment.get("LD_PRELOAD", "")
