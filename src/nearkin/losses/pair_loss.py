"""The base class of losses on pairs: checks, references, positive and negative pairs and their distances."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from nearkin.numerics import (
    Labels,
    Normalisation,
    at_least_float32,
    check_choice,
    check_embeddings,
    checked_labels,
    full_precision,
    normalise,
    rounding_floor,
    safe_sqrt,
)


@dataclass(frozen=True)
class Pairs:
    """Every (query, reference) pair of a batch, ``[N, M]``, and which of them count.

    Attributes:
        queries: normalised embeddings ``[N, D]``.
        references: normalised references ``[M, D]``, or the queries once more.
        similarity: inner products ``[N, M]``; cosines when the normalisation is ``"l2"``.
        positive: pairs of the same class. A self-pair is in neither mask.
        negative: pairs of different classes.
        within_batch: whether the batch is compared with itself.
    """

    queries: Tensor
    references: Tensor
    similarity: Tensor
    positive: Tensor
    negative: Tensor
    within_batch: bool

    def distance(self, *, squared: bool = False) -> Tensor:
        """``‖q − r‖`` or its square, ``[N, M]``; exactly 0, with gradient 0, for vectors that differ only by rounding.

        Otherwise rounding would decide whether a loss that averages non-zero terms counts a sample and its copy.
        """
        of_queries = self.queries.square().sum(dim=1)
        of_references = of_queries if self.within_batch else self.references.square().sum(dim=1)
        lengths = of_queries[:, None] + of_references
        result = lengths - 2.0 * self.similarity
        floor = rounding_floor(self.queries.shape[1], result.dtype)
        result = torch.where(result > floor * lengths, result, 0.0)
        return result if squared else safe_sqrt(result)


class PairLoss(nn.Module):
    """``loss(embeddings, labels, references=None, reference_labels=None) -> scalar``.

    Without references the batch is compared with itself, and no sample with itself. With references every
    (sample, reference) pair counts; they may be a method's proxies, class representatives or a memory of past batches.
    A subclass turns :class:`Pairs` into a loss (:meth:`from_pairs`), in full float32 precision also under autocast.

    ``representatives`` is the role of PROFS's class representatives in a loss: its anchors; anchors with as many
    negative pairs as positive ones, for a loss that weighs easy and hard pairs alike; or the positives of its anchors.
    """

    representatives: ClassVar[Literal["anchors", "balanced anchors", "positives"]] = "anchors"
    keeps_length: bool = False
    """Whether the loss needs the vectors' lengths, so that the network must not normalise them in training."""

    def __init__(self, *, normalisation: Normalisation = "l2") -> None:
        super().__init__()
        check_choice("l2", "ball", normalisation=normalisation)
        self.normalisation: Normalisation = normalisation

    def forward(
        self,
        embeddings: Tensor,
        labels: Labels,
        references: Tensor | None = None,
        reference_labels: Labels | None = None,
    ) -> Tensor:
        pairs = self.pairs(embeddings, labels, references, reference_labels)
        with full_precision(embeddings.device.type):
            return self.from_pairs(pairs)

    def from_pairs(self, pairs: Pairs) -> Tensor:
        """The loss of the pairs in the two masks."""
        raise NotImplementedError

    def pairs(
        self,
        embeddings: Tensor,
        labels: Labels,
        references: Tensor | None = None,
        reference_labels: Labels | None = None,
    ) -> Pairs:
        """The pairs of ``forward``.

        A method can narrow the masks with :func:`dataclasses.replace` and call :meth:`from_pairs`.
        """
        if (references is None) != (reference_labels is None):
            raise ValueError("references and reference_labels go together: give both or neither")
        check_embeddings(embeddings)
        labels = checked_labels(labels, embeddings)
        with full_precision(embeddings.device.type):
            if references is None or reference_labels is None:
                return self._within(embeddings, labels)
            check_embeddings(references, dim=embeddings.shape[1], name="references")
            reference_labels = checked_labels(reference_labels, references, name="reference_labels")
            queries = self._normalised(embeddings)
            references = self._normalised(references).to(queries.dtype)
            same = labels[:, None] == reference_labels
            return Pairs(queries, references, products(queries, references), same, ~same, within_batch=False)

    def _within(self, embeddings: Tensor, labels: Tensor) -> Pairs:
        queries = self._normalised(embeddings)
        same = labels[:, None] == labels
        positive = same ^ torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        return Pairs(queries, queries, products(queries, queries), positive, ~same, within_batch=True)

    def _normalised(self, x: Tensor) -> Tensor:
        x = at_least_float32(x)
        return x if self.keeps_length else normalise(x, self.normalisation)


def hardest_negatives(pairs: Pairs) -> Pairs:
    """Keep each query's nearest negative pairs, as many as it has positive ones (PROFS, section 5.3)."""
    with torch.no_grad():
        distance = pairs.distance(squared=True).masked_fill_(~pairs.negative, float("inf"))
        rank = distance.argsort(dim=1, stable=True).argsort(dim=1)
        kept = rank < pairs.positive.sum(dim=1, keepdim=True)
    return replace(pairs, negative=pairs.negative & kept)


def mean_where(terms: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``terms`` where ``mask`` holds, or 0 if it holds nowhere."""
    return (terms * mask).sum() / mask.sum().clamp_min(1)


def products(x: Tensor, y: Tensor) -> Tensor:
    """Inner products ``x yᵀ`` of the rows of ``x [N, D]`` and ``y [M, D]``, with their gradient in full precision.

    >>> products(torch.eye(2), torch.tensor([[3.0, 4.0]]))
    tensor([[3.],
            [4.]])
    """
    return _Products.apply(x, y)  # type: ignore[no-any-return, no-untyped-call]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        with full_precision(x.device.type):
            return x @ y.T

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        needs_x, needs_y = ctx.needs_input_grad
        with full_precision(x.device.type):
            return gradient @ y if needs_x else None, gradient.T @ x if needs_y else None
