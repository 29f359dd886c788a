"""A proxy loss over blocks of classes, for so many that an array of all samples by all classes does not fit.

Every loss of the catalogue is a function of two things: each sample's similarity to its own class, and what the
similarities to other classes come to (:class:`~nearkin.losses._class_block.Negatives`). The second is gathered block by
block: where it is a sum over classes, one pass gives value and gradient; where it is a log-sum-exp over a sample's
classes, a second pass computes the similarities again, when that sum is known. What is kept in between is one number
per sample.

The same division serves classes that are spread over processes: what is added up over blocks is then added up over
processes too (:class:`~nearkin.losses._shards.Shards`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from nearkin.losses._class_block import ClassBlock, OverBlocks, remove_radial_
from nearkin.losses._class_similarity import class_similarity
from nearkin.losses._informative import ClassWeights
from nearkin.losses._shards import Shards
from nearkin.numerics import NORM_FLOOR, full_precision, l2_normalise

PLAIN_BYTES = 2**28
"""A loss goes by blocks where one array of its similarities ``[N, C·K]`` would be larger than this. On a GPU, where
blocks take 1.2 to 2 times as long, also larger than the proxies: beside these, their gradient and the optimiser's state
a step is then a quarter larger at most."""
BLOCK_BYTES = {"cpu": 2**22, "cuda": 2**25}
"""About how large an array of the similarities to a block is: what fits the caches, and on a GPU fills it."""
# Stands in for the log of an empty sum: its exponential is 0, yet differences of two of them are finite.
_NOTHING = -1e30


class Parts(NamedTuple):
    """What a loss is computed from when it goes by blocks of classes.

    ``own [N]`` are similarities to the own class and ``others`` what :class:`Negatives` makes of the rest; ``classes``
    is how many there are in all. ``positive [N]`` weighs the samples for their own classes, where pairs have weights.
    ``others_norm`` is then the sum over classes of their negatives' mean weight, and ``classes`` otherwise.
    """

    own: Tensor
    others: Tensor
    labels: Tensor
    classes: int
    positive: Tensor | None
    others_norm: Tensor | float


class InParts(OverBlocks, Protocol):
    """What the form over blocks asks of a proxy loss."""

    shards: Shards

    def from_parts(self, parts: Parts) -> Tensor: ...

    def weigh_by_class(self, unit: Tensor, own: Tensor, labels: Tensor) -> ClassWeights | None: ...


def is_large(embeddings: Tensor, vectors: Tensor, *, arrays: int = 1) -> bool:
    """Whether similarities of embeddings ``[N, D]`` to proxies ``[C, K, D]`` are to be computed block by block.

    ``arrays`` of their size are held at a time otherwise.

    >>> [is_large(torch.empty(512, 8), torch.empty(classes, 1, 8)) for classes in (100_000, 1_000_000)]
    [False, True]
    """
    classes, per_class, _ = vectors.shape
    similarities = embeddings.shape[0] * classes * per_class * vectors.element_size()
    return similarities > (max(PLAIN_BYTES, vectors.nbytes // arrays) if vectors.is_cuda else PLAIN_BYTES)


def block_size(embeddings: Tensor, vectors: Tensor) -> int:
    """How many classes of proxies ``[C, K, D]`` are taken at a time for embeddings ``[N, D]``."""
    size = BLOCK_BYTES.get(vectors.device.type, BLOCK_BYTES["cuda"])
    return max(1, size // (embeddings.shape[0] * vectors.shape[1] * vectors.element_size()))


def by_blocks(
    embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: InParts, *, tau: float, block: int | None = None
) -> Tensor:
    """The loss of embeddings ``[N, D]`` and proxies ``[C, K, D]``, ``block`` classes at a time.

    ``tau`` weighs the spread of a class's proxies. Where classes are spread over processes, ``labels`` number all of
    them, the value is that of all, and the gradient for the embeddings is the part that comes from the classes here:
    the parts of all processes make the whole.
    """
    block = block_size(embeddings, vectors) if block is None else block
    return _ByBlocks.apply(embeddings, vectors, labels, loss, tau, block)  # type: ignore[no-any-return, no-untyped-call]


class _Batch:
    """A batch beside the classes that are here: what both passes over them share."""

    def __init__(self, embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: InParts, block: int) -> None:
        self.embeddings, self.vectors, self.loss, self.block = embeddings, vectors, loss, block
        self.norms = torch.linalg.vector_norm(embeddings, dim=1, keepdim=True).clamp_min_(NORM_FLOOR)
        self.unit = embeddings / self.norms
        self.rows, self.held = loss.shards.rows(labels, len(vectors))

    def own(self, embeddings: Tensor, vectors: Tensor) -> Tensor:
        """Similarities ``[N]`` of the samples to the ``vectors [N, K, D]`` of their classes, differentiable."""
        by_proxy = torch.linalg.vecdot(l2_normalise(embeddings)[:, None], l2_normalise(vectors))
        return class_similarity(by_proxy[:, None], self.loss.class_similarity, gamma=self.loss.gamma).squeeze(1)

    def own_similarities(self) -> Tensor:
        own = self.own(self.embeddings, self.vectors[self.rows])
        return self.loss.shards.sum(torch.where(self.held, own, 0.0))

    def blocks(self, weights: ClassWeights | None) -> Iterator[ClassBlock]:
        """The classes here, block by block."""
        for start in range(0, len(self.vectors), self.block):
            yield ClassBlock(self.unit, self.vectors, start, self.block, self.rows, self.held, self.loss, weights)

    def others(self, weights: ClassWeights | None, tau: float) -> tuple[Tensor, Tensor]:
        """What the similarities to other classes come to, and the spread of the proxies times ``tau``."""
        over_classes = self.loss.negatives.over == "classes"
        total = self.unit.new_full((len(self.unit),), _NOTHING) if over_classes else self.unit.new_zeros(())
        spread = self.unit.new_zeros(())
        for block in self.blocks(weights):
            if over_classes:
                torch.logaddexp(total, block.exponents().logsumexp(1), out=total)
            else:
                total += block.terms_and_shares()[0]
            spread += block.spread(tau)[0]
        shards = self.loss.shards
        return shards.log_sum_exp(total) if over_classes else shards.sum(total), shards.sum(spread)

    def others_norm(self, weights: ClassWeights) -> Tensor:
        """The sum over classes of the mean weight of their negatives; 1 for a class that has none."""
        samples, total = len(self.unit), self.unit.new_zeros(())
        count = total.new_zeros(len(self.vectors)).index_add_(0, self.rows, self.held.to(total.dtype))
        for block in self.blocks(weights):
            assert block.weights is not None
            others = samples - count[block.classes]
            total += torch.where(others > 0, block.weights.sum(0) / others, 1.0).sum()
        return self.loss.shards.sum(total)

    def gradients(
        self,
        weights: ClassWeights | None,
        others: Tensor | None,
        for_own: Tensor,
        for_others: Tensor,
        tau: float,
        upstream: Tensor | float,
        needed: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """From the derivatives for the parts of a loss to those for embeddings and proxies, block by block.

        ``others [N]`` are the samples' log-sum-exps. A loss over samples needs none: its own terms are added up on the
        way, and with the spread of the proxies times ``tau`` they are the first results, for the classes here.
        """
        dim, factor = self.unit.shape[1], self.loss.negatives.scale * for_others
        if others is not None:
            factor = factor[:, None]
        # The factor is one number, or one per sample: it goes onto the samples, of which there are few.
        unit = self.unit * factor
        terms, spread = self.unit.new_zeros(()), self.unit.new_zeros(())
        for_unit = torch.zeros_like(self.unit)
        for_vectors = torch.empty_like(self.vectors, memory_format=torch.contiguous_format) if needed[1] else None
        for block in self.blocks(weights):
            if others is None:
                value, shares = block.terms_and_shares()
                terms += value
            else:
                shares = block.shares(others)
            gradient = block.for_products(shares)
            flat = block.vectors.flatten(0, 1)
            for_unit.addmm_(gradient, flat)
            apart, pull = block.spread(tau)
            spread += apart
            if for_vectors is not None:
                here = for_vectors[block.classes]
                torch.mm(gradient.T, unit, out=here.view(-1, dim))
                remove_radial_(here.view(-1, dim), flat, block.lengths.flatten())
                if pull is not None:
                    here.baddbmm_(pull * upstream, block.vectors)
        for_embeddings = for_unit.mul_(factor)
        along = torch.linalg.vecdot(for_embeddings, self.unit)[:, None]
        for_embeddings.addcmul_(self.unit, along, value=-1.0).div_(self.norms)
        self._add_own_(for_own, for_embeddings, for_vectors)
        return terms, spread, for_embeddings if needed[0] else None, for_vectors

    def _add_own_(self, for_own: Tensor, for_embeddings: Tensor, for_vectors: Tensor | None) -> None:
        with torch.enable_grad():
            embeddings = self.embeddings.detach().requires_grad_()
            vectors = self.vectors.detach()[self.rows].requires_grad_()
            own = self.own(embeddings, vectors)
        of_embeddings, of_vectors = torch.autograd.grad(
            own, [embeddings, vectors], torch.where(self.held, for_own, 0.0)
        )
        for_embeddings += of_embeddings
        if for_vectors is not None:
            for_vectors.index_add_(0, self.rows, of_vectors)


class _ByBlocks(torch.autograd.Function):
    """From embeddings ``[N, D]`` and proxies ``[C, K, D]`` to a loss, with no array of ``[N, C·K]``.

    Where negatives are over samples the gradients are computed with the value, in one pass, and the backward pass hands
    them over. Elsewhere, and when they are asked for once more, the backward pass computes them.
    """

    @staticmethod
    def forward(
        ctx: Any, embeddings: Tensor, vectors: Tensor, labels: Tensor, loss: InParts, tau: float, block: int
    ) -> Tensor:
        batch = _Batch(embeddings, vectors, labels, loss, block)
        classes = len(vectors) if loss.shards.classes is None else loss.shards.classes
        tau = tau / classes
        needed: tuple[bool, bool] = (ctx.needs_input_grad[0], ctx.needs_input_grad[1])
        over_samples = loss.negatives.over == "samples"
        own = batch.own_similarities()
        weights = loss.weigh_by_class(batch.unit, own, labels)
        norm: Tensor | float = float(classes)
        if over_samples and weights is not None:
            norm = batch.others_norm(weights)
        parts = Parts(own, own, labels, classes, None if weights is None else weights.positive, norm)
        ctx.handed_over = None
        if over_samples and any(needed):
            # A sum over classes enters linearly: its derivative is known before it is.
            value, for_own, for_others = _value_and_gradient(loss, parts._replace(others=own.new_zeros(())))
            terms, spread, *ctx.handed_over = batch.gradients(weights, None, for_own, for_others, tau, 1.0, needed)
            value = value + for_others * loss.shards.sum(terms)
            others, spread = None, loss.shards.sum(spread)
        else:
            others, spread = batch.others(weights, tau)
            parts = parts._replace(others=others)
            if any(needed):
                value, for_own, for_others = _value_and_gradient(loss, parts)
            else:
                value = loss.from_parts(parts)
        if any(needed):
            ctx.save_for_backward(embeddings, vectors, labels, others, for_own, for_others)
            ctx.rest = loss, weights, tau, block, needed
        return value + spread

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        embeddings, vectors, labels, others, for_own, for_others = ctx.saved_tensors
        gradients, ctx.handed_over = ctx.handed_over, None
        if gradients is not None:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(upstream)
        else:
            loss, weights, tau, block, needed = ctx.rest
            with full_precision(embeddings.device.type):
                batch = _Batch(embeddings, vectors, labels, loss, block)
                _, _, *gradients = batch.gradients(
                    weights, others, for_own * upstream, for_others * upstream, tau, upstream, needed
                )
        return (*gradients, None, None, None, None)


def _value_and_gradient(loss: InParts, parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """The loss, and its derivatives for ``own`` and ``others``."""
    with torch.enable_grad():
        leaves = parts.own.detach().requires_grad_(), parts.others.detach().requires_grad_()
        value = loss.from_parts(parts._replace(own=leaves[0], others=leaves[1]))
    for_own, for_others = torch.autograd.grad(value, leaves)
    return value.detach(), for_own, for_others
