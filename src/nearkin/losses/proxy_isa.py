"""Proxy-ISA: Proxy-Anchor that attends to informative samples, not to the easiest and not to outliers."""

from __future__ import annotations

from torch import Tensor

from nearkin.losses._informative import InformativeSampleWeights, NegativePenalty, PositivePenalty
from nearkin.losses.proxy_anchor import ProxyAnchor

__all__ = ["ProxyISA"]


def _of_weighting(name: str) -> property:
    """What the loss and its weighting have in common."""
    return property(lambda self: getattr(self.weighting, name), lambda self, on: setattr(self.weighting, name, on))


class ProxyISA(ProxyAnchor):
    r"""Informative Sample-Aware Proxy (Li et al., MMAsia 2022).

    .. math::
        \frac{1}{\sum_{c\in C^+}\bar\omega^+_c}\sum_{c\in C^+}
        \log\Big(1+\sum_{x\in X^+_c}e^{\omega^+_{x,c}\alpha(\delta-s(x,p_c))}\Big)
        +\frac{1}{\sum_{c}\bar\omega^-_c}\sum_{c}
        \log\Big(1+\sum_{x\in X^-_c}e^{\omega^-_{x,c}\alpha(s(x,p_c)+\delta)}\Big)

    (equation 13): :class:`~nearkin.losses.ProxyAnchor` with an adaptive weight ω for every pair of sample and proxy,
    which :class:`~nearkin.losses._informative.InformativeSampleWeights` explains; :math:`\bar\omega_c` are their means
    over the class's positives and negatives in the batch. While the filter is off it is Proxy-Anchor exactly.

    The memory goes on with the second epoch and the filter with the third (section 4.1): ``begin_epoch`` does
    that, and the training loop calls it. In a loop of your own call it with the epoch, counted from 0, or set
    ``memory_on`` and ``filter_on`` yourself.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        alpha: scale α.
        margin: δ.
        volume: V, the number of samples that fill a class.
        hardness: h, scales the mean similarity of a class in memory down to where samples begin to be easy.
        sensitivity: k, how much further the search for informative samples goes in a hard class.
        search_margin: λ, added to the search length.
        decay: τ, when the positive weights begin to fall.
        memory_size: T, the most embeddings kept. The paper does not give it; pass the number of training images (what
            has been in memory for more than an epoch is out of date). Default: 50 per class, at most 55,000.
        positive_penalty: what stands in the place of σ in the weights of positives (table 3): ``"sigma"`` itself,
            ``"nu"``, ``"effective"`` for 1/max(1, E), or ``"none"`` for 1.
        negative_penalty: what easy negatives count: ``"effective"`` for 1/max(1, E), as published, or ``"none"`` for 1.
            A weight multiplies the exponent. Of an easy negative, which is far below zero, it so makes nearly zero: a
            term near 1 in the sum, where Proxy-Anchor has next to nothing, and the more there are of them the less
            the hard ones are pushed away.
        memory_from: epoch, counted from 0, with which the memory goes on. Default: 1, as released 2.
        filter_from: epoch, counted from 0, with which the filter goes on. Default: 2, as released 3.
        filter_after: samples of a class that have to be seen before the filter acts on it, not in the paper. Two epochs
            show 120 images of a class of CUB, but a handful of a small class, which is not learned by then.
        as_released: do as the authors' code does: a memory of 55,000, L = 1 for a class that has not been in memory
            yet, negative weights that act from the first step, whether the filter is on or not, and memory and filter
            an epoch later.

    Example:
        >>> import torch
        >>> loss = ProxyISA(num_classes=10, dim=8, memory_size=200)
        >>> for epoch in range(3):
        ...     loss.begin_epoch(epoch)
        ...     value = loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7]))
        >>> loss.filter_on, loss.diagnostics()["effective_number"].shape
        (True, torch.Size([10]))
    """

    weighting: InformativeSampleWeights

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        alpha: float = 32.0,
        margin: float = 0.1,
        volume: float = 100.0,
        hardness: float = 0.15,
        sensitivity: float = 0.9,
        search_margin: float = 0.1,
        decay: float = 1.5,
        memory_size: int | None = None,
        positive_penalty: PositivePenalty = "sigma",
        negative_penalty: NegativePenalty = "effective",
        memory_from: int | None = None,
        filter_from: int | None = None,
        filter_after: int = 0,
        as_released: bool = False,
    ) -> None:
        weighting = InformativeSampleWeights(
            num_classes,
            dim,
            memory_size=memory_size,
            volume=volume,
            hardness=hardness,
            sensitivity=sensitivity,
            search_margin=search_margin,
            decay=decay,
            positive_penalty=positive_penalty,
            negative_penalty=negative_penalty,
            memory_from=memory_from,
            filter_from=filter_from,
            filter_after=filter_after,
            as_released=as_released,
        )
        super().__init__(num_classes, dim, alpha=alpha, margin=margin, weighting=weighting)

    volume = _of_weighting("volume")
    hardness = _of_weighting("hardness")
    sensitivity = _of_weighting("sensitivity")
    search_margin = _of_weighting("search_margin")
    decay = _of_weighting("decay")
    memory_size = _of_weighting("memory_size")
    positive_penalty = _of_weighting("positive_penalty")
    negative_penalty = _of_weighting("negative_penalty")
    memory_from = _of_weighting("memory_from")
    filter_from = _of_weighting("filter_from")
    filter_after = _of_weighting("filter_after")
    as_released = _of_weighting("as_released")
    memory_on = _of_weighting("memory_on")
    """Whether batches are put into the memory."""
    filter_on = _of_weighting("filter_on")
    """Whether pairs are weighted and outliers left out."""

    def diagnostics(self) -> dict[str, Tensor | float]:
        """Per class ``effective_number``, ``learned_similarity``, ``search_length`` and ``in_memory``; of the last
        batch the shares that were ``easy``, ``informative`` and ``outlier``."""
        return self.weighting.diagnostics()
