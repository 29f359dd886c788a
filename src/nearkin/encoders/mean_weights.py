"""The mean of the weights of several encoders of one architecture."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


class MeanWeights:
    """Adds up state dictionaries, one at a time, so that no more than two sets of weights are in memory.

    Sums are kept in float64: float32 rounds once, at the end, and the order makes no difference beyond that. Whole
    numbers, such as how many batches a batch-norm has seen, have no mean and are those of the first.

    >>> import torch
    >>> mean = MeanWeights()
    >>> mean.add({"weight": torch.tensor([1.0, 2.0]), "batches": torch.tensor(7)})
    >>> mean.add({"weight": torch.tensor([2.0, 6.0]), "batches": torch.tensor(9)})
    >>> mean.weights()
    {'weight': tensor([1.5000, 4.0000]), 'batches': tensor(7)}
    """

    def __init__(self) -> None:
        self._first: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._count = 0

    def add(self, weights: Mapping[str, Tensor]) -> None:
        """Take in one encoder's; they are copied."""
        if not self._count:
            self._first = {name: each.detach().cpu().clone() for name, each in weights.items()}
            self._sums = {name: each.double() for name, each in self._first.items() if each.is_floating_point()}
        else:
            shapes = {name: tuple(each.shape) for name, each in weights.items()}
            if shapes != {name: tuple(each.shape) for name, each in self._first.items()}:
                raise ValueError("weights must have the same names and shapes as those before: is it another network?")
            for name, total in self._sums.items():
                total += weights[name].detach().cpu().double()
        self._count += 1

    def weights(self) -> dict[str, Tensor]:
        """The mean, in the precision of the first, on the host."""
        if not self._count:
            raise ValueError("there is no mean of nothing: add weights first")
        means = {name: (total / self._count).to(self._first[name].dtype) for name, total in self._sums.items()}
        return {name: means.get(name, first) for name, first in self._first.items()}
