"""Plain training: no hook of the loop is changed."""

from __future__ import annotations

from nearkin.training.state import Method

__all__ = ["Plain"]


class Plain(Method):
    """One loss, with batches from the recipe's sampler."""
