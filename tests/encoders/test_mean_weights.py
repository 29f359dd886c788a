"""The mean of weights against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from nearkin.encoders import build_encoder
from nearkin.encoders.mean_weights import MeanWeights


def mean_of(*states):
    mean = MeanWeights()
    for state in states:
        mean.add(state)
    return mean.weights()


def test_parameters_and_buffers_are_averaged_and_whole_numbers_are_the_firsts():
    one = {"weight": torch.tensor([[1.0, -2.0], [0.5, 8.0]]), "mean": torch.tensor([3.0]), "seen": torch.tensor(4)}
    two = {"weight": torch.tensor([[3.0, 2.0], [0.25, 0.0]]), "mean": torch.tensor([5.0]), "seen": torch.tensor(9)}
    found = mean_of(one, two)
    assert list(found) == ["weight", "mean", "seen"]
    torch.testing.assert_close(found["weight"], torch.tensor([[2.0, 0.0], [0.375, 4.0]]))
    torch.testing.assert_close(found["mean"], torch.tensor([4.0]))
    assert found["seen"].item() == 4


def test_each_of_three_counts_the_same():
    found = mean_of(*({"weight": torch.tensor([value])} for value in (1.0, 10.0, 100.0)))
    assert found["weight"].item() == pytest.approx(37.0)


def test_small_weights_are_not_lost_beside_large_ones():
    """In float32 the first two would add up to the large one alone."""
    found = mean_of(*({"weight": torch.tensor([value])} for value in (1e8, 1.0, -1e8, 2.0)))
    assert found["weight"].item() == pytest.approx(0.75)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_precision_is_that_of_the_weights(dtype):
    found = mean_of({"weight": torch.ones(2, dtype=dtype)}, {"weight": torch.zeros(2, dtype=dtype)})
    assert found["weight"].dtype == dtype
    assert found["weight"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_was_added_stays_as_it_was_and_may_change_later(dtype):
    first, second = ({"weight": torch.tensor([value], dtype=dtype), "seen": torch.tensor(4)} for value in (1.0, 3.0))
    mean = MeanWeights()
    mean.add(first)
    mean.add(second)
    assert (first["weight"].item(), second["weight"].item()) == (1.0, 3.0)
    for value in first.values():
        value.zero_()
    for _ in range(2):
        assert mean.weights()["weight"].item() == pytest.approx(2.0)
        assert mean.weights()["seen"].item() == 4


def test_the_order_makes_no_difference():
    torch.manual_seed(0)
    states = [build_encoder("small", dim=4).state_dict() for _ in range(3)]
    one, two = mean_of(*states), mean_of(*reversed(states))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, rtol=1e-6, atol=1e-12)


def test_weights_of_another_network_are_refused():
    mean = MeanWeights()
    with pytest.raises(ValueError, match="mean of nothing"):
        mean.weights()
    mean.add({"weight": torch.zeros(2, 3)})
    for other in ({"weight": torch.zeros(3)}, {"bias": torch.zeros(2, 3)}, {}):
        with pytest.raises(ValueError, match="another network"):
            mean.add(other)
