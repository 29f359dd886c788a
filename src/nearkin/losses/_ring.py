"""A first-in-first-out memory of rows, as past embeddings are kept in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Ring:
    """Where the next row of a memory of ``size`` rows goes, and how many it holds.

    Counted on the host, where the batch sizes are known: asking a device for them would make every step wait. The
    tensors belong to the loss, which has them in its ``state_dict``.

    >>> ring, memory, owners = Ring(3), torch.zeros(3), torch.zeros(3)
    >>> ring.put(torch.tensor([1.0, 2.0]), memory, torch.tensor([7, 7]), owners)
    >>> ring.put(torch.tensor([3.0, 4.0]), memory, torch.tensor([8, 9]), owners)
    >>> memory, owners, ring.fill, ring.pointer
    (tensor([4., 2., 3.]), tensor([9., 7., 8.]), 3, 1)
    """

    size: int
    pointer: int = 0
    fill: int = 0

    def put(self, rows: Tensor, memory: Tensor, labels: Tensor, memory_labels: Tensor) -> None:
        """Write ``rows`` over the oldest ones, and their labels beside them; of too many only the last are kept."""
        count = min(len(rows), self.size)
        slots = torch.arange(self.pointer, self.pointer + count, device=memory.device) % self.size
        memory.index_copy_(0, slots, rows[-count:].to(memory.dtype))
        memory_labels.index_copy_(0, slots, labels[-count:].to(memory_labels.dtype))
        self.pointer = (self.pointer + count) % self.size
        self.fill = min(self.fill + count, self.size)
