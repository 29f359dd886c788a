"""Which device a run computes on, in which precision, and how that is written into its record."""

from __future__ import annotations

import os
import platform
import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from nearkin import ranks
from nearkin.errors import RecipeError
from nearkin.numerics import tf32


def pick_device(name: str = "auto") -> torch.device:
    """The named device, or the best there is: CUDA, then Apple's MPS, then the CPU.

    Of several processes on a machine each takes a GPU of its own, unless one is named by its number.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    # Says that torch's own backward thread has just made itself at home on the GPU; nothing a person could act on.
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
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(device.type, False):
        raise RecipeError(f"device {name!r} is not available here: use training.device=auto or cpu")
    if several and device.type == "mps":
        raise RecipeError("several processes cannot share device 'mps': use training.device=cpu, or one process")
    if several and device.type == "cuda":
        if device.index is None and ranks.local_rank() >= torch.cuda.device_count():
            raise RecipeError(
                f"there are {torch.cuda.device_count()} GPUs on this machine and more processes: start torchrun with "
                f"--nproc-per-node={torch.cuda.device_count()}, or name one for all with training.device=cuda:0"
            )
        device = torch.device("cuda", ranks.local_rank() if device.index is None else device.index)
        torch.cuda.set_device(device)
    return device


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    """The dtype to run the network in, or None for plain float32.

    ``auto`` means bf16 on a GPU that has it and float32 elsewhere; ``tf32`` is float32 here (:func:`float32_products`).
    """
    if precision == "auto":
        bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if bf16 else None
    if precision == "fp16" and device.type == "cpu":
        raise RecipeError("training.precision=fp16 needs a GPU: use float32 or bf16 on the CPU")
    return {"float32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def precision_on(device: torch.device, precision: str) -> str:
    """What a precision comes to on a device.

    >>> precision_on(torch.device("cpu"), "auto"), precision_on(torch.device("cpu"), "tf32")
    ('float32', 'float32')
    """
    if precision == "tf32" and device.type == "cuda":
        return precision
    return str(autocast_dtype(precision, device) or torch.float32).removeprefix("torch.")


def autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def float32_products(precision: str) -> AbstractContextManager[object]:
    """Within, CUDA multiplies and convolves float32 as ``float32`` or ``tf32`` says; other precisions change nothing.

    Losses are computed in float32 all the same, but for matrix products of their backward pass.
    """
    return tf32(precision == "tf32") if precision in ("float32", "tf32") else nullcontext()


def describe_hardware(device: torch.device) -> str:
    """One line for tables: the GPU's name, or the processor with its cores; of several processes, how many."""
    several = "" if ranks.world() == 1 else f"{ranks.world()} processes, each: "
    if device.type == "cuda":
        return several + torch.cuda.get_device_name(device)
    cores = os.cpu_count() or 1
    return f"{several}{device.type.upper()}, {platform.machine()}, {cores} cores, {torch.get_num_threads()} threads"


def peak_process_memory() -> int:
    """The most bytes of memory that this process has held, or 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
