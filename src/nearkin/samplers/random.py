"""Random batches: every image once per epoch, in a new order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkin.samplers.sampler import BatchSampler
from nearkin.samplers.stream import generator


class RandomSampler(BatchSampler):
    """Shuffles ``count`` rows each epoch and cuts them into batches, leaving out the last that is not full.

    Fewer rows than a batch make one batch of all of them.

    >>> sampler = RandomSampler(5, batch_size=2, seed=0)
    >>> sampler.batches_per_epoch, [len(sampler.next_batch()) for _ in range(3)]
    (2, [2, 2, 2])
    """

    def __init__(self, count: int, *, batch_size: int, seed: int) -> None:
        if count < 1 or batch_size < 1:
            raise ValueError(f"count and batch_size must be at least 1, got {count} and {batch_size}")
        self.count = count
        self.batch_size = min(batch_size, count)
        self.batches_per_epoch = count // self.batch_size
        self.seed = seed
        self._epoch = -1
        self._order = np.empty(0, dtype=np.int64)

    def next_batch(self) -> NDArray[np.int64]:
        epoch, position = divmod(self.drawn, self.batches_per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = generator(self.seed, epoch).permutation(self.count).astype(np.int64)
        self.drawn += 1
        return self._order[position * self.batch_size : (position + 1) * self.batch_size]
