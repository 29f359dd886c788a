"""Evaluation crops, made once: they are the same at every evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nearkin.data.cache import Images
from nearkin.data.loader import evaluation_batches
from nearkin.data.transforms import Transform


class KeptCrops:
    """The evaluation crops of whatever was asked for, as uint8 on ``device``, up to ``budget`` bytes of them.

    What does not fit is made anew each time.
    """

    def __init__(
        self, images: Images, transform: Transform, device: torch.device, *, budget: int, workers: int | None = None
    ) -> None:
        self.images = images
        self.transform = transform
        self.device = device
        self.budget = budget
        self.workers = workers
        self._kept: dict[bytes, Tensor] = {}

    def batches(self, rows: NDArray[np.int64], *, batch_size: int) -> Iterator[Tensor]:
        """Crops of ``rows`` in order, ``[B, H, W, 3]``; those of the first time wherever these rows come again."""
        key = blake2b(rows.tobytes()).digest()
        if key in self._kept:
            yield from torch.split(self._kept[key], batch_size)
            return
        made = evaluation_batches(self.images, self.transform, batch_size=batch_size, workers=self.workers, rows=rows)
        shape = (len(rows), self.transform.size, self.transform.size, 3)
        if (needed := int(np.prod(shape))) > self.budget:
            yield from made
            return
        with torch.inference_mode(False):
            kept = torch.empty(shape, dtype=torch.uint8, device=self.device)
        done = 0
        for crops in made:
            part = kept[done : done + len(crops)]
            part.copy_(crops)
            done += len(crops)
            yield part
        self._kept[key] = kept
        self.budget -= needed
