"""ISA's weights: informative pairs of a proxy and a sample count more, easy ones and outliers less."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from nearkin.numerics import check_at_least, check_choice, check_positive

PositivePenalty = Literal["sigma", "nu", "effective", "none", "uniform"]
NegativePenalty = Literal["effective", "none"]

_RELEASED_MEMORY = 55_000
_MEMORY_PER_CLASS = 50


class PairWeights(NamedTuple):
    """The weight of each (sample, class) pair, a constant to the gradient.

    ``positive [N]`` is for a sample's own class, ``negative [N, C]`` for the others; the own class's entry is ignored.
    """

    positive: Tensor
    negative: Tensor


class InformativeSampleWeights(nn.Module):
    r"""The adaptive pair weights of Informative Sample-Aware Proxy (Li et al., MMAsia 2022), for any proxy loss.

    Every class c has a count :math:`n` of the samples seen, without outliers, and :math:`S_\text{avg}`, the mean
    similarity to its proxy of its embeddings in a first-in-first-out memory. From these, with
    :math:`\beta = (V-1)/V`:

    .. math::
        E &= \frac{1-\beta^n}{1-\beta}, \qquad \nu = \frac{1}{1+\ln(1+E)}, \qquad L = h\,S_\text{avg}, \\
        \sigma &= 1 + \frac{(1+e^{-\tau})(\nu-1)}{1+e^{V-E-\tau}}, \qquad \eta = (1+k(1-L))\,\nu + \lambda

    (equations 8, 10, 14, 15, 17). A sample of similarity s to its class is too easy above L, an outlier below L − η and
    informative between: :math:`\omega^+ = 1+\sigma` where it is informative, else σ. A negative has
    :math:`\omega^- = 1/\max(1, E)` where :math:`s < L - \eta`, else 1 (equation 16). Negatives are weighed as soon as
    the class is in memory, positives once the filter is on too (algorithm 1). All weights of a class are 1 while it has
    nothing in memory, or while fewer than ``filter_after`` of its samples have been seen.

    Give it to a loss as ``weighting=``. The loss calls :meth:`weights` in its formula and :meth:`update` after a
    training step. The state is in ``state_dict``. A step costs O(memory_size · dim) and never makes the host wait.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        memory_size: T, the most embeddings kept, which the paper does not give; a recipe takes the number of training
            images. Default: 50 per class, at most 55,000.
        volume: V, the number of samples that fill a class.
        hardness: h, the factor on the mean similarity of a class in memory above which samples are easy.
        sensitivity: k, how much longer the search length is in a hard class.
        search_margin: λ, added to the search length.
        decay: τ, when the positive weights begin to fall.
        positive_penalty: what replaces σ in the weights of positives (table 3): ``"sigma"`` itself, ``"nu"``,
            ``"effective"`` for 1/max(1, E), or ``"none"`` for 1, so that informative positives count 2. With
            ``"uniform"`` every positive counts 1, informative or not, as in the table's first two columns.
        negative_penalty: the weight of easy negatives: ``"effective"`` for 1/max(1, E), as published, or ``"none"`` for
            1. As the weight multiplies the exponent, which is far below zero for an easy negative, many lighter
            negatives reduce the push on the hard ones.
        memory_from: first epoch with the memory, counted from 0. Default: 1, as released 2.
        filter_from: first epoch with the filter, counted from 0. Default: 2, as released 3.
        filter_after: samples of a class that must be seen before the filter acts on it, not in the paper.
        as_released: follow the authors' code: a memory of 55,000, L = 1 for a class that has not been in memory yet, so
            that its negatives are weighed from the first step, and memory and filter an epoch later. A recipe adds
            their clipping, ``training.max_grad_value=10``.

    Example:
        >>> weighting = InformativeSampleWeights(num_classes=10, dim=8)
        >>> weighting.begin_epoch(2)
        >>> weighting.memory_on, weighting.filter_on
        (True, True)
    """

    counts: Tensor
    average: Tensor
    in_memory: Tensor
    memory: Tensor
    memory_labels: Tensor
    pointer: Tensor
    last_batch: Tensor

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        memory_size: int | None = None,
        volume: float = 100.0,
        hardness: float = 0.15,
        sensitivity: float = 0.9,
        search_margin: float = 0.1,
        decay: float = 1.5,
        positive_penalty: PositivePenalty = "sigma",
        negative_penalty: NegativePenalty = "effective",
        memory_from: int | None = None,
        filter_from: int | None = None,
        filter_after: int = 0,
        as_released: bool = False,
    ) -> None:
        super().__init__()
        check_choice(*get_args(PositivePenalty), positive_penalty=positive_penalty)
        check_choice(*get_args(NegativePenalty), negative_penalty=negative_penalty)
        if memory_size is None:
            memory_size = _RELEASED_MEMORY if as_released else min(_MEMORY_PER_CLASS * num_classes, _RELEASED_MEMORY)
        check_at_least(1, memory_size=memory_size)
        if not volume > 1:
            raise ValueError(f"volume must be more than 1, the volume of a single sample, got {volume}")
        check_positive(hardness=hardness)
        later = 1 if as_released else 0
        memory_from = 1 + later if memory_from is None else memory_from
        filter_from = 2 + later if filter_from is None else filter_from
        check_at_least(0, memory_from=memory_from, filter_from=filter_from, filter_after=filter_after)
        self.num_classes = num_classes
        self.memory_size = memory_size
        self.volume = volume
        self.hardness = hardness
        self.sensitivity = sensitivity
        self.search_margin = search_margin
        self.decay = decay
        self.positive_penalty = positive_penalty
        self.negative_penalty = negative_penalty
        self.memory_from = memory_from
        self.filter_from = filter_from
        self.filter_after = filter_after
        self.as_released = as_released
        # Python values, so that reading them never waits for a device; get_extra_state saves them.
        self.memory_on = False
        self.filter_on = False
        self.register_buffer("counts", torch.zeros(num_classes, dtype=torch.int64))
        self.register_buffer("average", torch.full((num_classes,), 1.0 / hardness if as_released else 0.0))
        self.register_buffer("in_memory", torch.zeros(num_classes, dtype=torch.int64))
        # A ring buffer of embeddings; its last row takes those not kept. An empty row has the label num_classes.
        self.register_buffer("memory", torch.zeros(memory_size + 1, dim))
        self.register_buffer("memory_labels", torch.full((memory_size + 1,), num_classes))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.register_buffer("last_batch", torch.zeros(3, dtype=torch.int64))

    def begin_epoch(self, epoch: int) -> None:
        """Turn memory and filter on from their epochs; ``epoch`` is counted from 0."""
        self.memory_on = epoch >= self.memory_from
        self.filter_on = epoch >= self.filter_from

    @torch.no_grad()
    def judgement(self, similarities: Tensor, labels: Tensor) -> Judgement:
        """Which samples with class similarities ``[N, C]`` and labels ``[N]`` are easy, informative or outliers."""
        at = self._thresholds(similarities.dtype)
        positive = similarities.gather(1, labels[:, None]).squeeze(1)
        learned, outlier = torch.stack([at.learned, at.outlier]).index_select(1, labels).unbind()
        return Judgement(positive > learned, (positive >= outlier) & (positive <= learned), positive < outlier)

    @torch.no_grad()
    def weights(self, similarities: Tensor, labels: Tensor) -> PairWeights | None:
        """Weights for class similarities ``[N, C]`` and labels ``[N]``; None where all are 1."""
        if not (self.memory_on or self.filter_on or self.as_released):
            return None
        at = self._thresholds(similarities.dtype)
        negative = torch.where(similarities < at.outlier, at.easy_negative, 1.0)
        positive = torch.ones_like(similarities[:, 0])
        if self.filter_on and self.positive_penalty != "uniform":
            positive = at.positive[labels] + self.judgement(similarities, labels).informative
        return PairWeights(positive, negative)

    @torch.no_grad()
    def update(
        self,
        embeddings: Tensor,
        labels: Tensor,
        similarities: Tensor,
        positive_similarities: Callable[[Tensor, Tensor | None], Tensor],
        *,
        linear: bool = False,
    ) -> None:
        """Update counts and memory with a batch, after its loss.

        Args:
            embeddings: normalised, ``[N, dim]``.
            labels: ``[N]``.
            similarities: to the classes, ``[N, C]``, as given to :meth:`weights`.
            positive_similarities: a function from normalised embeddings ``[T, dim]`` and labels ``[T]`` to the
                similarities ``[T]`` to the present proxies of these classes; without labels row c is of class c.
            linear: whether it is linear in the embeddings, so that a class's memory can be summed first.
        """
        judged = self.judgement(similarities, labels)
        torch.sum(torch.stack(judged), 1, out=self.last_batch)
        kept = ~judged.outlier if self.filter_on else torch.ones_like(judged.outlier)
        self.counts.index_add_(0, labels, kept.long())
        if self.memory_on:
            self._enqueue(embeddings, labels, kept)
            self._average(labels, positive_similarities, linear=linear)

    def diagnostics(self) -> dict[str, Tensor | float]:
        """The thresholds of every class ``[num_classes]``, and the composition of the last batch.

        ``effective_number`` (E), ``learned_similarity`` (L), ``search_length`` (η) and ``in_memory`` (embeddings in
        memory; at 0 the thresholds are not used) are per class. ``easy``, ``informative`` and ``outlier`` are shares of
        the last batch's samples of classes in memory, all 0 where there were none.
        """
        at = self._thresholds(self.average.dtype)
        easy, informative, outlier = (self.last_batch / self.last_batch.sum().clamp_min(1)).tolist()
        return {
            "effective_number": at.effective_number,
            "learned_similarity": self.hardness * self.average,
            "search_length": at.search_length,
            "in_memory": self.in_memory.clone(),
            "easy": easy,
            "informative": informative,
            "outlier": outlier,
        }

    def get_extra_state(self) -> Tensor:
        return torch.tensor([self.memory_on, self.filter_on])

    def set_extra_state(self, state: Tensor) -> None:
        self.memory_on, self.filter_on = state.tolist()

    def _thresholds(self, dtype: torch.dtype) -> Thresholds:
        n, learned = self.counts.to(self.average.dtype), self.hardness * self.average
        effective = torch.expm1(n.mul_(math.log1p(-1.0 / self.volume))).mul_(-self.volume)
        bound = torch.log1p(effective).add_(1.0).reciprocal_()
        share = effective.clamp_min(1.0).reciprocal_()
        if self.positive_penalty == "sigma":
            decayed = (effective + (self.decay - self.volume)).sigmoid_()
            positive = (bound - 1.0).mul_(decayed).mul_(1.0 + math.exp(-self.decay)).add_(1.0)
        elif self.positive_penalty in ("none", "uniform"):
            positive = torch.ones_like(bound)
        else:
            positive = bound if self.positive_penalty == "nu" else share
        easy_negative = share if self.negative_penalty == "effective" else torch.ones_like(share)
        # (1 + k (1 − L)) ν + λ
        further = torch.rsub(learned, 1.0 + self.sensitivity, alpha=self.sensitivity)
        search_length = further.mul_(bound).add_(self.search_margin)
        outlier = learned - search_length
        if not self.as_released or self.filter_after:
            known = self.counts >= self.filter_after
            if not self.as_released:
                known &= self.in_memory > 0
            positive = torch.where(known, positive, 1.0)
            # Every comparison with NaN is false: no sample of an unknown class is easy, informative or an outlier.
            learned, outlier = (torch.where(known, threshold, math.nan) for threshold in (learned, outlier))
        return Thresholds(*(x.to(dtype) for x in (effective, search_length, learned, outlier, positive, easy_negative)))

    def _enqueue(self, embeddings: Tensor, labels: Tensor, kept: Tensor) -> None:
        size, spare = self.memory_size, self.memory_size
        rank = kept.cumsum(0)
        # Of a batch larger than the memory only the last rows are written.
        stays = kept & (rank > rank[-1] - size)
        slot = torch.where(stays, (rank + (self.pointer - 1)).remainder_(size), spare)
        self.memory.index_copy_(0, slot, embeddings.to(self.memory.dtype))
        self.memory_labels.index_copy_(0, slot, labels)
        self.memory[spare].zero_()
        self.memory_labels[spare].fill_(self.num_classes)
        self.pointer.add_(rank[-1]).remainder_(size)

    def _average(
        self, labels: Tensor, positive_similarities: Callable[[Tensor, Tensor | None], Tensor], *, linear: bool
    ) -> None:
        classes, embeddings, owners = self.num_classes, self.memory[:-1], self.memory_labels[:-1]
        if linear:
            sums = embeddings.new_zeros(classes + 1, embeddings.shape[1]).index_add_(0, owners, embeddings)[:-1]
            total = positive_similarities(sums, None).to(self.average.dtype)
        else:
            similarity = positive_similarities(embeddings, owners.clamp_max(classes - 1)).to(self.average.dtype)
            total = self.average.new_zeros(classes + 1).index_add_(0, owners, similarity)[:-1]
        number = self.counts.new_zeros(classes + 1).index_add_(0, owners, torch.ones_like(owners))[:-1]
        present = (number > 0).logical_and_(torch.zeros_like(number, dtype=torch.bool).index_fill_(0, labels, True))
        torch.where(present, total.div_(number), self.average, out=self.average)
        self.in_memory.copy_(number)


class Thresholds(NamedTuple):
    """Per class ``[num_classes]``: E, η, L, L − η, σ for positives, and the weight of easy negatives (1/max(1, E))."""

    effective_number: Tensor
    search_length: Tensor
    learned: Tensor
    outlier: Tensor
    positive: Tensor
    easy_negative: Tensor


class Judgement(NamedTuple):
    """Whether each sample ``[N]`` of a batch is too easy for its class, informative, or an outlier."""

    easy: Tensor
    informative: Tensor
    outlier: Tensor
