from __future__ import annotations

import math

import pytest
import torch

from nearkin.evaluation.scores import score_named


@pytest.mark.parametrize(
    "k, expected",
    [
        (1, 0.0),
        (2, (1 / math.log2(3)) / (1 + 1 / math.log2(3))),
        (4, (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 1 / 2)),
        (9, (1 / math.log2(3) + 1 / math.log2(5)) / (1 + 1 / math.log2(3) + 1 / 2)),
    ],
)
def test_by_hand(k, expected):
    # Hits at places 2 and 4; the best ranking has all R = 3 of them first.
    hits = torch.tensor([[0, 1, 0, 1]], dtype=torch.bool)
    assert float(score_named(f"nDCG@{k}").per_query(hits, torch.tensor([3]))) == pytest.approx(expected)


def test_each_query_is_held_to_its_own_best():
    hits = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 1, 1]], dtype=torch.bool)
    assert score_named("nDCG@3").per_query(hits, torch.tensor([1, 2, 3])).tolist() == [1.0, 1.0, 1.0]
