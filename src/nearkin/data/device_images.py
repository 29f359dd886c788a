"""Decoded images on the training device, and crops made there just as Pillow's bilinear ``resize`` with a ``box`` does.

A pixel of a crop is a mean of the source pixels under a triangle as wide as the reduction. Columns are scaled first and
rows second, with weights of 22 bits, and each result is rounded to eight bits. Pillow adds up the same integers, except
that version 13 begins with the rows of tall images: the result then differs by one level, two at most.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images, threaded_map
from nearkin.data.transforms import Box, Hole, Transform
from nearkin.errors import load_kernels

_PIECE = 64 << 20  # bytes that are concatenated and copied at a time


def shapes_of(images: Images) -> NDArray[np.int64]:
    """Height and width of every image, ``[N, 2]``."""
    return np.array([images[row].shape[:2] for row in range(len(images))], dtype=np.int64).reshape(-1, 2)


def erased(crops: Tensor, holes: Sequence[Hole | None], fill: tuple[int, int, int]) -> Tensor:
    """Crops ``[B, size, size, 3]`` with ``holes`` filled with one colour, on the crops' device."""
    if not any(holes):
        return crops
    # One copy to the device: boxes and the colour.
    table = torch.tensor([(*(hole or (0, 0, 0, 0)), *fill) for hole in holes])
    top, left, height, width, *colour = to_device(table, crops.device).T[:, :, None]
    position = torch.arange(crops.shape[1], device=crops.device)
    rows, columns = (position >= top) & (position < top + height), (position >= left) & (position < left + width)
    inside = rows[:, :, None, None] & columns[:, None, :, None]
    return torch.where(inside, torch.cat(colour, dim=1).to(torch.uint8)[:, None, None], crops)


