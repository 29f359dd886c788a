"""Decoded images on the device that trains, so that crops are made where they are used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images
from nearkin.data.resampling import resample, to_device
from nearkin.data.threads import in_order
from nearkin.data.transforms import Box, Hole, Transform

_PIECE = 64 << 20  # bytes that are put together and copied at a time
_THREADS = 4


def shapes_of(images: Images) -> NDArray[np.int64]:
    """Height and width of every image, ``[N, 2]``.

    >>> shapes_of(np.zeros((2, 8, 9, 3), np.uint8)).tolist()
    [[8, 9], [8, 9]]
    """
    shapes = [images[row].shape[:2] for row in range(len(images))]
    return np.array(shapes, dtype=np.int64).reshape(-1, 2)


def erased(crops: Tensor, holes: list[Hole | None], fill: tuple[int, int, int]) -> Tensor:
    """Crops ``[B, size, size, 3]`` with ``holes`` of one colour, made where the crops are.

    >>> erased(torch.zeros(1, 3, 3, 3, dtype=torch.uint8), [(0, 1, 2, 2)], (7, 8, 9))[0, :, :, 1]
    tensor([[0, 8, 8],
            [0, 8, 8],
            [0, 0, 0]], dtype=torch.uint8)
    """
    if not any(holes):
        return crops
    # One copy to the device: boxes and the colour.
    table = torch.tensor([(*(hole or (0, 0, 0, 0)), *fill) for hole in holes])
    top, left, height, width, *colour = to_device(table, crops.device).T[:, :, None]
    place = torch.arange(crops.shape[1], device=crops.device)
    rows, columns = (place >= top) & (place < top + height), (place >= left) & (place < left + width)
    inside = rows[:, :, None, None] & columns[:, None, :, None]
    return torch.where(inside, torch.cat(colour, dim=1).to(torch.uint8)[:, None, None], crops)


class DeviceImages:
    """Images of different shapes, one after another in one tensor on ``device``.

    Crops are those that Pillow makes of the same boxes, but for single levels of 256 in tall images
    (:mod:`nearkin.data.resampling`).

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
        for piece in in_order(joined, pieces, _THREADS):
            self.pixels[done : done + len(piece)] = piece
            done += len(piece)

    def __len__(self) -> int:
        return len(self.shapes)

    def crops(self, rows: NDArray[np.int64], boxes: list[Box], flips: list[bool], size: int) -> Tensor:
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
