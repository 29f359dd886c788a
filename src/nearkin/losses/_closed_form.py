"""A proxy loss and its gradient in closed form: the fast path of :class:`nearkin.losses._proxy.ProxyLoss`.

A loss whose ``value_and_gradient`` says what similarities cost and how that changes takes this way from embeddings and
proxies to its value; the contract suite holds it equal to autograd's way through ``from_similarities``.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearkin.losses._class_similarity import ClassSimilarity, class_similarity_and_gradient, proxy_spread_and_gradient
from nearkin.losses._fused import kernels_for
from nearkin.losses._informative import SampleWeights
from nearkin.numerics import NORM_FLOOR, full_precision


class WrittenOut(Protocol):
    """What the closed form asks of a proxy loss."""

    class_similarity: ClassSimilarity
    gamma: float
    weighting: Any
    takes_lengths: ClassVar[bool]

    def weigh(self, unit: Tensor, similarities: Tensor, labels: Tensor) -> SampleWeights | None: ...

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None
    ) -> tuple[Tensor, Tensor]: ...


def closed_form(embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: WrittenOut, *, tau: float) -> Tensor:
    """The loss of embeddings ``[N, D]`` and proxies ``[C, K, D]``, with fused kernels where they apply.

    ``tau`` weighs the spread of a class's proxies.
    """
    fused = kernels_for(vectors) is not None and embeddings.requires_grad == vectors.requires_grad
    function = _FusedProxyObjective if fused else _ProxyObjective
    return function.apply(embeddings, vectors, labels, loss, tau)  # type: ignore[no-any-return, no-untyped-call]


class _ProxyObjective(torch.autograd.Function):
    """From embeddings ``[N, D]`` and proxies ``[C, K, D]`` to a loss.

    The derivative with respect to the similarities is computed in the forward pass; that one ``[N, C·K]`` array is all
    that is kept. Similarities are inner products with the raw proxies, divided by their norms, and the radial parts
    that normalisation takes off the gradients follow from the similarities: no normalised copy of the proxies is made,
    which with many classes would outweigh everything else.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: WrittenOut, tau: float) -> Tensor:
        norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True).clamp_min_(NORM_FLOOR)
        unit = embeddings / norms
        proxy_norms = torch.linalg.vector_norm(vectors, dim=2).clamp_min_(NORM_FLOOR)
        by_proxy = (unit @ vectors.flatten(0, 1).T).view(-1, *proxy_norms.shape).div_(proxy_norms)
        similarities, gradient_by_proxy = class_similarity_and_gradient(
            by_proxy, loss.class_similarity, gamma=loss.gamma
        )
        value, gradient = loss.value_and_gradient(similarities, labels, loss.weigh(unit, similarities, labels))
        pull = None
        if tau and vectors.shape[1] > 1:
            spread, pull = proxy_spread_and_gradient(vectors, proxy_norms, tau=tau)
            value = value + spread
        if any(ctx.needs_input_grad):
            gradient, by_proxy = gradient_by_proxy(gradient)
            product = by_proxy.mul_(gradient.div_(proxy_norms))
            along = torch.mv(product.flatten(1), proxy_norms.flatten())
            radial = product.sum(0).div_(proxy_norms)
            if pull is not None:
                pull.diagonal(dim1=1, dim2=2).sub_(radial)
            ctx.save_for_backward(vectors, unit, norms, gradient.flatten(1), along, radial, pull)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        vectors, unit, norms, gradient, along, radial, pull = ctx.saved_tensors
        for_embeddings = for_vectors = None
        with full_precision(unit.device.type):
            if ctx.needs_input_grad[0]:
                for_embeddings = gradient @ vectors.flatten(0, 1)
                for_embeddings.addcmul_(unit, along[:, None], value=-1.0).mul_(upstream / norms)
            if ctx.needs_input_grad[1]:
                for_vectors = (gradient.T @ (unit * upstream)).view_as(vectors)
                if pull is None:
                    for_vectors.addcmul_(vectors, (radial * upstream).unsqueeze(2), value=-1.0)
                else:
                    for_vectors.baddbmm_(pull * upstream, vectors)
        return for_embeddings, for_vectors, None, None, None


class _FusedProxyObjective(torch.autograd.Function):
    """:class:`_ProxyObjective` with fused kernels in place of the operations between its matrix products.

    The radial parts are taken off the gradients themselves, which one pass does for embeddings and proxies together, so
    the similarities are not needed after their derivative is known: with several proxies per class it overwrites them.
    """

    @staticmethod
    def forward(ctx: Any, embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: WrittenOut, tau: float) -> Tensor:
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
                divided_later: dict[str, Any] = {"lengths": flat_norms}
                value, gradient = loss.value_and_gradient(products, labels, None, **divided_later)
            else:
                products.div_(flat_norms)
                value, gradient = loss.value_and_gradient(products, labels, loss.weigh(unit, products, labels))
                if needs_gradient:
                    gradient.div_(flat_norms)
        else:
            by_proxy = products.view(-1, *proxy_norms.shape)
            how: dict[str, Any] = {"kind": loss.class_similarity, "gamma": loss.gamma}
            similarities = kernels.class_similarity(by_proxy, proxy_norms, **how)
            value, gradient = loss.value_and_gradient(similarities, labels, loss.weigh(unit, similarities, labels))
            if needs_gradient:
                kernels.gradient_by_proxy(by_proxy, proxy_norms, similarities, gradient, **how)
                gradient = products
        pull = None
        if tau and vectors.shape[1] > 1:
            spread, pull = proxy_spread_and_gradient(vectors, proxy_norms, tau=tau)
            value = value + spread
        if needs_gradient:
            ctx.save_for_backward(vectors, unit, norms, proxy_norms, gradient, pull)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        vectors, unit, norms, proxy_norms, gradient, pull = ctx.saved_tensors
        kernels = kernels_for(vectors)
        assert kernels is not None
        flat = vectors.view(-1, vectors.shape[2])
        with full_precision(unit.device.type):
            for_embeddings, for_vectors = gradient @ flat, gradient.T @ unit
            kernels.remove_radial_(for_embeddings, for_vectors, unit, flat, norms, proxy_norms, upstream)
            for_vectors = for_vectors.view_as(vectors)
            if pull is not None:
                for_vectors.baddbmm_(pull * upstream, vectors)
        return for_embeddings, for_vectors, None, None, None
