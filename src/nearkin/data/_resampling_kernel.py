"""The two passes of :mod:`nearkin.data.device_images` as one kernel, with what lies between them in registers."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from nearkin.data.device_images import BITS

_BLOCK = 256


def weighted_means(pixels: Tensor, start: Tensor, width: Tensor, positions: Tensor, weights: Tensor) -> Tensor:
    """``[B, size, size, 3]``; ``positions`` and ``weights`` of the columns come first, then those of the rows."""
    batch = len(start)
    _, size, most = positions.shape
    crops = torch.empty(batch, size, size, 3, dtype=torch.uint8, device=pixels.device)
    grid = (triton.cdiv(size * size, _BLOCK), batch)
    with torch.cuda.device_of(pixels):  # Triton launches on whatever device is the present one
        _kernel[grid](pixels, start, width, positions, weights, crops, batch, size, most, BITS, _BLOCK)
    return crops


@triton.jit
def _kernel(
    pixels,
    start,
    width,
    positions,
    weights,
    crops,
    batch,
    SIZE: tl.constexpr,
    MOST: tl.constexpr,
    BITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(1).to(tl.int64)
    spot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = spot < SIZE * SIZE
    column = (image * SIZE + spot % SIZE) * MOST
    row = ((batch + image) * SIZE + spot // SIZE) * MOST
    begin, wide = tl.load(start + image), tl.load(width + image)
    half = 1 << (BITS - 1)
    red = tl.full([BLOCK], half, tl.int32)
    green = tl.full([BLOCK], half, tl.int32)
    blue = tl.full([BLOCK], half, tl.int32)
    for down in range(MOST):
        line = begin + tl.load(positions + row + down, mask=inside, other=0) * wide
        part_red = tl.full([BLOCK], half, tl.int32)
        part_green = tl.full([BLOCK], half, tl.int32)
        part_blue = tl.full([BLOCK], half, tl.int32)
        for across in range(MOST):
            source = pixels + 3 * (line + tl.load(positions + column + across, mask=inside, other=0))
            weight = tl.load(weights + column + across, mask=inside, other=0)
            part_red += tl.load(source, mask=inside, other=0).to(tl.int32) * weight
            part_green += tl.load(source + 1, mask=inside, other=0).to(tl.int32) * weight
            part_blue += tl.load(source + 2, mask=inside, other=0).to(tl.int32) * weight
        weight = tl.load(weights + row + down, mask=inside, other=0)
        red += (part_red >> BITS) * weight
        green += (part_green >> BITS) * weight
        blue += (part_blue >> BITS) * weight
    target = crops + 3 * (image * SIZE * SIZE + spot)
    tl.store(target, (red >> BITS).to(tl.uint8), mask=inside)
    tl.store(target + 1, (green >> BITS).to(tl.uint8), mask=inside)
    tl.store(target + 2, (blue >> BITS).to(tl.uint8), mask=inside)
