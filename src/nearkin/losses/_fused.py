"""Whether the fused kernels can be used here."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from types import ModuleType

import torch
from torch import Tensor


def kernels_for(x: Tensor) -> ModuleType | None:
    """The fused kernels where they apply, which is to float32 on a CUDA device; None where plain PyTorch has to do.

    >>> kernels_for(torch.ones(2)) is None
    True
    """
    return _kernels() if x.is_cuda and x.dtype == torch.float32 else None


@functools.cache
def _kernels() -> ModuleType | None:
    if importlib.util.find_spec("triton") is None:
        return None
    try:
        kernels = importlib.import_module("nearkin.losses._kernels")
        kernels.units_and_lengths(torch.ones(1, 1, device="cuda"), torch.ones(1, 1, device="cuda"), 1e-12)
    except Exception as error:  # whatever a compiler that is missing or does not fit may raise
        warnings.warn(f"fused kernels are off, as Triton cannot build them here: {error}", stacklevel=2)
        return None
    return kernels
