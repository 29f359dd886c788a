from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy import stats

from nearkin.evaluation.statistics import (
    MOST_SEEDS,
    POWER,
    Difference,
    Statistic,
    combination_interval,
    difference_by_seed,
    fold_combinations,
    mean_interval,
    power_of_t,
    student_t,
)


@pytest.mark.parametrize("runs", [2, 3, 5, 12])
@pytest.mark.parametrize("paired", [True, False])
def test_intervals_and_verdicts_are_those_of_the_t_tests(runs, paired):
    rng = np.random.default_rng(runs)
    for gap in (0.0, 0.004, 0.02, 0.5):
        seeds = rng.normal(0.0, 0.01, runs)
        ours, theirs = 0.7 + gap + seeds + rng.normal(0, 0.004, runs), 0.7 + seeds
        theirs = theirs if paired else rng.normal(0.7, 0.02, runs + 3)
        test = stats.ttest_rel(ours, theirs) if paired else stats.ttest_ind(ours, theirs, equal_var=False)
        apart = Difference.of(Statistic.of(ours.tolist()), Statistic.of(theirs.tolist()), paired=paired)
        assert apart.interval == pytest.approx(tuple(test.confidence_interval()), abs=1e-9)
        assert (apart.verdict != "undecided") == (test.pvalue < 0.05)
        assert apart.runs == (runs, len(theirs))
        assert apart.verdict in ("above" if apart.value > 0 else "below", "undecided")
        assert (apart.more_seeds is None) == (apart.verdict != "undecided")


def power(df, shift):
    critical = stats.t.ppf(0.975, df)
    return stats.nct.sf(critical, df, shift) + stats.nct.cdf(-critical, df, shift)


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("gap", [0.012, 0.007, 0.004, 0.002])
def test_so_many_more_seeds_reach_the_power_and_one_fewer_does_not(gap, paired):
    theirs = [0.70, 0.71, 0.72]
    ours = [value + gap + away for value, away in zip(theirs, (0.009, -0.009, 0.0), strict=True)]
    apart = Difference.of(Statistic.of(ours), Statistic.of(theirs), paired=paired)
    assert apart.verdict == "undecided"
    if paired:
        deviation, df = np.std(np.subtract(ours, theirs), ddof=1), lambda n: n - 1
    else:
        first, second = np.var(ours, ddof=1), np.var(theirs, ddof=1)
        deviation = math.sqrt(first + second)
        df = lambda n: (n - 1) * (first + second) ** 2 / (first**2 + second**2)  # noqa: E731
    enough = [n for n in range(4, 54) if power(df(n), gap / deviation * math.sqrt(n)) >= POWER]
    assert apart.more_seeds == (enough[0] - 3 if enough else MOST_SEEDS + 1)


def test_rows_are_paired_where_their_seeds_are_the_same():
    ours, theirs = {0: 0.70, 1: 0.74}, {1: 0.73, 0: 0.68}
    apart = difference_by_seed(ours, theirs)
    assert (apart.paired, apart.value) == (True, pytest.approx(0.015))
    assert apart.spread == pytest.approx(0.01 / math.sqrt(2)), "of 0.02 and 0.01, whatever the order of the seeds"
    welch = difference_by_seed(ours, {1: 0.73, 2: 0.68})
    assert (welch.paired, welch.value) == (False, pytest.approx(0.015))
    assert welch.spread == pytest.approx(math.sqrt(0.04**2 / 2 + 0.05**2 / 2))
    assert difference_by_seed(ours, {}) is None


def test_without_any_spread_a_difference_is_decided_and_no_difference_never_is():
    theirs = Statistic.of([0.5, 0.75])
    assert Difference.of(Statistic.of([0.75, 1.0]), theirs, paired=True).verdict == "above"
    same = Difference.of(theirs, theirs, paired=True)
    assert (same.verdict, same.more_seeds) == ("undecided", MOST_SEEDS + 1)


