from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy import stats

from nearkin.evaluation.confidence import combination_interval, mean_interval, power_of_t, student_t


@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799), (1e6, 1.95997)],
)
def test_student_t_is_that_of_the_tables(df, expected):
    assert student_t(df) == pytest.approx(expected, abs=6e-5)


def test_student_t_at_another_level():
    assert student_t(5, level=0.99) == pytest.approx(4.0321, abs=6e-5)
    for df, level in ((0, 0.95), (-1, 0.95), (3, 0), (3, 1), (3, 1.5)):
        with pytest.raises(ValueError, match="df must be above 0 and level between 0 and 1"):
            student_t(df, level=level)


@pytest.mark.parametrize("df", [1, 1.7, 5, 60, 3000])
@pytest.mark.parametrize("level", [0.1, 0.8, 0.999])
def test_student_t_is_scipys(df, level):
    assert student_t(df, level=level) == pytest.approx(stats.t.ppf(0.5 + level / 2, df), rel=1e-7)


def test_interval_of_a_mean_by_hand():
    # Mean 0.5, deviations 0.01 twice and 0 once: s = 0.01, s / √3 = 0.0057735, times 4.3027.
    low, high = mean_interval([0.49, 0.50, 0.51])
    assert (low, high) == pytest.approx((0.5 - 0.024842, 0.5 + 0.024842), abs=1e-6)
    assert mean_interval([0.5]) is None
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5)


def test_interval_over_combinations_by_hand():
    # Two folds, three repeats. Fold 0 adds 0, 0.03, 0.06 (variance 0.0009), fold 1 adds 0, 0, 0.03 (variance 0.0003).
    adds = ((0.0, 0.03, 0.06), (0.0, 0.0, 0.03))
    combinations = np.array(list(itertools.product(range(3), repeat=2)))
    values = [0.5 + adds[0][first] + adds[1][second] for first, second in combinations]
    low, high = combination_interval(combinations, values)
    assert 0.5 * (low + high) == pytest.approx(0.54)
    # Variance of the mean 0.0012 / 3 = 0.0004; 2 · (0.0003 + 0.0001)² / (0.0003² + 0.0001²) = 3.2 degrees of freedom.
    assert 0.5 * (high - low) == pytest.approx(0.02 * student_t(3.2))
    assert student_t(4) < student_t(3.2) < student_t(3)


def test_combinations_that_were_drawn_give_the_same_where_models_only_add_up():
    rng = np.random.default_rng(0)
    adds = rng.normal(0, 0.01, (4, 6))
    every = np.array(list(itertools.product(range(6), repeat=4)))
    values = adds[np.arange(4), every].sum(axis=1)
    some = rng.choice(len(every), 200, replace=False)
    whole, drawn = combination_interval(every, values), combination_interval(every[some], values[some])
    assert drawn[1] - drawn[0] == pytest.approx(whole[1] - whole[0])


def test_the_interval_holds_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(1)
    combinations = np.array(list(itertools.product(range(3), repeat=4)))
    held = naive = 0
    for _ in range(250):
        adds = rng.normal(0, 1, (4, 3))
        values = adds[np.arange(4), combinations].sum(axis=1)
        low, high = combination_interval(combinations, values)
        held += low <= 0 <= high
        low, high = mean_interval(values)
        naive += low <= 0 <= high
    assert 0.92 < held / 250 < 0.99
    assert naive / 250 < 0.6, "combinations are not independent"


def test_no_repeats_no_interval():
    assert combination_interval(np.zeros((1, 4), dtype=np.int64), [0.5]) is None
    pair = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
    assert combination_interval(pair, [0.5] * 4) == pytest.approx((0.5, 0.5))


@pytest.mark.parametrize("df", [1, 2, 4.3, 11, 200])
@pytest.mark.parametrize("shift", [0.0, 0.7, 2.8, 5.0])
def test_power_is_that_of_the_noncentral_t(df, shift):
    critical = stats.t.ppf(0.975, df)
    expected = stats.nct.sf(critical, df, shift) + stats.nct.cdf(-critical, df, shift)
    assert power_of_t(df, shift) == pytest.approx(expected, abs=1e-9)
