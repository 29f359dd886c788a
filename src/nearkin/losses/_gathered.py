"""Any proxy loss whose classes are spread over the ranks of a run, also one that does not say how (``from_parts``).

Every rank holds all embeddings. It computes their similarities to its own classes; what the loss makes of the
similarities to all classes is then computed alike everywhere, and of its derivative each rank goes on with the part of
its own classes.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from nearkin import ranks
from nearkin.losses._class_similarity import proxy_spread
from nearkin.losses._closed_form import WrittenOut, closed_form
from nearkin.losses._informative import SampleWeights
from nearkin.proxies import ProxyBank


def with_all_similarities(
    embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: WrittenOut, bank: ProxyBank, *, tau: float
) -> Tensor:
    """The loss of embeddings ``[N, D]`` and the proxies of all ranks, of which ``vectors [own, K, D]`` are here."""
    value = closed_form(ranks.with_summed_gradient(embeddings), vectors, labels, _OfAllClasses(loss, bank), tau=0.0)
    if tau and bank.per_class > 1:
        value = value + ranks.sum_of_parts(proxy_spread(vectors, tau=tau * bank.share))
    return value


class _OfAllClasses:
    """A loss as the closed form asks it, with the similarities to the classes of one rank."""

    takes_lengths: ClassVar[bool] = False

    def __init__(self, loss: WrittenOut, bank: ProxyBank) -> None:
        self.class_similarity, self.gamma, self.weighting = loss.class_similarity, loss.gamma, loss.weighting
        self._loss, self._bank = loss, bank
        self._known: tuple[Tensor, Tensor] | None = None

    def weigh(self, unit: Tensor, similarities: Tensor, labels: Tensor) -> SampleWeights | None:
        return self._loss.weigh(unit, self._whole(similarities), labels)

    def value_and_gradient(self, similarities: Tensor, labels: Tensor, weights: Any) -> tuple[Tensor, Tensor]:
        value, gradient = self._loss.value_and_gradient(self._whole(similarities), labels, weights)
        own = self._bank.own
        return value, gradient[:, own.start : own.stop].contiguous()

    def _whole(self, similarities: Tensor) -> Tensor:
        """To all classes; asked for twice in a step and gathered once."""
        if self._known is None or self._known[0] is not similarities:
            with torch.no_grad():
                self._known = similarities, ranks.gather_columns(similarities, self._bank.classes)
        return self._known[1]
