"""A first-in-first-out queue of the embeddings of past batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nearkin.numerics import at_least_float32


class EmbeddingQueue(nn.Module):
    """The last ``size`` embeddings and their labels, without gradient.

    Position and fill are Python numbers, so that no step waits for a device. Everything is in ``state_dict``.

    >>> queue = EmbeddingQueue(3)
    >>> queue.put(torch.tensor([[1.0], [2.0]]), torch.tensor([7, 7]))
    >>> queue.put(torch.tensor([[3.0], [4.0]]), torch.tensor([8, 9]))
    >>> queue.embeddings.flatten(), queue.labels
    (tensor([4., 2., 3.]), tensor([9, 7, 8]))
    """

    _rows: Tensor
    _labels: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.fill = 0
        self._next = 0
        # The dimension, the precision and the device are those of the first batch.
        self.register_buffer("_rows", torch.zeros(size, 0))
        self.register_buffer("_labels", torch.zeros(size, dtype=torch.int64))

    @property
    def embeddings(self) -> Tensor:
        return self._rows[: self.fill]

    @property
    def labels(self) -> Tensor:
        return self._labels[: self.fill]

    @torch.no_grad()
    def put(self, embeddings: Tensor, labels: Tensor) -> None:
        """Replace the oldest rows; of a batch larger than the queue keep the last rows."""
        if not self.fill:
            self._rows = at_least_float32(embeddings).new_zeros(self.size, embeddings.shape[1])
            self._labels = self._labels.to(embeddings.device)
        count = min(len(embeddings), self.size)
        slots = torch.arange(self._next, self._next + count, device=embeddings.device) % self.size
        self._rows.index_copy_(0, slots, embeddings[-count:].to(self._rows.dtype))
        self._labels.index_copy_(0, slots, labels[-count:].to(self._labels.dtype))
        self._next = (self._next + count) % self.size
        self.fill = min(self.fill + count, self.size)

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self._next, self.fill])

    def set_extra_state(self, state: Tensor) -> None:
        self._next, self.fill = state.tolist()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(f"{prefix}_rows")
        if stored is not None and len(stored) == self.size:
            self._rows = torch.empty_like(stored, device=self._rows.device)
        super()._load_from_state_dict(state_dict, prefix, *args)
