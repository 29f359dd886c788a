"""The passes of :mod:`nearkin.encoders.backbone`, in Triton's language, for feature maps with channels last.

Such a map is a matrix with a row for each position and a column for each channel. Sums are taken in a fixed order, so
that the same batch gives the same gradient to the last bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_ROWS = 32
_PROGRAMS = 2048
"""About so many, so that every processor of a large GPU has several to go on with while memory answers."""


def offset_relu_(x: Tensor, offset: Tensor, shortcut: Tensor | None) -> None:
    """``relu(x + offset + shortcut)`` over ``x``."""
    count = x.numel()
    with torch.cuda.device_of(x):  # Triton launches on whatever device is the present one
        _forward_kernel[(triton.cdiv(count, _BLOCK),)](
            x, offset.contiguous(), x if shortcut is None else shortcut, count, x.shape[1], shortcut is not None, _BLOCK
        )


def gradients(gradient: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Of what went into ReLU, as ``gradient``; and of the offset, float32 ``[C]``. ``y`` is what came out."""
    channels = y.shape[1]
    positions = y.numel() // channels
    columns = min(128, triton.next_power_of_2(channels))
    across = triton.cdiv(channels, columns)
    # A power of two, since each number of steps is a kernel of its own.
    steps = triton.next_power_of_2(triton.cdiv(positions * across, _PROGRAMS * _ROWS))
    down = triton.cdiv(positions, steps * _ROWS)
    result = torch.empty_like(y)
    sums = torch.empty(down, channels, dtype=torch.float32, device=y.device)
    with torch.cuda.device_of(y):
        _backward_kernel[(down, across)](gradient, y, result, sums, positions, channels, steps, _ROWS, columns)
    return result, sums.sum(dim=0)


@triton.jit
def _forward_kernel(
    x, offset, shortcut, count, CHANNELS: tl.constexpr, HAS_SHORTCUT: tl.constexpr, BLOCK: tl.constexpr
):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    within = tl.arange(0, BLOCK)
    element = first + within
    inside = element < count
    value = tl.load(x + element, mask=inside).to(tl.float32)
    channel = ((first % CHANNELS).to(tl.int32) + within) % CHANNELS
    value += tl.load(offset + channel, mask=inside).to(tl.float32)
    if HAS_SHORTCUT:
        value += tl.load(shortcut + element, mask=inside).to(tl.float32)
    # As a comparison that NaN fails, so that it comes out as NaN and stops the run.
    tl.store(x + element, tl.where(value <= 0, 0.0, value), mask=inside)


@triton.jit
def _backward_kernel(
    gradient,
    y,
    result,
    sums,
    positions,
    CHANNELS: tl.constexpr,
    STEPS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    first = tl.program_id(0).to(tl.int64) * (STEPS * ROWS)
    gradient += first * CHANNELS
    y += first * CHANNELS
    result += first * CHANNELS
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for step in range(STEPS):
        row = step * ROWS + tl.arange(0, ROWS)
        inside = (first + row < positions)[:, None] & (column < CHANNELS)[None, :]
        element = row[:, None] * CHANNELS + column[None, :]
        value = tl.load(gradient + element, mask=inside, other=0.0).to(tl.float32)
        value = tl.where(tl.load(y + element, mask=inside, other=0.0).to(tl.float32) <= 0, 0.0, value)
        tl.store(result + element, value, mask=inside)
        total += value
    tl.store(sums + tl.program_id(0) * CHANNELS + column, tl.sum(total, axis=0), mask=column < CHANNELS)
