"""MoCo-PA: Proxy-Anchor over the batch and a queue of past embeddings from a slowly moving network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.losses.embedding_queue import EmbeddingQueue
from nearkin.losses.proxy_anchor import ProxyAnchor
from nearkin.numerics import Labels, at_least_float32, check_at_least, check_embeddings, l2_normalise

__all__ = ["MomentumProxyAnchor", "update_ema"]


class MomentumProxyAnchor(ProxyAnchor):
    r"""MoCo-PA, the baseline of the VCPA paper (Kim et al., AISTATS 2022, section 4.7).

    The same as :class:`~nearkin.losses.ProxyAnchor` over the batch and a first-in-first-out queue of embeddings of past
    batches, which gives gradients to the proxies only and is in ``state_dict``. A batch is queued after its loss.

    The queue takes embeddings from a second network that follows the trained one, :math:`w \leftarrow m w +
    (1-m)\theta` (``update_ema``). The training loop owns that network and passes its embeddings of the same batch as
    ``keys``. Without ``keys`` the batch's own embeddings are queued, as with ``momentum=0``.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        margin: δ.
        alpha: scale α.
        momentum: m, which the paper varies around 0.999.
        queue_size: embeddings in the queue; the paper has 900, five batches.

    Example:
        >>> loss = MomentumProxyAnchor(num_classes=10, dim=8, queue_size=6)
        >>> x, y = torch.randn(4, 8), torch.tensor([0, 0, 3, 7])
        >>> loss(x, y, keys=torch.randn(4, 8)).shape, loss.queue.fill
        (torch.Size([]), 4)
    """

    wants_momentum_encoder = True

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: float = 0.1,
        alpha: float = 32.0,
        momentum: float = 0.999,
        queue_size: int = 900,
    ) -> None:
        super().__init__(num_classes, dim, margin=margin, alpha=alpha)
        if not 0.0 <= momentum <= 1.0:
            raise ValueError(f"momentum must lie between 0 and 1, got {momentum}")
        check_at_least(1, queue_size=queue_size)
        self.momentum = momentum
        self.queue_size = queue_size
        self.queue = EmbeddingQueue(queue_size)

    def forward(self, embeddings: Tensor, labels: Labels, keys: Tensor | None = None) -> Tensor:
        labels = self._checked(embeddings, labels)
        if keys is not None:
            check_embeddings(keys, dim=self.bank.dim, name="keys")
            if keys.shape != embeddings.shape:
                raise ValueError(f"keys must be of the same batch, {list(embeddings.shape)}, got {list(keys.shape)}")
        both = at_least_float32(embeddings), labels
        if self.queue.fill:
            both = torch.cat([both[0], self.queue.embeddings]), torch.cat([labels, self.queue.labels])
        loss = super().forward(*both)
        if self.training:
            self.queue.put(l2_normalise(at_least_float32((embeddings if keys is None else keys).detach())), labels)
        return loss


@torch.no_grad()
def update_ema(average: nn.Module, trained: nn.Module, *, momentum: float = 0.999) -> None:
    """Move a momentum network towards the trained one: ``w ← m·w + (1 − m)·θ`` (equation 14); buffers are copied.

    >>> average, trained = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> _ = nn.init.zeros_(average.weight), nn.init.ones_(trained.weight)
    >>> update_ema(average, trained, momentum=0.75)
    >>> average.weight.item()
    0.25
    """
    for weight, target in zip(average.parameters(), trained.parameters(), strict=True):
        weight.lerp_(target, 1.0 - momentum)
    for buffer, target_buffer in zip(average.buffers(), trained.buffers(), strict=True):
        buffer.copy_(target_buffer)
