"""What every loss with proxies shares: a bank, the checks, and the way from embeddings to a loss and its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from nearkin.inputs import check_embeddings, check_labels
from nearkin.losses._anchor import FromSimilarities, SampleWeights
from nearkin.losses._class_similarity import (
    ClassSimilarity,
    class_similarity,
    class_similarity_slope,
    proxy_spread,
)
from nearkin.losses._fused import kernels_for
from nearkin.losses._informative import InformativeSampleWeights
from nearkin.numerics import NORM_FLOOR, at_least_float32, full_precision, l2_normalise
from nearkin.proxies import ProxyBank


class ProxyLoss(nn.Module):
    """``loss(embeddings [N, dim], labels [N]) -> scalar``, owning proxies in ``bank.vectors``.

    A subclass says what the class similarities ``[N, num_classes]`` cost, as a value and its derivative
    (:meth:`value_and_slope`). The rest of the gradient is the same for all of them and is computed here without
    materialising normalised proxies. Everything is computed in float32 or better, whatever autocast says; a loss can be
    differentiated once.

    Args:
        proxies_per_class: K. With several, ``class_similarity`` and ``gamma`` say how they make one similarity.
        tau: weight of the regulariser that keeps a class's proxies together.
        weighting: weighs the pairs by how informative they are; see :class:`InformativeSampleWeights`.
    """

    takes_lengths = False
    """Whether :meth:`value_and_slope` also takes ``lengths [num_classes]``, by which the similarities are still to be
    divided; the derivative is then for what was given. It saves the fused path two passes."""

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        proxies_per_class: int = 1,
        class_similarity: ClassSimilarity = "softmax",
        gamma: float = 0.1,
        tau: float = 0.0,
        weighting: InformativeSampleWeights | None = None,
    ) -> None:
        super().__init__()
        if class_similarity not in ("softmax", "max", "mean"):
            raise ValueError(f"class_similarity must be 'softmax', 'max' or 'mean', got {class_similarity!r}")
        if not gamma > 0:
            raise ValueError(f"gamma must be positive, got {gamma}")
        self.bank = ProxyBank(num_classes, proxies_per_class, dim)
        self.class_similarity: ClassSimilarity = class_similarity
        self.gamma = gamma
        self.tau = tau
        self.weighting = weighting

    @property
    def num_classes(self) -> int:
        return self.bank.classes

    @property
    def proxies_per_class(self) -> int:
        return self.bank.per_class

    def value_and_slope(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None
    ) -> tuple[Tensor, Tensor]:
        """The loss of class similarities ``[N, num_classes]`` and its derivative with respect to them.

        Runs outside autograd and leaves ``similarities`` as they are. :meth:`from_similarities` is its differentiable
        form.
        """
        raise NotImplementedError

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self._check(embeddings, labels)
        with full_precision(embeddings.device.type):
            embeddings, vectors = self._same_dtype(embeddings)
            fused = kernels_for(vectors) is not None and embeddings.requires_grad == vectors.requires_grad
            function = _FusedProxyObjective if fused else _ProxyObjective
            return function.apply(embeddings, vectors, labels.long(), self)  # type: ignore[no-any-return, no-untyped-call]

    def weigh_and_measure(
        self, unit: Tensor, similarities: Tensor, labels: Tensor, **lengths: Tensor
    ) -> tuple[Tensor, Tensor]:
        """:meth:`value_and_slope` with the pairs weighed, where the loss has a weighting; part of the forward pass."""
        weights = None
        if self.weighting is not None:
            judged = self.weighting.judgement(similarities, labels)
            weights = self.weighting.weights(similarities, labels, judged=judged)
            if self.training:
                self.weighting.update(
                    unit, labels, similarities, self.own_similarities, linear=self.bank.per_class == 1, judged=judged
                )
        return self.value_and_slope(similarities, labels, weights, **lengths)

    def class_similarities(self, embeddings: Tensor) -> Tensor:
        """Similarity of every sample to every class, ``[N, num_classes]``, differentiable."""
        with full_precision(embeddings.device.type):
            embeddings, vectors = self._same_dtype(embeddings)
            by_proxy = l2_normalise(embeddings) @ l2_normalise(vectors.flatten(0, 1)).T
            return class_similarity(by_proxy.view(-1, *vectors.shape[:2]), self.class_similarity, gamma=self.gamma)

    @torch.no_grad()
    def own_similarities(self, unit: Tensor, labels: Tensor | None) -> Tensor:
        """Similarity ``[T]`` of unit vectors ``[T, dim]`` to the class that ``labels [T]`` gives each.

        Without labels there is a row for every class, in their order.
        """
        vectors = at_least_float32(self.bank.vectors).to(unit.dtype)
        norms = torch.linalg.vector_norm(vectors, dim=2).clamp_min_(NORM_FLOOR)
        if labels is None:
            by_proxy = torch.linalg.vecdot(unit[:, None], vectors)
        else:
            by_proxy = torch.stack([(unit * vectors[labels, k]).sum(1) for k in range(self.bank.per_class)], 1)
            norms = norms[labels]
        similarities = by_proxy.div_(norms)[:, None]
        return class_similarity(similarities, self.class_similarity, gamma=self.gamma).squeeze(1)

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        """The loss of class similarities ``[N, num_classes]``, without regulariser; differentiable once."""
        return FromSimilarities.apply(  # type: ignore[no-any-return, no-untyped-call]
            similarities, lambda s: self.value_and_slope(s, labels.long(), weights)
        )

    @torch.no_grad()
    def similarity_weights(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """``|∂L/∂S|`` for every (sample, class), ``[N, num_classes]``: how hard each pair is pulled or pushed."""
        self._check(embeddings, labels)
        labels = labels.long()
        similarities = self.class_similarities(embeddings)
        weights = None if self.weighting is None else self.weighting.weights(similarities, labels)
        return self.value_and_slope(similarities, labels, weights)[1].abs()

    def begin_epoch(self, epoch: int) -> None:
        """Called by the training loop before each epoch, counted from 0."""
        if self.weighting is not None:
            self.weighting.begin_epoch(epoch)

    def _check(self, embeddings: Tensor, labels: Tensor) -> None:
        check_embeddings(embeddings, dim=self.bank.dim)
        check_labels(labels, embeddings.shape[0], num_classes=self.num_classes)

    def _same_dtype(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and proxies in the wider of their dtypes, float32 or better: neither is ever cast down."""
        embeddings, vectors = at_least_float32(embeddings), at_least_float32(self.bank.vectors)
        dtype = torch.promote_types(embeddings.dtype, vectors.dtype)
        return embeddings.to(dtype), vectors.to(dtype)


