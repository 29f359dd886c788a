"""The proxies of a loss: ``[classes, per_class, dim]`` in one parameter."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class ProxyBank(nn.Module):
    """Learnable proxies, ``per_class`` for each class.

    ``vectors`` is a float32 Parameter ``[classes, per_class, dim]``, drawn Kaiming-normal with fan-out as in the
    official Proxy-Anchor code: std ``sqrt(2 / (classes · per_class))``. Losses use the normalised vectors, so only
    the directions matter at first; the length decides how fast a proxy turns under a given learning rate.

    >>> ProxyBank(10, 2, 4).vectors.shape
    torch.Size([10, 2, 4])
    """

    def __init__(self, classes: int, per_class: int, dim: int) -> None:
        super().__init__()
        for name, value in (("num_classes", classes), ("proxies_per_class", per_class), ("dim", dim)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.vectors = nn.Parameter(torch.randn(classes, per_class, dim) * math.sqrt(2.0 / (classes * per_class)))

    @property
    def classes(self) -> int:
        return self.vectors.shape[0]

    @property
    def per_class(self) -> int:
        return self.vectors.shape[1]

    @property
    def dim(self) -> int:
        return self.vectors.shape[2]

    @torch.no_grad()
    def restart(self, vectors: Tensor) -> None:
        """Begin anew from ``vectors [classes, per_class, dim]``."""
        self.vectors.copy_(vectors)

    def extra_repr(self) -> str:
        return f"classes={self.classes}, per_class={self.per_class}, dim={self.dim}"
