"""Confidence intervals of mean scores, for repeated runs and for ensembles that share models."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]


def student_t(df: float, *, level: float = 0.95) -> float:
    """The two-sided quantile of Student's t: so many standard errors to each side hold ``level`` of it.

    >>> round(student_t(9), 3), round(student_t(1), 2)
    (2.262, 12.71)
    """
    if df <= 0 or not 0 < level < 1:
        raise ValueError(f"df must be above 0 and level between 0 and 1, got {df} and {level}")
    # With t = √df · tan(angle) the density is a power of the cosine, smooth on a finite range.
    log_scale = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(math.pi)
    nodes, weights = np.polynomial.legendre.leggauss(128)

    def inside(angle: float) -> float:
        height = np.cos(0.5 * angle * (nodes + 1)) ** (df - 1)
        return 2 * math.exp(log_scale) * 0.5 * angle * float(weights @ height)

    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if inside(middle) < level else (low, middle)
    return math.sqrt(df) * math.tan(0.5 * (low + high))


def power_of_t(df: float, shift: float) -> float:
    """How often a two-sided t-test at 95 % finds a true difference of ``shift`` standard errors.

    >>> round(power_of_t(9, 3.0), 3), round(power_of_t(9, 0.0), 3)
    (0.761, 0.05)
    """
    critical = student_t(df)
    # t is a normal number over the root of χ²/df, which lies around 1: the normal's share, averaged over that root.
    most = 1 + 10 / math.sqrt(2 * df)
    nodes, weights = np.polynomial.legendre.leggauss(256)
    roots = 0.5 * most * (nodes + 1)
    log_scale = math.log(2) + 0.5 * df * math.log(0.5 * df) - math.lgamma(0.5 * df)
    density = np.exp(log_scale + (df - 1) * np.log(roots) - 0.5 * df * roots**2)
    beyond = [_below(shift - critical * root) + _below(-shift - critical * root) for root in roots.tolist()]
    return float(0.5 * most * (weights * density) @ np.array(beyond))


def _below(x: float) -> float:
    """The share of the normal distribution below ``x``."""
    return 0.5 * math.erfc(-x / math.sqrt(2))


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean of independent ``values`` at 95 %; None with fewer than two.

    >>> low, high = mean_interval([0.60, 0.62, 0.64])
    >>> round(low, 4), round(high, 4)
    (0.5703, 0.6697)
    """
    if len(values) < 2:
        return None
    array = np.asarray(values, dtype=np.float64)
    half = student_t(len(array) - 1) * float(array.std(ddof=1)) / math.sqrt(len(array))
    return float(array.mean()) - half, float(array.mean()) + half


def combination_interval(combinations: NDArray[np.int64], values: Sequence[float]) -> Interval | None:
    """The interval at 95 % of an ensemble's mean score over combinations of repeated models; None without repeats.

    Two combinations that share a model are not independent, so Student's t over the combinations, of which there may be
    hundreds, would be far too narrow. Here the models are the sample. How much each one adds to the score of the
    combinations it is in, less what the others in them add, is fitted by least squares; the variances of these parts,
    fold by fold, over the number of repeats add up to that of the mean. The degrees of freedom are those of Welch and
    Satterthwaite.

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
