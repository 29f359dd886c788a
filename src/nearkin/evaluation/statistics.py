"""Statistics over runs: mean, spread, interval, and whether two means differ."""

from __future__ import annotations

import bisect
import math
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

Interval = tuple[float, float]

Seed = TypeVar("Seed", bound=Hashable)
Verdict = Literal["above", "below", "undecided"]
POWER = 0.8
"""The power for which the number of further seeds is computed."""
MOST_SEEDS = 50
"""A larger number of further seeds is not computed."""


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
    """Of the mean at 95 %, if known."""

    @classmethod
    def of(cls, values: Iterable[float], interval: Interval | None = None) -> Statistic | None:
        """None without any value."""
        items = tuple(values)
        if not items:
            return None
        return cls(statistics.fmean(items), statistics.stdev(items) if len(items) > 1 else None, items, interval)

    @classmethod
    def of_key(cls, rows: Iterable[Mapping[str, Any] | None], key: str) -> Statistic | None:
        """Over the rows that have a value under ``key``."""
        return cls.of(float(row[key]) for row in rows if row and row.get(key) is not None)

    def scaled(self, factor: float) -> Statistic:
        return Statistic(
            factor * self.mean,
            None if self.spread is None else factor * self.spread,
            tuple(factor * value for value in self.values),
            None if self.interval is None else (factor * self.interval[0], factor * self.interval[1]),
        )

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
    """The difference of two means, and whether their runs suffice to decide its sign.

    >>> apart = Difference.of(Statistic.of([0.70, 0.71, 0.73]), Statistic.of([0.66, 0.68, 0.69]), paired=True)
    >>> apart.verdict, round(apart.value, 4), round(apart.interval[0], 4), round(apart.interval[1], 4)
    ('above', 0.0367, 0.0223, 0.051)
    """

    value: float
    spread: float | None
    """Standard deviation of the paired differences, or the root of the sum of both variances."""
    interval: Interval | None = None
    """Of the difference at 95 %, by Student's t; None where one side has a single run."""
    runs: tuple[int, int] = (0, 0)
    """Of the one and of the other."""
    paired: bool = False
    more_seeds: int | None = None
    """Further seeds per side that would decide with a probability of 80 %, if value and spread are right;
    ``MOST_SEEDS + 1`` means more than :data:`MOST_SEEDS`. None where the sign is decided or there is no interval."""

    @classmethod
    def of(cls, ours: Statistic, theirs: Statistic, *, paired: bool = False) -> Difference:
        """The difference of two means: over ``paired`` values, or by Welch's method."""
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
        more = _more_seeds(value, variances, min(runs)) if abs(value) <= half else None
        return cls(value, spread, (value - half, value + half), runs, paired, more)

    @property
    def verdict(self) -> Verdict | None:
        """``undecided`` where the interval contains 0; None without an interval."""
        if self.interval is None:
            return None
        if self.interval[0] > 0 or self.interval[1] < 0:
            return "above" if self.value > 0 else "below"
        return "undecided"


def difference_by_seed(ours: Mapping[Seed, float], theirs: Mapping[Seed, float]) -> Difference | None:
    """The difference of two rows of scores by seed: paired where the seeds agree; None where a row has no score.

    >>> difference_by_seed({0: 0.70, 1: 0.71}, {1: 0.69, 0: 0.67}).paired, difference_by_seed({0: 0.7}, {})
    (True, None)
    """
    paired = ours.keys() == theirs.keys()
    mine = Statistic.of(ours.values())
    other = Statistic.of(theirs[seed] for seed in ours) if paired else Statistic.of(theirs.values())
    return None if mine is None or other is None else Difference.of(mine, other, paired=paired)


def _error_of(variances: Sequence[float], runs: tuple[int, int]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a difference: of pairs (one variance), or by Welch (two)."""
    parts = [variance / number for variance, number in zip(variances, runs, strict=False)]
    total = sum(parts)
    spare = sum(part**2 / (number - 1) for part, number in zip(parts, runs, strict=False))
    return math.sqrt(total), total**2 / spare if spare else 1.0


def _more_seeds(value: float, variances: Sequence[float], now: int) -> int:
    def decides(more: int) -> bool:
        error, df = _error_of(variances, (now + more, now + more))
        return power_of_t(df, abs(value) / error) >= POWER

    return 1 + bisect.bisect_left(range(1, MOST_SEEDS + 1), True, key=decides) if value else MOST_SEEDS + 1


def student_t(df: float) -> float:
    """The two-sided quantile of Student's t at 95 %.

    >>> round(student_t(9), 3), round(student_t(1), 2)
    (2.262, 12.71)
    """
    return float(special.stdtrit(df, 0.975))


def power_of_t(df: float, shift: float) -> float:
    """How often a two-sided t-test at 95 % finds a true difference of ``shift`` standard errors."""
    critical = student_t(df)
    # scipy gives NaN for a tail that is too small.
    below, beyond = np.nan_to_num([special.nctdtr(df, shift, critical), special.nctdtr(df, shift, -critical)])
    return float(1.0 - below + beyond)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean of independent ``values`` at 95 %; None with fewer than two.

    >>> low, high = mean_interval([0.60, 0.62, 0.64])
    >>> round(low, 4), round(high, 4)
    (0.5703, 0.6697)
    """
    if len(values) < 2:
        return None
    mean = statistics.fmean(values)
    half = student_t(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def combination_interval(combinations: NDArray[np.int64], values: Sequence[float]) -> Interval | None:
    """The interval at 95 % of an ensemble's mean score over combinations of repeated models; None without repeats.

    Combinations that share a model are not independent, so Student's t over combinations would be far too narrow. Here
    the models are the sample: least squares fits what each model adds to the score of its combinations, and the
    variance of the mean is the sum over folds of the variance of these parts, divided by the number of repeats. The
    degrees of freedom are those of Welch and Satterthwaite.

    Args:
        combinations: ``[N, F]``, which repeat of each of the F folds a combination takes.
        values: ``[N]``, its score.

    Example:
        >>> pairs = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
        >>> low, high = combination_interval(pairs, [0.64, 0.65, 0.66, 0.67])
        >>> round(low, 4), round(high, 4)
        (0.5858, 0.7242)
    """
    scores = np.asarray(values, dtype=np.float64)
    repeats = int(combinations.max()) + 1
    if repeats < 2:
        return None
    members = np.eye(repeats)[combinations]
    parts = np.linalg.lstsq(members.reshape(len(scores), -1), scores, rcond=None)[0].reshape(-1, repeats)
    variances = parts.var(axis=1, ddof=1) / repeats
    total = float(variances.sum())
    half = 0.0
    if total > 0:
        half = student_t((repeats - 1) * total**2 / float((variances**2).sum())) * math.sqrt(total)
    return float(scores.mean()) - half, float(scores.mean()) + half


def fold_combinations(folds: int, repeats: int, *, limit: int = 256, seed: int = 0) -> NDArray[np.int64]:
    """Which repeat each fold's model is taken from: all ``repeats ** folds`` combinations, or ``limit`` of them.

    Returns ``[N, folds]``, in ascending order, drawn without replacement.

    >>> fold_combinations(2, 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    possible = repeats**folds
    if possible <= limit:
        numbers = np.arange(possible)
    else:
        rng = np.random.Generator(np.random.Philox(seed))
        numbers = np.sort(rng.choice(possible, limit, replace=False))
    return np.stack(np.unravel_index(numbers, (repeats,) * folds), axis=1).astype(np.int64)
