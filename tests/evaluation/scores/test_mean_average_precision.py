from __future__ import annotations

import random

import pytest
import torch

from nearkin.evaluation.scores import score_named


def slow(hits, k):
    precisions = [sum(hits[:place]) / place for place in range(1, k + 1)]
    return sum(precision for precision, hit in zip(precisions, hits, strict=False) if hit) / k


def test_by_hand():
    # Hits at places 1, 3 and 4 of 5, R = 3: precisions 1, 2/3, 3/4.
    hits = torch.tensor([[1, 0, 1, 1, 0]], dtype=torch.bool)
    for name, expected in (("MAP@R", (1 + 2 / 3) / 3), ("MAP@4", (1 + 2 / 3 + 3 / 4) / 4), ("MAP@2", 1 / 2)):
        assert float(score_named(name).per_query(hits, torch.tensor([3]))) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_slow_version(seed):
    rng = random.Random(seed)
    hits = [rng.random() < 0.4 for _ in range(rng.randint(1, 9))]
    num_true, k = max(1, sum(hits)) + rng.randint(0, 3), rng.randint(1, 12)
    for name, places in ((f"MAP@{k}", k), ("MAP@R", num_true)):
        found = score_named(name).per_query(torch.tensor([hits]), torch.tensor([num_true]))
        assert float(found) == pytest.approx(slow(hits, places))
