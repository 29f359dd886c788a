"""What every loss with proxies shares: a bank, the checks, and the way from similarities to a loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.inputs import check_embeddings, check_labels
from nearkin.numerics import at_least_float32, l2_normalise
from nearkin.proxies import ProxyBank


class ProxyLoss(nn.Module):
    """``loss(embeddings [N, dim], labels [N]) -> scalar``, owning proxies in ``bank.vectors``.

    A subclass says how similarities become a loss (:meth:`from_similarities`) and, when a class has several proxies,
    how they make one similarity per class (:meth:`class_similarities`). Everything is computed in float32 or better,
    whatever autocast says.
    """

    def __init__(self, num_classes: int, dim: int, *, proxies_per_class: int = 1) -> None:
        super().__init__()
        self.bank = ProxyBank(num_classes, proxies_per_class, dim)

    @property
    def num_classes(self) -> int:
        return self.bank.classes

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self._check(embeddings, labels)
        with torch.autocast(embeddings.device.type, enabled=False):
            similarities = self.class_similarities(at_least_float32(embeddings))
            return self.from_similarities(similarities, labels.long()) + self.regulariser()

    def class_similarities(self, embeddings: Tensor) -> Tensor:
        """Cosine similarity of every sample to every class, ``[N, num_classes]``."""
        return l2_normalise(embeddings) @ self.bank.normalised().to(embeddings.dtype).T

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        """The loss as a function of the class similarities ``[N, num_classes]``."""
        raise NotImplementedError

    def regulariser(self) -> Tensor | float:
        """What is added to the loss and does not depend on the batch."""
        return 0.0

    def similarity_weights(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """``|∂L/∂S|`` for every (sample, class), ``[N, num_classes]``: how hard each pair is pulled or pushed."""
        self._check(embeddings, labels)
        with torch.no_grad():
            similarities = self.class_similarities(at_least_float32(embeddings))
        with torch.enable_grad():
            similarities = similarities.detach().requires_grad_()
            loss = self.from_similarities(similarities, labels.long())
            (gradient,) = torch.autograd.grad(loss, similarities)
        return gradient.abs()

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        check_embeddings(embeddings, dim=self.bank.dim)
        check_labels(labels, embeddings.shape[0], num_classes=self.num_classes)
