"""``relu(x + offset + shortcut)`` behind a convolution: one pass over the feature map each way on a GPU.

PyTorch adds a convolution's bias, adds the shortcut and applies ReLU in passes of their own, and goes over the gradient
twice again, for ReLU and for the bias. A step of a ResNet-50 spends almost half of its time on these.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearkin.errors import load_kernels

LARGE = 1 << 22
"""Elements of a feature map from which on one pass pays without gradients. A kernel of Triton's takes the host longer
to launch than two of PyTorch's, which are done with a small map before that; training launches all as one graph."""


def is_fused(x: Tensor) -> bool:
    """Whether feature maps like ``x`` are worth one pass, and can have it: on a GPU, channels last, with Triton."""
    if not x.is_cuda or x.dtype == torch.float64 or not x.is_contiguous(memory_format=torch.channels_last):
        return False
    return (torch.is_grad_enabled() or x.numel() >= LARGE) and _kernels() is not None


def offset_relu(x: Tensor, offset: Tensor, shortcut: Tensor | None = None) -> Tensor:
    """``relu(x + offset + shortcut)``, written over ``x``.

    Args:
        x: ``[B, C, h, w]``, what a convolution made; nothing else may need it.
        offset: ``[C]``.
        shortcut: as ``x``.

    >>> offset_relu(torch.tensor([[[[-1.0]], [[1.0]]]]), torch.tensor([0.5, 0.5])).flatten()
    tensor([0.0000, 1.5000])
    """
    if not is_fused(x):
        x = x.add_(offset.view(-1, 1, 1))
        return torch.relu_(x if shortcut is None else x.add_(shortcut))
    if torch.is_grad_enabled():
        return _OffsetReLU.apply(x, offset, shortcut)  # type: ignore[no-untyped-call, no-any-return]
    return _in_one_pass(x, offset, shortcut)


class _OffsetReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, offset: Tensor, shortcut: Tensor | None) -> Tensor:
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, offset)
        return _in_one_pass(x, offset, shortcut)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        y, offset = ctx.saved_tensors
        gradient = _channels_last(gradient)
        for_offset = None
        if ctx.needs_input_grad[1]:
            kernels = _kernels()
            assert kernels is not None
            gradient, for_offset = kernels.gradients(gradient, y)
            for_offset = for_offset.to(offset.dtype)
        else:
            gradient = torch.ops.aten.threshold_backward(gradient, y, 0)
        return gradient, for_offset, gradient if ctx.needs_input_grad[2] else None


def _in_one_pass(x: Tensor, offset: Tensor, shortcut: Tensor | None) -> Tensor:
    kernels = _kernels()
    assert kernels is not None
    kernels.offset_relu_(x, offset, None if shortcut is None else _channels_last(shortcut))
    return x


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


@functools.cache
def _kernels() -> ModuleType | None:
    """The two passes as kernels, where Triton can build them; None where plain PyTorch has to do."""

    def try_out(kernels: ModuleType) -> None:
        x = torch.zeros(1, 8, 2, 2, dtype=torch.bfloat16, device="cuda").contiguous(memory_format=torch.channels_last)
        kernels.offset_relu_(x, torch.zeros(8, device="cuda"), x.clone())
        kernels.gradients(x, x)

    otherwise = "convolution, offset and ReLU take a pass each, as Triton cannot build their kernel"
    return load_kernels("nearkin.encoders._offset_relu_kernel", try_out, otherwise)
