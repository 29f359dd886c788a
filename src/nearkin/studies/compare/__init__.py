"""A comparison: baselines and methods on one recipe, with equal budget, over several seeds."""

from __future__ import annotations

from nearkin.studies.compare.comparison import Comparison, compare

__all__ = ["Comparison", "compare"]