def test_no_value_is_no_statistic_and_one_has_no_spread():
    assert Statistic.of([]) is None
    assert Statistic.of_key([None, {}, {"R@1": None}, {"MAP@R": 0.1}], "R@1") is None
    assert Statistic.of_key([{"R@1": 0.0}, None, {"R@1": 1}], "R@1").values == (0.0, 1.0)
    alone = Statistic.of([0.5])
    apart = Difference.of(alone, Statistic.of([0.4, 0.5]))
    assert (alone.spread, apart.interval, apart.verdict, apart.more_seeds) == (None, None, None, None)
    assert Difference.of(alone, alone, paired=True).verdict is None


def test_all_of_it_is_scaled():
    scaled = Statistic.of([0.5, 0.7], (0.4, 0.8)).scaled(100)
    assert scaled.mean == pytest.approx(60)
    assert scaled.spread == pytest.approx(10 * 2**0.5)
    assert scaled.values == pytest.approx((50, 70))
    assert scaled.interval == pytest.approx((40, 80))


@pytest.mark.parametrize("interval", [None, (0.25, 0.75)])
def test_what_is_written_is_read_back(interval):
    written = Statistic.of([0.5, 0.7], interval)
    assert Statistic.from_record(json.loads(json.dumps(written.as_record()))) == written
    assert Statistic.from_record({"mean": 0.5, "spread": None}) == Statistic(0.5)


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [
        (0.5, (0.25, 0.75), "above"),
        (-0.5, (-0.75, -0.25), "below"),
        (0.5, (0.0, 1.0), "undecided"),
        (-0.5, (-1.0, 0.0), "undecided"),
        (0.0, (0.0, 0.0), "undecided"),
        (0.5, None, None),
    ],
)
def test_a_difference_is_decided_where_its_interval_leaves_out_nothing(value, interval, verdict):
    assert Difference(value, 0.1, interval, (3, 4)).verdict == verdict


def test_seeds_of_the_smaller_side_count_and_beyond_fifty_their_number_is_not_said():
    """Both sides get the same number, as many as the smaller one has and more."""
    ours, theirs = [0.70, 0.72], [0.69, 0.70, 0.71, 0.72, 0.685]
    apart = Difference.of(Statistic.of(ours), Statistic.of(theirs))
    first, second, gap = np.var(ours, ddof=1), np.var(theirs, ddof=1), np.mean(ours) - np.mean(theirs)

    def decides(n):
        df = (n - 1) * (first + second) ** 2 / (first**2 + second**2)
        return power(df, gap / math.sqrt((first + second) / n)) >= POWER

    assert apart.verdict == "undecided"
    assert apart.more_seeds == next(more for more in range(1, 99) if decides(2 + more))
    tiny = Difference.of(Statistic.of([0.70, 0.72, 0.7101]), Statistic.of([0.70, 0.71, 0.72]))
    assert (tiny.verdict, tiny.more_seeds) == ("undecided", MOST_SEEDS + 1)


def test_power_is_a_number_where_a_tail_is_too_small_for_scipy():
    assert [round(power_of_t(df, shift), 2) for df, shift in ((3, 12.5), (3, 40.0), (2, 300.0))] == [1.0, 1.0, 1.0]


def test_numbers_are_written_with_so_many_digits():
    assert Statistic(12345.678, 0.25).text(2) == "12,345.68 ± 0.25"
    assert Statistic(0.5, 0.0).text() == "0.5 ± 0.0"


@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (30, 2.0423), (120, 1.9799), (1e6, 1.95997)],
)
def test_student_t_is_that_of_the_tables(df, expected):
    assert student_t(df) == pytest.approx(expected, abs=6e-5)


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
    assert power_of_t(df, shift) == pytest.approx(expected, abs=1e-7)  # what older scipy computes


def test_all_combinations_or_some_of_them():
    assert fold_combinations(4, 1).tolist() == [[0, 0, 0, 0]]
    every = fold_combinations(4, 4)
    assert len(every) == 256 == len({tuple(row) for row in every.tolist()})
    drawn = fold_combinations(4, 10, seed=7)
    assert drawn.shape == (256, 4)
    assert len({tuple(row) for row in drawn.tolist()}) == 256
    assert (drawn.min(), drawn.max()) == (0, 9)
    assert np.array_equal(drawn, fold_combinations(4, 10, seed=7))
    assert not np.array_equal(drawn, fold_combinations(4, 10, seed=8))
