"""Several runs in one number: mean and spread, and whether two of them differ by more than that."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from nearkin.evaluation.confidence import Interval, power_of_t, student_t

Seed = TypeVar("Seed", bound=Hashable)
Verdict = Literal["above", "below", "undecided"]
POWER = 0.8
"""How likely further seeds should be to decide, when it is said how many."""
MOST_SEEDS = 50
"""Beyond so many more, their number is not worth saying."""


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

    def minus(self, other: Statistic, *, paired: bool = False) -> Difference:
        """The difference of two means: of ``paired`` values one by one, else as Welch has it."""
        return Difference.of(self, other, paired=paired)

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
    """How far apart two statistics are, and whether their runs decide it.

    >>> apart = Statistic.of([0.70, 0.71, 0.73]).minus(Statistic.of([0.66, 0.68, 0.69]), paired=True)
    >>> apart.verdict, round(apart.value, 4), round(apart.interval[0], 4), round(apart.interval[1], 4)
    ('above', 0.0367, 0.0223, 0.051)
    """

    value: float
    spread: float | None
    """Standard deviation of the differences of pairs, or the root of both variances' sum."""
    interval: Interval | None = None
    """Of the difference at 95 %, by Student's t; None where one side has a single run."""
    runs: tuple[int, int] = (0, 0)
    """Of the one and of the other."""
    paired: bool = False
    more_seeds: int | None = None
    """So many more on each side would decide with a probability of 80 %, if the difference and the spread are what they
    seem; ``MOST_SEEDS + 1`` stands for all that is more. None where it is decided or nothing is known."""

    @classmethod
    def of(cls, ours: Statistic, theirs: Statistic, *, paired: bool = False) -> Difference:
        """Both with their values, which are in the same order where they are ``paired``."""
        value, runs = ours.mean - theirs.mean, (len(ours.values), len(theirs.values))
        sides: list[Statistic | None] = [ours, theirs]
        if paired:
            sides = [Statistic.of(a - b for a, b in zip(ours.values, theirs.values, strict=True))]
        variances = [side.spread**2 for side in sides if side is not None and side.spread is not None]
        if len(variances) < len(sides) or min(runs) < 2:
            return cls(value, None, None, runs, paired)
        spread = math.sqrt(sum(variances))
        error, df = _error_of(variances, runs)
        half = student_t(df) * error if error else 0.0
        found = cls(value, spread, (value - half, value + half), runs, paired)
        return (
            replace(found, more_seeds=_more_seeds(value, variances, min(runs)))
            if found.verdict == "undecided"
            else found
        )

    @property
    def verdict(self) -> Verdict | None:
        """By whether the interval leaves out 0; None without an interval."""
        if self.interval is None:
            return None
        if self.interval[0] > 0 or self.interval[1] < 0:
            return "above" if self.value > 0 else "below"
        return "undecided"

    def as_record(self) -> dict[str, Any]:
        return {
            "difference": self.value,
            "spread": self.spread,
            "interval": None if self.interval is None else list(self.interval),
            "verdict": self.verdict,
            "runs": list(self.runs),
            "paired": self.paired,
            "more_seeds": self.more_seeds,
        }


def difference_by_seed(ours: Mapping[Seed, float], theirs: Mapping[Seed, float]) -> Difference | None:
    """Of two rows with a score for each seed: paired where the seeds are the same; None where one has no score.

    >>> difference_by_seed({0: 0.70, 1: 0.71}, {1: 0.69, 0: 0.67}).paired, difference_by_seed({0: 0.7}, {})
    (True, None)
    """
    paired = ours.keys() == theirs.keys()
    mine = Statistic.of(ours.values())
    other = Statistic.of(theirs[seed] for seed in ours) if paired else Statistic.of(theirs.values())
    return None if mine is None or other is None else mine.minus(other, paired=paired)


def _error_of(variances: Sequence[float], runs: tuple[int, int]) -> tuple[float, float]:
    """Standard error of a difference and its degrees of freedom: of pairs, with one variance, or as Welch has them."""
    parts = [variance / number for variance, number in zip(variances, runs, strict=False)]
    total = sum(parts)
    spare = sum(part**2 / (number - 1) for part, number in zip(parts, runs, strict=False))
    return math.sqrt(total), total**2 / spare if spare else 1.0


def _more_seeds(value: float, variances: Sequence[float], now: int) -> int:
    def decides(more: int) -> bool:
        error, df = _error_of(variances, (now + more, now + more))
        return power_of_t(df, abs(value) / error) >= POWER

    return 1 + bisect.bisect_left(range(1, MOST_SEEDS + 1), True, key=decides) if value else MOST_SEEDS + 1


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
