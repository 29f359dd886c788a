"""Balanced batches: so many classes, so many images of each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nearkin.samplers.sampler import ClassSampler
from nearkin.samplers.stream import FairStream


class BalancedSampler(ClassSampler):
    """Batches of ``batch_size / images_per_class`` classes with ``images_per_class`` images each.

    Classes come in shuffled rounds, and so do the images of each class, over the whole run and not only within an
    epoch: at any moment no class has had more than one turn more than another, and no image of a class more than one
    turn more than its sisters. A class with fewer images than a group repeats them.

    >>> sampler = BalancedSampler(np.array([0, 0, 0, 1, 1, 2, 2]), batch_size=4, images_per_class=2, seed=0)
    >>> labels = np.array([0, 0, 0, 1, 1, 2, 2])
    >>> np.unique(labels[sampler.next_batch()], return_counts=True)[1].tolist()
    [2, 2]
    """

    def __init__(self, labels: NDArray[np.int64], *, batch_size: int, images_per_class: int, seed: int) -> None:
        super().__init__(labels, batch_size=batch_size, images_per_class=images_per_class)
        self._classes = FairStream(len(self.rows), self.classes_per_batch, seed=seed, stream=(0,))
        self._images = [
            FairStream(len(rows), images_per_class, seed=seed, stream=(1, label))
            for label, rows in enumerate(self.rows)
        ]

    def next_batch(self) -> NDArray[np.int64]:
        classes = self._classes[self.drawn]
        turns = self._classes.round_of(self.drawn)
        self.drawn += 1
        return np.concatenate(
            [self.rows[c][self._images[c][t]] for c, t in zip(classes.tolist(), turns.tolist(), strict=True)]
        )
