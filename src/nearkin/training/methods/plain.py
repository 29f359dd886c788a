"""Plain training: every hook of the loop as it is."""

from __future__ import annotations

from nearkin.training.state import Method

__all__ = ["Plain"]


class Plain(Method):
    """One loss, batches from the recipe's sampler, nothing else."""
