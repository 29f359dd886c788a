from __future__ import annotations

import json
import math

import pytest

from nearkin.evaluation.statistics import Statistic, rank_correlation


def test_ranks_of_equal_values_are_shared():
    # Ranks 0.5, 0.5, 2, 3 and 0, 1, 2, 3: covariance 4.5 over the root of 4.5 · 5.
    assert rank_correlation([1, 1, 4, 9], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert math.isnan(rank_correlation([1, 1], [1, 2]))


@pytest.mark.parametrize(
    ("ours", "verdict"),
    [(0.70, "within the spread"), (0.75, "within the spread"), (0.76, "above"), (0.64, "below")],
)
def test_within_the_spread_means_at_most_the_root_of_both_variances(ours, verdict):
    # 0.03 and 0.04: root of 0.0009 + 0.0016 is 0.05, a hair more so that rounding does not decide.
    assert Statistic(ours, 0.03).minus(Statistic(0.70, 0.04001)).verdict == verdict


def test_no_value_is_no_statistic_and_one_has_no_spread():
    assert Statistic.of([]) is None
    assert Statistic.of_key([None, {}, {"R@1": None}, {"MAP@R": 0.1}], "R@1") is None
    assert Statistic.of_key([{"R@1": 0.0}, None, {"R@1": 1}], "R@1").values == (0.0, 1.0)
    alone = Statistic.of([0.5])
    assert (alone.spread, alone.minus(Statistic(0.4, 0.1)).verdict) == (None, None)


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
