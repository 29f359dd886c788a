"""Proxy-ISA: Proxy-Anchor that attends to informative samples, not to the easiest and not to outliers."""

from __future__ import annotations

import inspect
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

    (equation 13): :class:`~nearkin.losses.ProxyAnchor` with an adaptive weight ω of every pair of sample and proxy, see
    :class:`~nearkin.losses.InformativeSampleWeights`; :math:`\bar\omega_c` are a class's mean weights in the batch.

    The first epoch is plain Proxy-Anchor. From the second on a memory is kept and negatives are weighed, from the third
    on positives too (section 4.1, algorithm 1). In your own loop call ``begin_epoch`` with the epoch, counted from 0.

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


# Recipes and help read the weighting's options from the signature.
_ISA_PARAMETERS = [p for p in inspect.signature(ProxyISA, eval_str=True).parameters.values() if p.name != "options"]
_ISA_PARAMETERS += keyword_options(InformativeSampleWeights).values()
ProxyISA.__signature__ = inspect.Signature(_ISA_PARAMETERS)  # type: ignore[attr-defined]
