"""Proxy-ISA without its penalties: Proxy-Anchor that counts informative positives twice, and nothing else."""

from __future__ import annotations

import inspect
from typing import Any

from nearkin.losses.proxy_isa import ProxyISA

__all__ = ["ProxyISAWithoutPenalties"]

_PENALTIES = ("positive_penalty", "negative_penalty", "decay", "as_released")


class ProxyISAWithoutPenalties(ProxyISA):
    r"""Proxy-ISA without its penalties, which no paper has: informative positives count twice.

    .. math::
        \omega^+ = \begin{cases} 2 & L - \eta \le s \le L \\ 1 & \text{else} \end{cases}
        \qquad \omega^- = 1

    in equation (13): :class:`~nearkin.losses.ProxyISA` with :math:`\sigma = 1` and no lighter negatives. The penalties
    cost points where a network does not over-fit (docs/method_isa.md). While the filter is off this is
    :class:`~nearkin.losses.ProxyAnchor`.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        alpha: scale α.
        margin: δ.
        options: those of :class:`~nearkin.losses.InformativeSampleWeights` that say which samples are informative.

    Example:
        >>> import torch
        >>> loss = ProxyISAWithoutPenalties(num_classes=10, dim=8, memory_size=200)
        >>> loss.begin_epoch(2)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
    """

    def __init__(self, num_classes: int, dim: int, *, alpha: float = 32.0, margin: float = 0.1, **options: Any) -> None:
        off: dict[str, Any] = {"positive_penalty": "none", "negative_penalty": "none"}
        super().__init__(num_classes, dim, alpha=alpha, margin=margin, **off, **options)


ProxyISAWithoutPenalties.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [parameter for name, parameter in inspect.signature(ProxyISA).parameters.items() if name not in _PENALTIES]
)
