"""Figures over several runs: mean and spread, and whether two of them differ by more than that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def figure(values: Sequence[float]) -> dict[str, Any] | None:
    """Mean and sample standard deviation; no spread with one value, nothing with none.

    >>> figure([0.5, 0.7])["spread"]
    0.14142135623730948
    >>> figure([0.5])
    {'mean': 0.5, 'spread': None, 'values': [0.5]}
    """
    if not values:
        return None
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "spread": spread, "values": list(values)}


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's ρ: whether two lists put the same things in the same order. NaN where one of them orders nothing.

    >>> rank_correlation([0.1, 0.5, 0.3], [10.0, 1000.0, 20.0]), rank_correlation([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """

    def ranks(values: Sequence[float]) -> list[float]:
        # Values that are equal share the middle of their places.
        return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]

    by_first, by_second = ranks(list(first)), ranks(list(second))
    if len(set(by_first)) < 2 or len(set(by_second)) < 2:
        return math.nan
    return statistics.correlation(by_first, by_second)


def difference(ours: Mapping[str, Any] | None, theirs: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The difference of two figures, and whether it is within the spread: the root of both variances' sum.

    >>> difference({"mean": 0.70, "spread": 0.03}, {"mean": 0.66, "spread": 0.04})["verdict"]
    'within the spread'
    """
    if ours is None or theirs is None:
        return None
    apart = ours["mean"] - theirs["mean"]
    if ours["spread"] is None or theirs["spread"] is None:
        return {"difference": apart, "spread": None, "verdict": None}
    spread = math.hypot(ours["spread"], theirs["spread"])
    verdict = "within the spread" if abs(apart) <= spread else ("above" if apart > 0 else "below")
    return {"difference": apart, "spread": spread, "verdict": verdict}
