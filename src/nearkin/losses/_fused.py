"""Whether the fused kernels can be used here."""

from __future__ import annotations

import functools
from types import ModuleType

import torch
from torch import Tensor

from nearkin.triton_kernels import load_kernels


def kernels_for(x: Tensor) -> ModuleType | None:
    """The fused kernels where they apply, which is to float32 on a CUDA device; None where plain PyTorch has to do.

    >>> kernels_for(torch.ones(2)) is None
    True
    """
    return _kernels() if x.is_cuda and x.dtype == torch.float32 else None


@functools.cache
def _kernels() -> ModuleType | None:
    def try_out(kernels: ModuleType) -> None:
        kernels.units_and_lengths(torch.ones(1, 1, device="cuda"), torch.ones(1, 1, device="cuda"), 1e-12)

    otherwise = "fused kernels are off, as Triton cannot build them here"
    return load_kernels("nearkin.losses._kernels", try_out, otherwise)
