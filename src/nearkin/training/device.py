"""The device of a run: which one, and its precision, allocator and CUDA graphs."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from nearkin import ranks
from nearkin.encoders import Encoder
from nearkin.errors import RecipeError, notice
from nearkin.numerics import tf32


def pick_device(name: str = "auto") -> torch.device:
    """The named device, or the best available one: CUDA, then Apple's MPS, then the CPU.

    Several processes on a machine each take a GPU of their own, unless one is named by its number.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    # A warning that nobody could act on.
    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
    several = ranks.world() > 1
    if name == "auto" and torch.cuda.is_available():
        name = "cuda"
    elif name == "auto":
        return torch.device("mps" if torch.backends.mps.is_available() and not several else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RecipeError(f"unknown device {name!r}: use auto, cpu, cuda, cuda:1 or mps") from error
    mps = torch.backends.mps.is_available() and not several  # which processes cannot share
    if not {"cpu": True, "cuda": torch.cuda.is_available(), "mps": mps}.get(device.type, False):
        raise RecipeError(f"device {name!r} is not available here: use training.device=auto or cpu")
    if several and device.type == "cuda":
        if device.index is None and ranks.local_rank() >= torch.cuda.device_count():
            raise RecipeError(
                f"there are more processes than GPUs: give torchrun --nproc-per-node={torch.cuda.device_count()}, or "
                f"name one for all with training.device=cuda:0"
            )
        device = torch.device("cuda", ranks.local_rank() if device.index is None else device.index)
        torch.cuda.set_device(device)
    return device


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The dtype for autocast of the network, or None for plain float32.

    ``auto`` is bf16 on a GPU that has it and float32 elsewhere; ``tf32`` is float32 here (:func:`float32_products`).
    """
    if precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if bf16 else None
    if precision == "fp16" and device.type == "cpu":
        raise RecipeError("training.precision=fp16 needs a GPU: use float32 or bf16 on the CPU")
    return {"float32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def float32_products(precision: str) -> AbstractContextManager[object]:
    """A context in which CUDA multiplies and convolves in the precision ``float32`` or ``tf32``."""
    return tf32(precision == "tf32") if precision in ("float32", "tf32") else nullcontext()


def describe_hardware(device: torch.device) -> str:
    """One line for tables: the GPU's name, or the processor with its cores."""
    several = "" if ranks.world() == 1 else f"{ranks.world()} processes, each: "
    if device.type == "cuda":
        return several + torch.cuda.get_device_name(device)
    counts = ((os.cpu_count() or 1, "core"), (torch.get_num_threads(), "thread"))
    cores, threads = (f"{count} {noun}{'s' * (count != 1)}" for count, noun in counts)
    return f"{several}{device.type.upper()}, {platform.machine()}, {cores}, {threads}"


def peak_process_memory() -> int:
    """The peak memory of this process in bytes, or 0 where the system does not report it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


@cache
def keep_freed_memory(device: torch.device) -> bool:
    """Let this process keep freed memory, where it computes on the CPU with glibc's allocator; returns whether it does.

    A step on a CPU allocates and frees gigabytes of feature maps. glibc requests every large one from the kernel again,
    which clears each page; that takes a good part of a step. With this the process holds on to its peak memory instead.
    Nothing is changed where the environment tunes or replaces the allocator.
    """
    tuned = any(name.startswith("MALLOC_") for name in os.environ)
    tuned = tuned or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if device.type != "cpu" or sys.platform != "linux" or tuned or "malloc" in os.environ.get("LD_PRELOAD", ""):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version") or not hasattr(library, "mallopt"):  # musl and others
        return False
    m_trim_threshold, m_mmap_max = -1, -4  # of glibc's malloc.h
    return bool(library.mallopt(m_mmap_max, 0)) and bool(library.mallopt(m_trim_threshold, 2**31 - 1))


class GraphedEncoder:
    """``encoder(images)`` in training mode, by CUDA graphs for batches of one shape.

    At small batches the host takes longer to launch the network's kernels than the GPU to compute them; a graph
    launches all at once. It holds on to the memory of its feature maps. Graphs are made from the first batch, and again
    when other weights take gradients, as after a warm-up. Batches of another shape go through the encoder as usual, and
    so do all batches where no graphs can be made.
    """

    def __init__(self, encoder: Encoder, device: torch.device, dtype: torch.dtype | None) -> None:
        self.encoder = encoder
        self.dtype = dtype
        self.on = device.type == "cuda"
        self._weights = list(encoder.parameters())
        self._shape: torch.Size | None = None
        self._trained = -1
        self._graphed: Callable[..., Any] | None = None

    def __call__(self, images: Tensor) -> Tensor:
        if self.on and self._shape in (None, images.shape):
            trained = sum(weight.requires_grad for weight in self._weights)
            if trained != self._trained:
                self._shape, self._trained = images.shape, trained
                self._make(images)
            if self._graphed is not None:
                # The next batch overwrites the graph's output.
                return self._graphed(images).clone()  # type: ignore[no-any-return]
        return self.encoder(images)  # type: ignore[no-any-return]

    def _make(self, images: Tensor) -> None:
        self._graphed = None  # frees the memory of the graphs before
        # The passes that prepare the graphs must change neither running means nor random states.
        buffers = [buffer.clone() for buffer in self.encoder.buffers()]
        random = torch.cuda.get_rng_state(images.device)
        # Expected: weights accumulated gradients on another stream while the graphs were made.
        warnings.filterwarnings("ignore", message="The AccumulateGrad node's stream does not match")
        try:
            # Outside of autocast, whose cache of weights already cast would be missing in the graphs.
            with torch.autocast("cuda", enabled=False):
                self._graphed = torch.cuda.make_graphed_callables(
                    _Cast(self.encoder, self.dtype), (images.clone(),), allow_unused_input=True
                )
        except RuntimeError as error:
            self.on = False
            torch.cuda.empty_cache()
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            notice(f"training continues without CUDA graphs, which cannot be made of this network: {reason}")
        with torch.no_grad():
            for buffer, before in zip(self.encoder.buffers(), buffers, strict=True):
                buffer.copy_(before)
        torch.cuda.set_rng_state(random, images.device)


class _Cast(nn.Module):
    def __init__(self, encoder: Encoder, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=self.dtype, enabled=self.dtype is not None, cache_enabled=False):
            return self.encoder(images)  # type: ignore[no-any-return]
