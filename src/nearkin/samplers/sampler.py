"""What the loop asks of a sampler, and what samplers of classes have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray


class BatchSampler(ABC):
    """Decides which rows of the training table make the next batch.

    A sampler never ends; ``batches_per_epoch`` says what the loop counts as an epoch. ``lookahead`` is how many
    batches may be drawn before they are used: 0 for a sampler that looks at what training has just done.
    """

    lookahead = 4
    batches_per_epoch: int
    drawn = 0
    """How many batches there have been, which is all that a sampler without further state must remember."""

    @abstractmethod
    def next_batch(self) -> NDArray[np.int64]: ...

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = int(state["drawn"])


class ClassSampler(BatchSampler):
    """Batches of ``batch_size / images_per_class`` classes (all, where there are fewer), as many images of each.

    ``rows`` are the rows of each class.
    """

    def __init__(self, labels: NDArray[np.int64], *, batch_size: int, images_per_class: int) -> None:
        if batch_size < images_per_class or batch_size % images_per_class:
            raise ValueError(f"batch_size ({batch_size}) must be a multiple of images_per_class ({images_per_class})")
        order = np.argsort(labels, kind="stable")
        _, starts = np.unique(labels[order], return_index=True)
        self.rows = np.split(order.astype(np.int64), starts[1:])
        self.classes_per_batch = min(batch_size // images_per_class, len(self.rows))
        self.batch_size = self.classes_per_batch * images_per_class
        self.batches_per_epoch = max(1, len(labels) // self.batch_size)
