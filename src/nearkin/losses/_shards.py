"""Which classes of a loss are held here, when they are spread over processes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from nearkin import ranks


@dataclass(frozen=True)
class Shards:
    """Classes ``first, first + 1, …`` are here, as many as the bank has, of ``classes`` in all.

    As it stands, for one process that holds all of them. A subclass says how to add up over processes; what it returns
    must be the same on every one of them.
    """

    first: int = 0
    classes: int | None = None
    """None: as many as the bank has."""

    def sum(self, x: Tensor) -> Tensor:
        """``x`` added up over processes, element by element."""
        return x

    def log_sum_exp(self, x: Tensor) -> Tensor:
        """``log Σ exp x`` over processes, element by element."""
        return x

    def rows(self, labels: Tensor, held: int) -> tuple[Tensor, Tensor]:
        """For each label the row of its class among the ``held`` ones, and whether it is one of them; if not, any row.

        >>> import torch
        >>> Shards(first=3, classes=9).rows(torch.tensor([4, 7]), 3)
        (tensor([1, 2]), tensor([ True, False]))
        """
        rows = labels - self.first
        return rows.clamp(0, held - 1), (rows >= 0) & (rows < held)


ALL_HERE = Shards()


class OfRanks(Shards):
    """Classes that are spread over the processes of a run."""

    def sum(self, x: Tensor) -> Tensor:
        return ranks.sum_of_parts(x)

    def log_sum_exp(self, x: Tensor) -> Tensor:
        return ranks.gather_rows(x[None], ranks.world()).logsumexp(0)
