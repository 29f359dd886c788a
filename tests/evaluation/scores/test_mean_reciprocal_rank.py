from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nearkin.evaluation import measure
from nearkin.evaluation.scores import score_named


def slow(ranking, k):
    for place, hit in enumerate(ranking[:k], start=1):
        if hit:
            return 1 / place
    return 0.0


def rankings_of(length):
    return st.lists(st.lists(st.booleans(), min_size=length, max_size=length), min_size=1, max_size=5)


@given(st.integers(1, 9), st.integers(1, 12).flatmap(rankings_of))
def test_equals_the_slow_version(k, rankings):
    hits = torch.tensor(rankings)
    found = score_named(f"MRR@{k}").per_query(hits, hits.sum(dim=1).clamp_min(1))
    assert found.tolist() == pytest.approx([slow(ranking, k) for ranking in rankings])


def test_by_hand():
    # On a line: query 0 sees 1, 2, 3; query 1 sees 0, 2, 3; query 2 sees 1, 3, 0; query 3 sees 2, 1, 0.
    embeddings = torch.tensor([[0.0], [1.0], [2.1], [3.3]])
    scores = measure(["MRR@2", "MRR@3"], embeddings, [0, 1, 0, 1], distance="euclidean")
    assert scores["MRR@2"] == pytest.approx((1 / 2 + 0 + 0 + 1 / 2) / 4)
    assert scores["MRR@3"] == pytest.approx((1 / 2 + 1 / 3 + 1 / 3 + 1 / 2) / 4)
