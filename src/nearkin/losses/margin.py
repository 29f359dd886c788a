"""Margin loss: a learned boundary between near and far, and distance-weighted sampling."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from nearkin.losses.pair_loss import PairLoss, Pairs, hardest_negatives
from nearkin.numerics import EXCLUDED, Normalisation, check_choice

__all__ = ["Margin"]

NEAREST, FARTHEST = 0.5, 1.4
"""Negatives nearer than the first have the weight of that distance, and those beyond the second have none."""


class Margin(PairLoss):
    r"""Margin loss (Wu et al., ICCV 2017) with a trainable boundary.

    .. math::
        [d - \beta + \delta]_+ \text{ for positive pairs}, \qquad [\beta + \delta - d]_+ \text{ for negative pairs}

    with :math:`d` the Euclidean distance of the normalised vectors. It is :class:`~nearkin.losses.Contrastive` with the
    margins β − δ and β + δ, except that β is a Parameter and that positive and negative pairs weigh the same. Needs
    batches in which classes have at least two samples, or references.

    Args:
        margin: δ, half the width of the band around the boundary.
        beta: initial boundary β; ``loss.beta`` is the Parameter, for the optimiser.
        reduction: ``"nonzero"`` averages the non-zero terms; ``"pairs"`` divides the plain sum by the number of pairs,
            equation (3.3) of the PROFS paper.
        negatives: ``"all"`` negative pairs of each sample; its ``"hard"`` ones: the nearest, as many as it has positive
            pairs (PROFS, section 5.3); or ``"distance_weighted"``: for each positive pair one negative of its anchor is
            drawn, as Wu et al. do (:func:`sampling_weights`). With the first two and ``"nonzero"`` each positive pair
            counts once for each negative of its anchor, and each negative pair once for each positive.
        normalisation: ``"l2"`` or ``"ball"``; distance-weighted sampling is for the unit sphere, ``"l2"``.

    Example:
        >>> loss = Margin(beta=1.2, margin=0.2)
        >>> loss(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1]))
        tensor(0.4142, grad_fn=<DivBackward0>)
    """

    representatives = "balanced anchors"

    def __init__(
        self,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        reduction: Literal["nonzero", "pairs"] = "nonzero",
        negatives: Literal["all", "hard", "distance_weighted"] = "all",
        normalisation: Normalisation = "l2",
    ) -> None:
        super().__init__(normalisation=normalisation)
        check_choice("nonzero", "pairs", reduction=reduction)
        check_choice("all", "hard", "distance_weighted", negatives=negatives)
        if negatives == "distance_weighted" and normalisation != "l2":
            raise ValueError("negatives='distance_weighted' is for the unit sphere: it needs normalisation 'l2'")
        self.margin = margin
        self.beta = nn.Parameter(torch.tensor(float(beta)))
        self.reduction = reduction
        self.negatives = negatives
        self.steps = 0
        """Calls in training mode. They seed the draws, so that a resumed run and every process draw the same."""

    def from_pairs(self, pairs: Pairs) -> Tensor:
        if self.negatives == "hard":
            pairs = hardest_negatives(pairs)
        distance = pairs.distance()
        beta = self.beta.to(distance.dtype)
        pull = torch.where(pairs.positive, (distance - beta + self.margin).clamp_min(0.0), 0.0)
        push = torch.where(pairs.negative, (beta + self.margin - distance).clamp_min(0.0), 0.0)
        terms, times = pull + push, self._times(pairs)
        counted = times if self.reduction == "pairs" else times * (terms > 0)
        return (times * terms).sum() / counted.sum().clamp_min(1)

    def _times(self, pairs: Pairs) -> Tensor:
        """The weight of each pair, ``[N, M]``."""
        if self.negatives == "distance_weighted":
            return pairs.positive + self._draw(pairs)
        if self.reduction == "pairs":
            return pairs.positive | pairs.negative
        positives = pairs.positive.sum(dim=1, keepdim=True)
        negatives = pairs.negative.sum(dim=1, keepdim=True)
        return torch.where(pairs.positive, negatives, positives)

    @torch.no_grad()
    def _draw(self, pairs: Pairs) -> Tensor:
        """How often each negative pair is drawn, ``[N, M]``: for each sample as many as it has positive pairs."""
        weights = sampling_weights(pairs)
        # Consecutive seeds would give correlated numbers, so they are hashed.
        seed = np.random.SeedSequence((torch.initial_seed(), self.steps)).generate_state(1, np.uint64)
        generator = torch.Generator(weights.device).manual_seed(int(seed[0]) >> 1)
        self.steps += self.training
        drawn = torch.rand(weights.shape, generator=generator, dtype=weights.dtype, device=weights.device)
        shares = weights.cumsum(dim=1)
        index = torch.searchsorted(shares, drawn * shares[:, -1:], right=True).clamp_max(weights.shape[1] - 1)
        wanted = torch.arange(weights.shape[1], device=weights.device) < pairs.positive.sum(dim=1, keepdim=True)
        return torch.zeros_like(index).scatter_add_(1, index, wanted.long()) * (weights > 0)

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.steps)

    def set_extra_state(self, state: Tensor) -> None:
        self.steps = int(state)


@torch.no_grad()
def sampling_weights(pairs: Pairs) -> Tensor:
    r"""The probability with which each negative pair of a sample is drawn, ``[N, M]`` (Wu et al., section 4).

    The distance of two random points on the unit sphere has the density :math:`q(d) \propto
    d^{D-2}\,(1 - d^2/4)^{(D-3)/2}`, concentrated at √2. Weights of :math:`1/q(d)` make all distances equally likely.
    ``NEAREST`` bounds the weights, as very near negatives have noisy gradients, and negatives beyond ``FARTHEST`` cost
    nothing; both are as released. A sample with none nearer draws all its negatives with the same probability.

    Example:
        >>> sampling_weights(Margin().pairs(torch.eye(3), torch.tensor([0, 0, 1])))[2]
        tensor([0.5000, 0.5000, 0.0000])
    """
    distance, dim = pairs.distance(), pairs.queries.shape[1]
    near = pairs.negative & (distance < FARTHEST)
    d = distance.clamp(NEAREST, FARTHEST)
    log_weights = (2.0 - dim) * d.log() - (dim - 3.0) / 2 * (1.0 - d.square() / 4).log()
    log_weights = torch.where(near, log_weights, EXCLUDED)
    only_far = torch.where(pairs.negative, 0.0, EXCLUDED)
    weights = torch.where(near.any(dim=1, keepdim=True), log_weights, only_far).softmax(dim=1)
    return weights * pairs.negative
