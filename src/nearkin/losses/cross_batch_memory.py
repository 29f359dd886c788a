"""Cross-batch memory: a pair loss that also sees the embeddings of past batches."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.losses.embedding_queue import EmbeddingQueue
from nearkin.losses.pair_loss import PairLoss
from nearkin.numerics import Labels, at_least_float32, check_at_least, checked_labels

__all__ = ["CrossBatchMemory"]


class CrossBatchMemory(nn.Module):
    r"""Cross-batch memory, XBM (Wang et al., CVPR 2020), around any pair loss.

    .. math::
        L(\text{batch}) + L(\text{batch vs memory})

    The memory is a queue of the last ``size`` embeddings, without gradient. It starts after ``warmup_steps``, when
    embeddings drift slowly enough for old ones to be useful. A batch is stored after it was compared with the memory.
    Only training mode counts steps and stores. The memory and the number of steps are in ``state_dict``.

    Args:
        pair_loss: the loss L.
        size: number of embeddings kept. The CCP paper compares sizes of 1 and 8 times the number of classes.
        warmup_steps: training steps before the memory starts.

    Example:
        >>> from nearkin.losses import Contrastive
        >>> loss = CrossBatchMemory(Contrastive(), size=4, warmup_steps=0)
        >>> x, y = torch.eye(2), torch.tensor([0, 0])
        >>> loss(x, y), loss(x, y), loss.memory.fill
        (tensor(1.4142), tensor(2.8284), 4)
    """

    def __init__(self, pair_loss: PairLoss, *, size: int, warmup_steps: int = 1000) -> None:
        super().__init__()
        check_at_least(1, size=size)
        check_at_least(0, warmup_steps=warmup_steps)
        self.pair_loss = pair_loss
        self.size = size
        self.warmup_steps = warmup_steps
        self.steps = 0
        self.memory = EmbeddingQueue(size)

    def forward(self, embeddings: Tensor, labels: Labels) -> Tensor:
        loss: Tensor = self.pair_loss(embeddings, labels)
        return loss + self.memory_loss(embeddings, labels)

    def memory_loss(self, embeddings: Tensor, labels: Labels) -> Tensor:
        """The term of the memory alone; in training mode it also counts the step and stores the batch.

        A method that chooses the pairs within the batch itself calls this once per step instead of the module.
        """
        memory, columns, expected = self.memory, embeddings.shape[-1], self.memory.embeddings.shape[1]
        if memory.fill and columns != expected:
            raise ValueError(f"embeddings must have {expected} columns, as those in the memory, got {columns}")
        loss = at_least_float32(embeddings).new_zeros(())
        if memory.fill:
            loss = self.pair_loss(embeddings, labels, memory.embeddings, memory.labels)
        if self.training:
            if self.steps >= self.warmup_steps:
                memory.put(embeddings, checked_labels(labels, embeddings))
            self.steps += 1
        return loss

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state)
