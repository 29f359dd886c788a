"""Depthwise convolution on a CPU whose backward pass takes the fast path, and keeps no padded feature map."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Sides = tuple[int, ...]
"""Zeros before and after; or steps by rows and columns."""

WINDOW = 3
"""Columns of a kernel whose weight gradient oneDNN has a depthwise kernel for; for a wider one it takes the kernel of
grouped convolutions, which computes sixteen channels by sixteen to use the diagonal: ten times as long for 5 × 5."""


def padded_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, rows: Sides, columns: Sides, groups: int
) -> Tensor:
    """Convolution of ``x`` with as many zeros before and after its rows and columns, at most one more after.

    The odd zero goes before the kernel instead of after the image, which does the same without a copy of the image.

    >>> x, weight = torch.arange(6.0).view(1, 1, 1, 6), torch.tensor([[[[1.0, 10.0, 100.0]]]])
    >>> padded_convolution(x, weight, None, (1, 2), (0, 0), (0, 1), 1)
    tensor([[[[210., 432.,  54.]]]])
    """
    weight = F.pad(weight, (columns[1] - columns[0], 0, rows[1] - rows[0], 0))
    return F.conv2d(x, weight, bias, stride, (rows[1], columns[1]), groups=groups)


def depthwise_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, rows: Sides, columns: Sides
) -> Tensor:
    """:func:`padded_convolution` with a kernel for every channel, and a backward pass of its own."""
    return _Depthwise.apply(x, weight, bias, stride, rows, columns)  # type: ignore[no-any-return, no-untyped-call]


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sides, rows: Sides, columns: Sides
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.geometry = stride, rows, columns
        return padded_convolution(x, weight, bias, stride, rows, columns, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        stride, rows, columns = ctx.geometry
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        into_x = into_weight = into_bias = None
        if needs_x:
            wide = F.pad(weight, (columns[1] - columns[0], 0, rows[1] - rows[0], 0))
            into_x = _backward(gradient, x, wide, stride, (rows[1], columns[1]), (True, False, False))[0]
        if needs_weight or needs_bias:
            into_weight, into_bias = _into_kernels(gradient, x, weight, stride, rows, columns)
        return into_x, into_weight, into_bias if needs_bias else None, None, None, None


def _into_kernels(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Sides, rows: Sides, columns: Sides
) -> tuple[Tensor, Tensor]:
    """Gradients of kernels and biases, a window of columns at a time: each sees the image shifted to its first one."""
    width = weight.shape[-1]
    window = min(WINDOW, width)
    around, padding = ((0, 0), (rows[0], 0)) if rows[0] == rows[1] else (rows, (0, 0))
    into_weight = torch.empty_like(weight)
    for start in {*range(0, width - window, window), width - window}:
        seen = F.pad(x, (columns[0] - start, columns[1] - (width - window - start), *around))
        kernel = weight[..., start : start + window].contiguous()
        _, part, into_bias = _backward(gradient, seen, kernel, stride, padding, (False, True, True))
        into_weight[..., start : start + window] = part
    return into_weight, into_bias


def _backward(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Sides, padding: Sides, wanted: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten.convolution_backward(  # type: ignore[no-any-return]
        gradient, x, weight, [len(weight)], stride, padding, (1, 1), False, (0, 0), len(weight), wanted
    )
