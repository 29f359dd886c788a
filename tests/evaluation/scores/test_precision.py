from __future__ import annotations

import pytest
import torch

from nearkin.evaluation.scores import score_named

HITS = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    "name, expected",
    [
        ("P@1", [0, 1, 0]),
        ("P@3", [2 / 3, 1 / 3, 0]),
        ("P@8", [2 / 8, 2 / 8, 0]),
        ("P@R", [1 / 2, 1 / 2, 0]),
    ],
    ids=str,
)
def test_by_hand(name, expected):
    assert score_named(name).per_query(HITS, torch.tensor([2, 2, 9])).tolist() == pytest.approx(expected)


def test_r_beyond_the_ranking_counts_what_is_missing_as_misses():
    assert float(score_named("P@R").per_query(torch.ones(1, 3, dtype=torch.bool), torch.tensor([4]))) == 3 / 4
