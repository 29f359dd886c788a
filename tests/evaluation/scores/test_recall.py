from __future__ import annotations

import pytest
import torch

from nearkin.evaluation.scores import score_named

HITS = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=torch.bool)


@pytest.mark.parametrize(
    "name, expected", [("R@1", [0, 1, 0]), ("R@2", [0, 1, 0]), ("R@3", [1, 1, 0]), ("R@9", [1, 1, 0])]
)
def test_by_hand(name, expected):
    assert score_named(name).per_query(HITS, torch.tensor([2, 1, 3])).tolist() == expected
