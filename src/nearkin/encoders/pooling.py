"""From a feature map to one vector per image."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from nearkin.errors import RecipeError, did_you_mean
from nearkin.numerics import at_least_float32, full_precision


class AvgPool(nn.Module):
    """Mean over positions, ``[B, C, h, w]`` → ``[B, C]``."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(-2, -1))


class MaxPool(nn.Module):
    """Maximum over positions, ``[B, C, h, w]`` → ``[B, C]``."""

    def forward(self, features: Tensor) -> Tensor:
        return features.amax(dim=(-2, -1))


class AvgMaxPool(nn.Module):
    """Mean plus maximum over positions, as Proxy-Anchor's official code pools, ``[B, C, h, w]`` → ``[B, C]``."""

    def forward(self, features: Tensor) -> Tensor:
        return features.mean(dim=(-2, -1)) + features.amax(dim=(-2, -1))


class GeMPool(nn.Module):
    r"""Generalised mean :math:`(\frac{1}{hw}\sum x^p)^{1/p}` (Radenović et al., TPAMI 2019) with a learnt p.

    With ``learnt=False`` p stays what it is, as in the MPA paper.

    p = 1 is the mean, p → ∞ the maximum. Entries are raised to ``eps`` first, because a negative number has no power
    and zero an infinite slope. Powers overflow half precision, so they are taken in float32.

    >>> pool = GeMPool(p=2.0)
    >>> pool(torch.tensor([[[[3.0, 4.0]]]])).detach().square()
    tensor([[12.5000]])
    """

    p: Tensor

    def __init__(self, *, p: float = 3.0, learnt: bool = True, eps: float = 1e-6) -> None:
        super().__init__()
        start = torch.tensor(float(p))
        if learnt:
            self.p = nn.Parameter(start)
        else:
            self.register_buffer("p", start)
        self.eps = eps

    def forward(self, features: Tensor) -> Tensor:
        with full_precision(features.device.type):
            powers = at_least_float32(features).clamp_min(self.eps).pow(self.p)
            return powers.mean(dim=(-2, -1)).pow(1.0 / self.p)


POOLINGS: Mapping[str, Callable[[], nn.Module]] = {
    "avg": AvgPool,
    "max": MaxPool,
    "avg+max": AvgMaxPool,
    "gem": GeMPool,
    "gem3": functools.partial(GeMPool, p=3.0, learnt=False),
}


def build_pooling(name: str) -> nn.Module:
    """A pooling by its name in recipes: ``avg``, ``max``, ``avg+max``, ``gem``, or ``gem3`` with p = 3 for good.

    >>> build_pooling("avg+max")(torch.tensor([[[[1.0, 3.0]]]]))
    tensor([[5.]])
    """
    if name not in POOLINGS:
        raise RecipeError(f"unknown pooling {name!r}; {did_you_mean(name, POOLINGS)}")
    return POOLINGS[name]()