class _ProxyObjective(torch.autograd.Function):
    """From embeddings ``[N, D]`` and proxies ``[C, K, D]`` to a loss.

    The derivative with respect to the similarities is computed in the forward pass; that one ``[N, C·K]`` array is all
    that is kept. Similarities are inner products with the raw proxies, divided by their norms, and the radial parts
    that normalisation takes off the gradients follow from the similarities: no normalised copy of the proxies is made,
    which with many classes would outweigh everything else.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: ProxyLoss) -> Tensor:
        norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True).clamp_min_(NORM_FLOOR)
        unit = embeddings / norms
        proxy_norms = torch.linalg.vector_norm(vectors, dim=2).clamp_min_(NORM_FLOOR)
        by_proxy = (unit @ vectors.flatten(0, 1).T).view(-1, *proxy_norms.shape).div_(proxy_norms)
        similarities, slope_by_proxy = class_similarity_slope(by_proxy, loss.class_similarity, gamma=loss.gamma)
        value, slope = loss.weigh_and_measure(unit, similarities, labels)
        pull = None
        if loss.tau and vectors.shape[1] > 1:
            spread, pull = proxy_spread(vectors, proxy_norms, tau=loss.tau)
            value = value + spread
        if any(ctx.needs_input_grad):
            slope, by_proxy = slope_by_proxy(slope)
            product = by_proxy.mul_(slope.div_(proxy_norms))
            along = torch.mv(product.flatten(1), proxy_norms.flatten())
            radial = product.sum(0).div_(proxy_norms)
            if pull is not None:
                pull.diagonal(dim1=1, dim2=2).sub_(radial)
            ctx.save_for_backward(vectors, unit, norms, slope.flatten(1), along, radial, pull)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        vectors, unit, norms, slope, along, radial, pull = ctx.saved_tensors
        for_embeddings = for_vectors = None
        with full_precision(unit.device.type):
            if ctx.needs_input_grad[0]:
                for_embeddings = slope @ vectors.flatten(0, 1)
                for_embeddings.addcmul_(unit, along[:, None], value=-1.0).mul_(gradient / norms)
            if ctx.needs_input_grad[1]:
                for_vectors = (slope.T @ (unit * gradient)).view_as(vectors)
                if pull is None:
                    for_vectors.addcmul_(vectors, (radial * gradient).unsqueeze(2), value=-1.0)
                else:
                    for_vectors.baddbmm_(pull * gradient, vectors)
        return for_embeddings, for_vectors, None, None


class _FusedProxyObjective(torch.autograd.Function):
    """:class:`_ProxyObjective` with fused kernels in place of the operations between its matrix products.

    The radial parts are taken off the gradients themselves, which one pass does for embeddings and proxies together, so
    the similarities are not needed after their derivative is known: with several proxies per class it overwrites them.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: ProxyLoss) -> Tensor:
        kernels = kernels_for(vectors)
        assert kernels is not None
        vectors = vectors.contiguous()
        flat = vectors.view(-1, vectors.shape[2])
        unit, norms, flat_norms = kernels.units_and_lengths(embeddings, flat, NORM_FLOOR)
        proxy_norms = flat_norms.view(vectors.shape[:2])
        products = unit @ flat.T
        needs_gradient = any(ctx.needs_input_grad)
        if vectors.shape[1] == 1:
            if loss.takes_lengths and loss.weighting is None:
                value, slope = loss.weigh_and_measure(unit, products, labels, lengths=flat_norms)
            else:
                value, slope = loss.weigh_and_measure(unit, products.div_(flat_norms), labels)
                if needs_gradient:
                    slope.div_(flat_norms)
        else:
            by_proxy = products.view(-1, *proxy_norms.shape)
            how: dict[str, Any] = {"kind": loss.class_similarity, "gamma": loss.gamma}
            similarities = kernels.class_similarity(by_proxy, proxy_norms, **how)
            value, slope = loss.weigh_and_measure(unit, similarities, labels)
            if needs_gradient:
                kernels.slope_by_proxy(by_proxy, proxy_norms, similarities, slope, **how)
                slope = products
        pull = None
        if loss.tau and vectors.shape[1] > 1:
            spread, pull = proxy_spread(vectors, proxy_norms, tau=loss.tau)
            value = value + spread
        if needs_gradient:
            ctx.save_for_backward(vectors, unit, norms, proxy_norms, slope, pull)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        vectors, unit, norms, proxy_norms, slope, pull = ctx.saved_tensors
        kernels = kernels_for(vectors)
        assert kernels is not None
        flat = vectors.view(-1, vectors.shape[2])
        with full_precision(unit.device.type):
            for_embeddings, for_vectors = slope @ flat, slope.T @ unit
            kernels.remove_radial_(for_embeddings, for_vectors, unit, flat, norms, proxy_norms, gradient)
            for_vectors = for_vectors.view_as(vectors)
            if pull is not None:
                for_vectors.baddbmm_(pull * gradient, vectors)
        return for_embeddings, for_vectors, None, None
