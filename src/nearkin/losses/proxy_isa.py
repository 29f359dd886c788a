"""Proxy-ISA: Proxy-Anchor that attends to informative samples, not to the easiest and not to outliers."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any

from nearkin.catalogue import keyword_options
from nearkin.losses.informative_samples import InformativeSampleWeights
from nearkin.losses.proxy_anchor import ProxyAnchor

__all__ = ["ProxyISA"]


class ProxyISA(ProxyAnchor):
    r"""Informative Sample-Aware Proxy (Li et al., MMAsia 2022).

    .. math::
        \frac{1}{\sum_{c\in C^+}\bar\omega^+_c}\sum_{c\in C^+}
        \log\Big(1+\sum_{x\in X^+_c}e^{\omega^+_{x,c}\alpha(\delta-s(x,p_c))}\Big)
        +\frac{1}{\sum_{c}\bar\omega^-_c}\sum_{c}
        \log\Big(1+\sum_{x\in X^-_c}e^{\omega^-_{x,c}\alpha(s(x,p_c)+\delta)}\Big)

    (equation 13): :class:`~nearkin.losses.ProxyAnchor` with an adaptive weight ω for every pair of sample and proxy,
    which :class:`~nearkin.losses.InformativeSampleWeights` explains; :math:`\bar\omega_c` are their means
    over the class's positives and negatives in the batch. While the memory is off it is Proxy-Anchor exactly.

    The memory goes on with the second epoch, and negatives are weighed from then on; the filter goes on with the third,
    and positives are weighed too (section 4.1, algorithm 1). In a loop of your own call ``begin_epoch`` with the epoch,
    counted from 0.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        alpha: scale α.
        margin: δ.
        options: ``volume``, ``hardness``, ``sensitivity``, ``memory_size`` and all others of
            :class:`~nearkin.losses.InformativeSampleWeights`.

    Example:
        >>> import torch
        >>> loss = ProxyISA(num_classes=10, dim=8, memory_size=200)
        >>> for epoch in range(3):
        ...     loss.begin_epoch(epoch)
        ...     value = loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7]))
        >>> loss.weighting.filter_on, loss.weighting.diagnostics()["effective_number"].shape
        (True, torch.Size([10]))
    """

    weighting: InformativeSampleWeights

    def __init__(self, num_classes: int, dim: int, *, alpha: float = 32.0, margin: float = 0.1, **options: Any) -> None:
        weighting = InformativeSampleWeights(num_classes, dim, **options)
        super().__init__(num_classes, dim, alpha=alpha, margin=margin, weighting=weighting)


def with_weighting_options(loss: type[ProxyAnchor], *, without: Collection[str] = ()) -> inspect.Signature:
    """The signature of ``loss`` with the weighting's options in the place of ``**options``.

    They are listed once, in the weighting's own constructor. Recipes and help read them here too.
    """
    kept = [p for p in inspect.signature(loss, eval_str=True).parameters.values() if p.name != "options"]
    options = keyword_options(InformativeSampleWeights).items()
    return inspect.Signature([*kept, *(option for name, option in options if name not in without)])


ProxyISA.__signature__ = with_weighting_options(ProxyISA)  # type: ignore[attr-defined]
