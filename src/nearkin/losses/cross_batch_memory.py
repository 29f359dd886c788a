"""Cross-batch memory: a pair loss that also sees the embeddings of past batches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from nearkin.inputs import Labels, as_labels, check_at_least
from nearkin.losses._pair import PairLoss
from nearkin.losses._ring import Ring
from nearkin.numerics import at_least_float32

__all__ = ["CrossBatchMemory"]


class CrossBatchMemory(nn.Module):
    r"""Cross-batch memory, XBM (Wang et al., CVPR 2020), around any pair loss.

    .. math::
        L(\text{batch}) + L(\text{batch vs memory})

    The memory is a queue of the last ``size`` embeddings, kept as they were when their batch came by. It starts after
    ``warmup_steps``, when embeddings drift slowly enough for old ones to be of use: until then nothing is stored and
    the loss is the plain one. A batch is compared with the memory first and stored afterwards, so it never meets
    itself. Only training mode counts steps and stores. The memory carries no gradient.

    The memory, where its oldest entry is, how full it is and how many steps have passed are in ``state_dict``; they
    load into a new instance before its first call.

    Args:
        pair_loss: the loss L.
        size: number of embeddings kept. The CCP paper compares sizes of 1 and 8 times the number of classes.
        warmup_steps: training steps before the memory starts.

    Example:
        >>> from nearkin.losses import Contrastive
        >>> loss = CrossBatchMemory(Contrastive(), size=4, warmup_steps=0)
        >>> x, y = torch.eye(2), torch.tensor([0, 0])
        >>> loss(x, y), loss(x, y), loss.fill
        (tensor(1.4142), tensor(2.8284), 4)
    """

    memory: Tensor
    memory_labels: Tensor

    def __init__(self, pair_loss: PairLoss, *, size: int, warmup_steps: int = 1000) -> None:
        super().__init__()
        check_at_least(1, size=size)
        check_at_least(0, warmup_steps=warmup_steps)
        self.pair_loss = pair_loss
        self.size = size
        self.warmup_steps = warmup_steps
        self.ring = Ring(size)
        self.steps = 0
        self.register_buffer("memory", torch.zeros(size, 0))
        self.register_buffer("memory_labels", torch.zeros(size, dtype=torch.int64))

    @property
    def fill(self) -> int:
        """How many embeddings the memory holds."""
        return self.ring.fill

    def forward(self, embeddings: Tensor, labels: Labels) -> Tensor:
        loss: Tensor = self.pair_loss(embeddings, labels)
        return loss + self.memory_loss(embeddings, labels)

    def memory_loss(self, embeddings: Tensor, labels: Labels) -> Tensor:
        """The term of the memory alone; in training mode it also counts the step and stores the batch.

        For a method that chooses the pairs within the batch itself: it calls this once per step instead of the module.
        """
        self._check_columns(embeddings)
        loss = at_least_float32(embeddings).new_zeros(())
        if self.fill:
            loss = self.pair_loss(embeddings, labels, self.memory[: self.fill], self.memory_labels[: self.fill])
        if self.training:
            if self.steps >= self.warmup_steps:
                self._store(embeddings.detach(), as_labels(labels, embeddings))
            self.steps += 1
        return loss

    def similarity_weights(self, embeddings: Tensor, labels: Labels) -> Tensor:
        """``|∂L/∂S|`` for every (sample, other sample) and then every (sample, memory entry), ``[N, N + fill]``."""
        weights = self.pair_loss.similarity_weights(embeddings, labels)
        self._check_columns(embeddings)
        if not self.fill:
            return weights
        memory, memory_labels = self.memory[: self.fill], self.memory_labels[: self.fill]
        return torch.cat([weights, self.pair_loss.similarity_weights(embeddings, labels, memory, memory_labels)], dim=1)

    def _store(self, embeddings: Tensor, labels: Tensor) -> None:
        if not self.fill:
            # The dimension, the precision and the device are known from the first batch on.
            self.memory = at_least_float32(embeddings).new_zeros(self.size, embeddings.shape[1])
            self.memory_labels = self.memory_labels.to(embeddings.device)
        self.ring.put(embeddings, self.memory, labels, self.memory_labels)

    def _check_columns(self, embeddings: Tensor) -> None:
        if self.fill and embeddings.ndim == 2 and embeddings.shape[1] != self.memory.shape[1]:
            raise ValueError(
                f"embeddings must have {self.memory.shape[1]} columns, as those in the memory, "
                f"got {embeddings.shape[1]}"
            )

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.ring.pointer, self.ring.fill, self.steps])

    def set_extra_state(self, state: Tensor) -> None:
        self.ring.pointer, self.ring.fill, self.steps = state.tolist()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        stored = state_dict.get(f"{prefix}memory")
        if stored is not None and stored.shape[:1] == self.memory.shape[:1]:
            self.memory = torch.empty_like(stored, device=self.memory.device)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"size={self.size}, warmup_steps={self.warmup_steps}"
