"""The similarities of a batch to a block of classes, and the way back from their derivative to that of the proxies."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from nearkin.losses._class_similarity import ClassSimilarity, class_similarity_and_gradient, proxy_spread_and_gradient
from nearkin.losses._fused import kernels_for
from nearkin.losses._informative import ClassWeights
from nearkin.losses._shards import Shards
from nearkin.numerics import NORM_FLOOR, log_sum_exp_


class Negatives(NamedTuple):
    """What a loss makes of similarities to other classes, by way of exponents ``scale · (similarity + shift)``.

    ``over="classes"``: for every sample ``log Σ_c exp``, an array ``[N]``. ``over="samples"``: for every class
    ``log(1 + Σ_i exp)``, and the sum of that over all classes, one number. A weight of a pair multiplies its exponent.
    """

    over: Literal["classes", "samples"]
    scale: float
    shift: float = 0.0


class OverBlocks(Protocol):
    """What a block of classes asks of its loss."""

    class_similarity: ClassSimilarity
    gamma: float
    shards: Shards

    @property
    def negatives(self) -> Negatives: ...


class ClassBlock:
    """Classes ``start`` to ``start + size`` of proxies ``[C, K, D]`` beside a batch of ``unit [N, D]`` vectors.

    Its arrays are overwritten on the way: exponents or terms are asked for once, then the gradient.
    ``rows [N]`` are the places of the samples' own classes among the C, where those are ``held`` here at all.
    """

    def __init__(
        self,
        unit: Tensor,
        vectors: Tensor,
        start: int,
        size: int,
        rows: Tensor,
        held: Tensor,
        loss: OverBlocks,
        weights: ClassWeights | None,
    ) -> None:
        self.classes = slice(start, min(start + size, len(vectors)))
        self.vectors = vectors[self.classes]
        self.loss = loss
        self.lengths = torch.linalg.vector_norm(self.vectors, dim=2).clamp_min_(NORM_FLOOR)
        self.column = rows - start
        self.inside = held & (self.column >= 0) & (self.column < len(self.vectors))
        self.products = (unit @ self.vectors.flatten(0, 1).T).view(-1, *self.lengths.shape)
        self.kernels = kernels_for(vectors)
        self.how: dict[str, Any] = {"kind": loss.class_similarity, "gamma": loss.gamma}
        if self.kernels is not None and self.several:
            self.similarities = self.kernels.class_similarity(self.products, self.lengths, **self.how)
        else:
            self.similarities, self.by_proxy = class_similarity_and_gradient(
                self.products.div_(self.lengths), **self.how
            )
        self.weights = None
        if weights is not None:
            first = loss.shards.first + start
            of_pairs = weights.negative(self.similarities, slice(first, first + len(self.vectors)))
            self.weights = self._without_own_(of_pairs, 0.0)

    @property
    def several(self) -> bool:
        return self.vectors.shape[1] > 1

    def exponents(self) -> Tensor:
        """``[N, B]``, minus infinity for a sample of the class."""
        _, scale, shift = self.loss.negatives
        # With several proxies per class their gradient needs the class similarities again.
        exponents = self.similarities * scale if self.several else self.similarities.mul_(scale)
        if shift:
            exponents.add_(scale * shift)
        return self._without_own_(self._weighed_(exponents), float("-inf"))

    def terms_and_shares(self) -> tuple[Tensor, Tensor]:
        """``Σ_c log(1 + Σ_i exp)`` of the exponents, and ``1 / scale`` of its derivative for similarities."""
        if self.kernels is None:
            exponents = self.exponents()
            terms = log_sum_exp_(exponents, 0, extra_zero=True).sum()
            return terms, self._weighed_(exponents)
        # The kernel has Proxy-Anchor's two terms: what is divided by infinity is the one for positives.
        _, scale, shift = self.loss.negatives
        norms: dict[str, float | Tensor] = {"pull_norm": float("inf"), "push_norm": scale}
        of_pairs = None
        if self.weights is not None:
            norms = {name: self.lengths.new_full((), norm) for name, norm in norms.items()}
            of_pairs = self.weights.new_ones(len(self.weights)), self.weights
        labels = torch.where(self.inside, self.column, -1)
        value, shares = self.kernels.anchor(
            self.similarities, labels, alpha=scale, margin=shift, weights=of_pairs, **norms
        )
        return value * scale, shares

    def shares(self, log_sum_exp: Tensor) -> Tensor:
        """What share each exponent has in the sums ``[N]``: ``1 / scale`` of their derivative for similarities."""
        return self._weighed_(self.exponents().sub_(log_sum_exp[:, None]).exp_())

    def for_products(self, gradient: Tensor) -> Tensor:
        """From a derivative for similarities ``[N, B]`` to that for the products with the proxies ``[N, B·K]``."""
        if self.kernels is not None and self.several:
            self.kernels.gradient_by_proxy(self.products, self.lengths, self.similarities, gradient, **self.how)
            return self.products.flatten(1)
        return self.by_proxy(gradient)[0].div_(self.lengths).flatten(1)

    def spread(self, tau: float) -> tuple[Tensor | float, Tensor | None]:
        """``tau`` times the sum of the classes' spreads, and the matrices of its gradient."""
        if not tau or not self.several:
            return 0.0, None
        return proxy_spread_and_gradient(self.vectors, self.lengths, tau=tau * len(self.vectors))

    def _weighed_(self, gradient: Tensor) -> Tensor:
        return gradient if self.weights is None else gradient.mul_(self.weights)

    def _without_own_(self, x: Tensor, value: float) -> Tensor:
        """Put ``value`` where a sample meets its own class in ``x [N, B]``, without making the host wait for a list."""
        column = self.column.clamp(0, x.shape[1] - 1)[:, None]
        return x.scatter_(1, column, torch.where(self.inside[:, None], value, x.gather(1, column)))


def remove_radial_(gradient: Tensor, vectors: Tensor, lengths: Tensor) -> None:
    """Take off ``gradient [R, D]``, which is divided by the vectors' lengths already, what points along the vectors."""
    kernels = kernels_for(gradient)
    if kernels is not None:
        none = gradient[:0]
        kernels.remove_radial_(none, gradient, none, vectors.contiguous(), none, lengths, gradient.new_ones(1))
        return
    along = torch.linalg.vecdot(gradient, vectors).div_(lengths).div_(lengths)
    gradient.addcmul_(vectors, along[:, None], value=-1.0)
