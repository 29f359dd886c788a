from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.evaluation.selection import (
    above,
    argsort_rows,
    at_places,
    falling,
    places_for_sure,
    positions,
    sorted_by,
    spread,
)


@pytest.mark.parametrize("shape", [(5, 7), (8, 16), (1, 1)])
def test_positions_and_above_are_what_they_say(shape):
    rng = np.random.default_rng(0)
    values = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
    rows, columns = (torch.from_numpy(rng.normal(size=count).astype(np.float32)) for count in shape)
    assert torch.equal(positions(values > 0.5), (values > 0.5).flatten().nonzero()[:, 0])
    for each in (values, values.bfloat16()):
        held = rows.to(each.dtype).float(), columns.to(each.dtype).float()
        by_row, by_column = each > held[0][:, None], each > held[1]
        assert torch.equal(above(each, held[0]), positions(by_row))
        assert torch.equal(above(each, *held), positions(by_row | by_column))


def test_bfloat16_is_compared_by_its_bits_only_where_they_order():
    values = torch.tensor([[-2.0, -1.0, 0.0, 0.5, float("-inf")]], dtype=torch.bfloat16)
    assert above(values, torch.tensor([0.0])).tolist() == [3]
    assert above(values, torch.tensor([-1.5])).tolist() == [1, 2, 3]


def test_rows_in_order_and_runs_of_numbers():
    values = torch.tensor([[3.0, 1.0, 2.0], [0.0, float("inf"), -1.0]])
    assert argsort_rows(values).tolist() == [[1, 2, 0], [2, 0, 1]]
    assert spread(torch.tensor([4, 9, 0]), torch.tensor([2, 0, 3])).tolist() == [4, 5, 0, 1, 2]


def test_falling_order_of_any_float32():
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(300, 1000)).astype(np.float32))
    x[:, ::143] = torch.tensor([-1e30, 1e-40, -1e-40, -np.inf, np.inf, 1.0, 1.0000001])
    order = falling(x)
    assert torch.equal(order.sort(dim=1).values, torch.arange(1000).expand(300, -1))
    assert torch.equal(x.gather(1, order), x.sort(dim=1, descending=True).values)


def test_keys_one_after_the_other_and_the_largest_at_places():
    assert sorted_by(torch.tensor([1, 0, 1, 0]), torch.tensor([2.0, 2.0, 1.0, 2.0])).tolist() == [1, 3, 2, 0]
    x = torch.tensor([[0.1, 0.4, 0.3], [3.0, 1.0, 2.0]])
    assert at_places(x, torch.tensor([[1], [3]])).tolist() == [[x[0, 1].item()], [1.0]]


def test_a_sampled_place_seldom_misses_the_depth():
    rng = np.random.default_rng(0)
    total, drawn = 10_000, 500
    for depth in (10, 100, 1000):
        place = int(places_for_sure(torch.tensor([depth]), drawn / total))
        ranks = [np.sort(rng.choice(total, drawn, replace=False))[place - 1] for _ in range(300)]
        assert min(ranks) >= depth
