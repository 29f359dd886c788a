"""N-pair loss: a softmax over one positive and the positives of the other classes."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.losses.pair_loss import PairLoss, Pairs, mean_where, products
from nearkin.numerics import Normalisation, check_at_least, log_sum_exp_where

__all__ = ["NPair"]


class NPair(PairLoss):
    r"""N-pair loss (Sohn, NeurIPS 2016).

    .. math::
        \log\Big(1+\sum_{n}e^{s_{an}-s_{ap}}\Big), \quad \text{averaged over the pairs of anchor and positive}

    with :math:`s` the inner product of the vectors. Without references the first sample of a class is its anchor, the
    second its positive, and the positives of the other classes are the anchor's negatives. Further samples, and classes
    with only one, are ignored, so batches should have two samples per class. With references every sample is an anchor,
    the references of its class are its positives and the others its negatives.

    Normalised vectors have inner products of at most 1, so that the softmax is nearly flat. Sohn does not normalise
    them and adds :math:`\tfrac{\lambda}{2}` times the mean of :math:`\lVert x\rVert^2` over anchors and positives:
    ``NPair(length_penalty=0.002)``, with TensorFlow's λ, as he gives none. In a training run the network then does not
    normalise either; its embeddings are normalised only for scores and search.

    Args:
        length_penalty: λ, for vectors with their own length; None for normalised ones without a penalty.
        normalisation: ``"l2"`` or ``"ball"``, of normalised vectors.

    Example:
        >>> loss = NPair()
        >>> loss(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 0, 1, 1]))
        tensor(0.3133)
    """

    representatives = "positives"

    def __init__(self, *, length_penalty: float | None = None, normalisation: Normalisation = "l2") -> None:
        super().__init__(normalisation=normalisation)
        check_at_least(0, length_penalty=length_penalty)
        self.length_penalty = length_penalty
        self.keeps_length = length_penalty is not None

    def from_pairs(self, pairs: Pairs) -> Tensor:
        negatives = log_sum_exp_where(pairs.similarity, pairs.negative, dim=1)
        value = mean_where(F.softplus(negatives[:, None] - pairs.similarity), pairs.positive)
        if self.length_penalty:
            for vectors, dim in ((pairs.queries, 1), (pairs.references, 0)):
                mean = mean_where(vectors.square().sum(1), pairs.positive.any(dim))
                value = value + self.length_penalty / 4 * mean
        return value

    def _within(self, embeddings: Tensor, labels: Tensor) -> Pairs:
        anchors, positives, exists = _first_two(labels)
        chosen = embeddings.index_select(0, torch.cat([anchors, positives]))
        queries, references = self._normalised(chosen).chunk(2)
        positive = torch.diag(exists)
        negative = (exists[:, None] & exists) ^ positive
        return Pairs(queries, references, products(queries, references), positive, negative, within_batch=False)


def _first_two(labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Indices ``[N // 2]`` of the first and of the second sample of each class with two, and which entries are valid.

    The number of entries does not depend on the labels, which would have to be read back from the device.
    """
    if len(labels) < 2:
        return torch.zeros_like(labels), torch.zeros_like(labels), torch.zeros_like(labels, dtype=torch.bool)
    ordered, order = labels.sort(stable=True)
    repeats = ordered[1:] == ordered[:-1]
    # A second sample repeats its neighbour's label, and that neighbour repeats nobody's.
    second = repeats.clone()
    second[1:] &= ~repeats[:-1]
    index = second.byte().argsort(descending=True, stable=True)[: len(labels) // 2]
    return order[index], order[index + 1], second[index]