class DeviceImages:
    """Images of different shapes, concatenated in one tensor on ``device``.

    >>> images = DeviceImages(np.full((3, 8, 9, 3), 7, np.uint8), torch.device("cpu"))
    >>> images.crops(np.array([2, 0]), [(0, 0, 9, 8), (1, 1, 5, 5)], [False, True], 4).shape
    torch.Size([2, 4, 4, 3])
    """

    def __init__(self, images: Images, device: torch.device, shapes: NDArray[np.int64] | None = None) -> None:
        self.device = device
        self.shapes = shapes_of(images) if shapes is None else shapes
        ends = np.cumsum(self.shapes.prod(axis=1))
        self.starts = np.concatenate([[0], ends[:-1]])
        self.pixels = torch.empty(int(ends[-1]), 3, dtype=torch.uint8, device=device)

        def joined(rows: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(np.concatenate([images[row].reshape(-1, 3) for row in rows.tolist()]))

        pieces = np.split(np.arange(len(images)), np.flatnonzero(np.diff(3 * ends // _PIECE)) + 1)
        done = 0
        for piece in threaded_map(joined, pieces, workers=4):
            self.pixels[done : done + len(piece)] = piece
            done += len(piece)

    def __len__(self) -> int:
        return len(self.shapes)

    def crops(self, rows: NDArray[np.int64], boxes: Sequence[Box], flips: Sequence[bool], size: int) -> Tensor:
        """``boxes`` of the images in ``rows``, scaled: uint8 ``[B, size, size, 3]`` on the device."""
        cut, mirrored = np.array(boxes, dtype=np.float32).reshape(-1, 4), np.array(flips, dtype=np.bool_)
        return resample(self.pixels, self.starts[rows], self.shapes[rows], cut, mirrored, size)

    def evaluation_crops(self, rows: NDArray[np.int64], transform: Transform) -> Tensor:
        boxes = [transform.centre_box(*shape) for shape in self.shapes[rows].tolist()]
        return self.crops(rows, boxes, [False] * len(rows), transform.size)

    def evaluation_batches(self, rows: NDArray[np.int64], transform: Transform, *, batch_size: int) -> Iterator[Tensor]:
        """Evaluation crops of ``rows`` in order."""
        for start in range(0, len(rows), batch_size):
            yield self.evaluation_crops(rows[start : start + batch_size], transform)


BITS = 22
_CHUNK = 32  # images at a time, in plain PyTorch


def resample(
    pixels: Tensor,
    starts: NDArray[np.int64],
    shapes: NDArray[np.int64],
    boxes: NDArray[np.float32],
    flips: NDArray[np.bool_],
    size: int,
) -> Tensor:
    """Cut ``boxes`` out of images and scale each to ``size`` × ``size``: uint8 ``[B, size, size, 3]``.

    ``pixels`` ``[P, 3]`` are those of all images, row by row; image b begins at ``starts[b]``. ``shapes`` ``[B, 2]``
    are heights and widths, ``boxes`` ``[B, 4]`` left, top, right and bottom, and ``flips`` says what is mirrored.

    >>> image = torch.arange(48, dtype=torch.uint8).view(16, 3)
    >>> box, shape = np.float32([[1, 0, 3, 2]]), np.array([[4, 4]])
    >>> resample(image, np.array([0]), shape, box, np.array([True]), 2)[0, :, :, 0]
    tensor([[ 6,  3],
            [18, 15]], dtype=torch.uint8)
    """
    count = len(boxes)
    begin, end = boxes[:, :2].T.ravel(), boxes[:, 2:].T.ravel()
    scale = (end - begin).astype(np.float64) / size  # the difference in single precision, as Pillow has it
    # One copy to the device: columns, then rows, each with the side of its image; and where the images begin.
    mirrored = np.concatenate([flips, np.zeros_like(flips)])
    table = np.stack([shapes[:, ::-1].T.ravel(), begin, scale, mirrored, np.tile(starts, 2)])
    on_device = to_device(torch.from_numpy(table), pixels.device)
    positions, weights = _taps(on_device[:4], size, int(np.ceil(2 * scale.max(initial=1.0))))
    start, width = on_device[4, :count].long(), on_device[0, :count].long()
    if pixels.is_cuda and (kernel := _kernel()) is not None:
        crops: Tensor = kernel.weighted_means(pixels, start, width, positions, weights)
        return crops
    parts = (start, width, *torch.split(positions, count), *torch.split(weights, count))
    pieces = zip(*(torch.split(part, _CHUNK) for part in parts), strict=True)
    return torch.cat([_weighted_means(pixels, *piece) for piece in pieces])


def _taps(axes: Tensor, size: int, most: int) -> tuple[Tensor, Tensor]:
    """The source pixels that each pixel of the result averages, and their weights: int32 ``[axes, size, most]``.

    ``axes`` holds the side of the image, the beginning of the box, the scale and whether to mirror. This is Pillow's
    ``precompute_coeffs``, in double precision.
    """
    side, begin, scale, mirrored = axes[:, :, None]
    support = scale.clamp(min=1.0)
    position = torch.arange(size, dtype=torch.float64, device=axes.device)
    position = torch.where(mirrored > 0, size - 1 - position, position)
    centre = begin + (position + 0.5) * scale
    first = (centre - support + 0.5).trunc().clamp(min=0.0)
    end = torch.minimum((centre + support + 0.5).trunc(), side)[:, :, None]
    positions = first[:, :, None] + torch.arange(most, dtype=torch.float64, device=axes.device)
    distance = (positions - centre[:, :, None] + 0.5) / support[:, :, None]
    weights = torch.where(positions < end, (1.0 - distance.abs()).clamp(min=0.0), 0.0)
    weights = weights / weights.sum(dim=2, keepdim=True)
    # Positions beyond the image have no weight, but must be readable.
    positions = torch.minimum(positions, side[:, :, None] - 1)
    return positions.to(torch.int32), (weights * (1 << BITS) + 0.5).to(torch.int32)


def _weighted_means(
    pixels: Tensor,
    start: Tensor,
    width: Tensor,
    columns: Tensor,
    rows: Tensor,
    column_weights: Tensor,
    row_weights: Tensor,
) -> Tensor:
    """The two passes. For each row of the result only the few source rows that it needs are scaled."""
    batch, size, most = columns.shape
    half = torch.tensor(1 << (BITS - 1), dtype=torch.int32, device=pixels.device)
    total = half.expand(batch, size, size, 3).clone()
    for down in range(most):
        begins = start[:, None] + rows[:, :, down] * width[:, None]
        scaled = half.expand(batch, size, size, 3).clone()
        for across in range(most):
            taken = pixels[begins[:, :, None] + columns[:, None, :, across]]
            scaled += taken * column_weights[:, None, :, across, None]
        total += (scaled >> BITS) * row_weights[:, :, down, None, None]
    return (total >> BITS).to(torch.uint8)


@functools.cache
def _kernel() -> ModuleType | None:
    """The two passes as one kernel where Triton can build it, else None."""

    def try_out(kernel: ModuleType) -> None:
        pixels = torch.zeros(1, 3, dtype=torch.uint8, device="cuda")
        zeros, ones = (torch.full((2, 1, 2), value, dtype=torch.int32, device="cuda") for value in (0, 1))
        kernel.weighted_means(pixels, zeros[0, :, 0].long(), ones[0, :, 0].long(), zeros, ones)

    otherwise = "crops are made in plain PyTorch, as Triton cannot build its kernel"
    return load_kernels("nearkin.data._resampling_kernel", try_out, otherwise)


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """An asynchronous copy on the device."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)
