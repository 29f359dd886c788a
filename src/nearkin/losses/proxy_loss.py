"""The base class of losses with proxies: the proxies, checks, and class similarities."""

from __future__ import annotations

import functools
from typing import Any, Literal

import torch
from torch import Tensor, nn

from nearkin import ranks
from nearkin.losses.class_similarities import ClassSimilarity, Combination, class_similarities, combine
from nearkin.losses.informative_samples import InformativeSampleWeights, PairWeights
from nearkin.numerics import (
    EXCLUDED,
    NORM_FLOOR,
    Labels,
    at_least_float32,
    check_choice,
    check_embeddings,
    check_positive,
    checked_labels,
    full_precision,
    l2_normalise,
)
from nearkin.proxies import ProxyBank


class ProxyLoss(nn.Module):
    """``loss(embeddings [N, dim], labels [N]) -> scalar``, owning proxies in ``bank.vectors``.

    A subclass writes :meth:`from_similarities`, its paper's formula on class similarities ``[N, num_classes]`` in plain
    PyTorch. It works for any number of classes, also spread over processes, each of which sees the similarities to all
    classes. Everything is computed in float32 or better, also under autocast.

    Args:
        proxies_per_class: K. With several, ``class_similarity`` and ``gamma`` say how they make one similarity.
        tau: weight of the regulariser that keeps a class's proxies together.
        start_scale: factor on the proxies' initial length.
        weighting: weighs the pairs by how informative they are; see :class:`InformativeSampleWeights`.

    Example:
        >>> class Hinge(ProxyLoss):
        ...     def from_similarities(self, similarities, labels):
        ...         positive = similarities.gather(1, labels[:, None])
        ...         return (similarities - positive + 0.2).clamp_min(0).mean()
        >>> loss = Hinge(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
        >>> loss.bank.vectors.grad.shape
        torch.Size([10, 1, 8])
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        proxies_per_class: int = 1,
        class_similarity: ClassSimilarity = "softmax",
        gamma: float = 0.1,
        tau: float = 0.0,
        start_scale: float = 1.0,
        weighting: InformativeSampleWeights | None = None,
    ) -> None:
        super().__init__()
        check_choice("softmax", "max", "mean", class_similarity=class_similarity)
        check_positive(gamma=gamma, start_scale=start_scale)
        self.bank = ProxyBank(num_classes, proxies_per_class, dim, scale=start_scale)
        self.class_similarity: ClassSimilarity = class_similarity
        self.gamma = gamma
        self.tau = tau
        self.start_scale = start_scale
        self.weighting = weighting

    @property
    def num_classes(self) -> int:
        return self.bank.classes

    @property
    def proxies_per_class(self) -> int:
        return self.bank.per_class

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        """The loss of class similarities ``[N, num_classes]``, without regulariser."""
        raise NotImplementedError(f"{type(self).__name__} does not say what similarities cost: write from_similarities")

    def forward(self, embeddings: Tensor, labels: Labels) -> Tensor:
        return self.of_proxies(embeddings, self.bank.vectors, self._checked(embeddings, labels), tau=self.tau)

    def of_proxies(self, embeddings: Tensor, vectors: Tensor, labels: Tensor, *, tau: float) -> Tensor:
        """The loss with proxies ``[C, K, D]``, perhaps others than those of the bank."""
        with full_precision(embeddings.device.type):
            similarities, spread = self._similarities_and_spread(embeddings, vectors, spread=tau > 0)
            value = self.from_similarities(similarities, labels)
            if tau and vectors.shape[1] > 1:
                value = value + tau * ranks.sum_of_parts(self.bank.local_share * spread)
            if self.weighting is not None and self.training:
                unit = l2_normalise(at_least_float32(embeddings.detach()))
                linear = vectors.shape[1] == 1
                self.weighting.update(unit, labels, similarities, self.positive_similarities, linear=linear)
        return value

    def class_similarities(self, embeddings: Tensor) -> Tensor:
        """Similarity of every sample to every class, ``[N, num_classes]``, differentiable."""
        with full_precision(embeddings.device.type):
            return self._similarities_and_spread(embeddings, self.bank.vectors, spread=False)[0]

    def _similarities_and_spread(self, embeddings: Tensor, vectors: Tensor, *, spread: bool) -> tuple[Tensor, Tensor]:
        dtype = functools.reduce(torch.promote_types, (torch.float32, embeddings.dtype, vectors.dtype))
        how = Combination(self.class_similarity, self.gamma, with_spread=spread and vectors.shape[1] > 1)
        embeddings = ranks.with_summed_gradient(embeddings.to(dtype))
        similarities, of_proxies = class_similarities(embeddings, vectors.to(dtype), how)
        return ranks.gather_columns(similarities, self.num_classes), of_proxies

    def pair_weights(self, similarities: Tensor, labels: Tensor) -> PairWeights | None:
        """The present weight of each pair; None where all are 1."""
        return None if self.weighting is None else self.weighting.weights(similarities, labels)

    @torch.no_grad()
    def positive_similarities(self, unit: Tensor, labels: Tensor | None) -> Tensor:
        """Similarities ``[T]`` of unit vectors ``[T, dim]`` to the classes ``labels [T]``, or of row c to class c."""
        local, vectors = self.bank.local, at_least_float32(self.bank.vectors).to(unit.dtype)
        lengths = torch.linalg.vector_norm(vectors, dim=2).clamp_min_(NORM_FLOOR)
        if labels is None:
            cosines = torch.linalg.vecdot(unit[local.start : local.stop, None], vectors).div_(lengths).T
        else:
            rows = (labels - local.start).clamp(0, len(local) - 1)
            cosines = torch.stack([(unit * vectors[rows, k]).sum(1) for k in range(self.bank.per_class)])
            cosines = cosines.div_(lengths[rows].T)
        positive = combine(cosines, self.class_similarity, gamma=self.gamma)
        if labels is None:
            return ranks.gather_rows(positive, self.num_classes)
        is_local = (labels >= local.start) & (labels < local.stop)
        return ranks.sum_of_parts(torch.where(is_local, positive, 0.0))

    def begin_epoch(self, epoch: int) -> None:
        """Called by the training loop before each epoch, counted from 0."""
        if self.weighting is not None:
            self.weighting.begin_epoch(epoch)

    def _checked(self, embeddings: Tensor, labels: Labels) -> Tensor:
        """The labels as int64 on the embeddings' device, if both fit the loss."""
        check_embeddings(embeddings, dim=self.bank.dim)
        return checked_labels(labels, embeddings, num_classes=self.num_classes).long()


