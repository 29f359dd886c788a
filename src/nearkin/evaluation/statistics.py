"""Several runs in one number: mean and spread, and whether two of them differ by more than that."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nearkin.evaluation.confidence import Interval

Verdict = Literal["above", "below", "within the spread"]


@dataclass(frozen=True)
class Statistic:
    """Mean and sample standard deviation over runs; one run has no spread.

    >>> Statistic.of([0.5, 0.7]).spread, Statistic.of([0.5]).spread, Statistic.of([])
    (0.14142135623730948, None, None)
    """

    mean: float
    spread: float | None = None
    values: tuple[float, ...] = ()
    interval: Interval | None = None
    """Of the mean at 95 %, where it is known."""

    @classmethod
    def of(cls, values: Iterable[float], interval: Interval | None = None) -> Statistic | None:
        """None without any value."""
        each = tuple(values)
        if not each:
            return None
        return cls(statistics.fmean(each), statistics.stdev(each) if len(each) > 1 else None, each, interval)

    @classmethod
    def of_key(cls, rows: Iterable[Mapping[str, Any] | None], key: str) -> Statistic | None:
        """Over the mappings that have a value under ``key``."""
        return cls.of(float(row[key]) for row in rows if row and row.get(key) is not None)

    def scaled(self, factor: float) -> Statistic:
        return Statistic(
            factor * self.mean,
            None if self.spread is None else factor * self.spread,
            tuple(factor * value for value in self.values),
            None if self.interval is None else (factor * self.interval[0], factor * self.interval[1]),
        )

    def minus(self, other: Statistic) -> Difference:
        """The difference of two means, with the root of both variances' sum as its spread."""
        spread = None if self.spread is None or other.spread is None else math.hypot(self.spread, other.spread)
        return Difference(self.mean - other.mean, spread)

    def text(self, digits: int = 1) -> str:
        """``mean ± spread``.

        >>> Statistic(41.37, 0.52).text(), Statistic(284.2, None).text(0)
        ('41.4 ± 0.5', '284')
        """
        return f"{self.mean:,.{digits}f}" + ("" if self.spread is None else f" ± {self.spread:,.{digits}f}")

    def as_record(self) -> dict[str, Any]:
        record = {"mean": self.mean, "spread": self.spread, "values": list(self.values)}
        return record if self.interval is None else record | {"interval": list(self.interval)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Statistic:
        interval = record.get("interval")
        low_high = None if interval is None else (float(interval[0]), float(interval[1]))
        return cls(record["mean"], record["spread"], tuple(record.get("values", ())), low_high)


@dataclass(frozen=True)
class Difference:
    """How far apart two statistics are.

    >>> Statistic(0.70, 0.03).minus(Statistic(0.66, 0.04)).verdict
    'within the spread'
    """

    value: float
    spread: float | None

    @property
    def verdict(self) -> Verdict | None:
        """None without a spread."""
        if self.spread is None:
            return None
        if abs(self.value) <= self.spread:
            return "within the spread"
        return "above" if self.value > 0 else "below"

    def as_record(self) -> dict[str, Any]:
        return {"difference": self.value, "spread": self.spread, "verdict": self.verdict}


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