def positives_and_negatives(
    similarities: Tensor, labels: Tensor, *, scale: float, over: Literal["classes", "samples"]
) -> tuple[Tensor, Tensor]:
    """The similarities ``[N]`` to the samples' own classes, and ``log Σ exp(scale · s)`` of the other similarities.

    The sums are over a sample's other classes, ``[N]``, or over a class's samples of other classes, ``[C]``; an empty
    one gives about :data:`~nearkin.numerics.EXCLUDED`. Plain PyTorch would need more arrays of the size of
    ``similarities [N, C]``, which matters with a million classes; this needs one.

    >>> similarities, labels = torch.tensor([[0.9, 0.5, 0.5], [0.1, 0.8, 0.2]]), torch.tensor([0, 1])
    >>> positives_and_negatives(similarities, labels, scale=1.0, over="classes")
    (tensor([0.9000, 0.8000]), tensor([1.1931, 0.8444]))
    """
    return _PositivesAndNegatives.apply(similarities, labels, scale, 1 if over == "classes" else 0)  # type: ignore[no-untyped-call, no-any-return]


class _PositivesAndNegatives(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, similarities: Tensor, labels: Tensor, scale: float, dim: int) -> tuple[Tensor, Tensor]:
        column = labels[:, None]
        positive = similarities.gather(1, column).squeeze(1)
        exponents = (similarities * scale).scatter_(1, column, EXCLUDED)
        top = exponents.amax(dim, keepdim=True)
        negatives = exponents.sub_(top).exp_().sum(dim, keepdim=True).log_().add_(top)
        ctx.save_for_backward(similarities, column, negatives)
        ctx.scale, ctx.dim = scale, dim
        return positive, negatives.squeeze(dim)

    @staticmethod
    def backward(ctx: Any, for_positive: Tensor, for_negatives: Tensor) -> tuple[Tensor, None, None, None]:
        similarities, column, negatives = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True: second derivatives are wanted
            exponents = (ctx.scale * similarities).scatter(1, column, EXCLUDED)
            shares = ctx.scale * exponents.softmax(ctx.dim) * for_negatives.unsqueeze(ctx.dim)
            return shares.scatter_add(1, column, for_positive[:, None]), None, None, None
        gradient = (similarities * ctx.scale).sub_(negatives).exp_()
        gradient.mul_(ctx.scale * for_negatives.unsqueeze(ctx.dim))
        return gradient.scatter_(1, column, for_positive[:, None]), None, None, None
