from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics.cluster import pair_confusion_matrix

from nearkin.evaluation import pairwise_f1
from nearkin.evaluation.scores import score_named

GROUPINGS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(0, 5), min_size=n, max_size=n) for _ in range(2)))
)


@settings(max_examples=80, deadline=None)
@given(GROUPINGS)
def test_it_counts_pairs(grouping):
    clusters, labels = grouping
    pairs = list(itertools.combinations(range(len(labels)), 2))
    together = {(i, j) for i, j in pairs if clusters[i] == clusters[j]}
    same_class = {(i, j) for i, j in pairs if labels[i] == labels[j]}
    total = len(together) + len(same_class)
    assert pairwise_f1(clusters, labels) == pytest.approx(2 * len(together & same_class) / total if total else 1.0)


def test_it_is_that_of_scikit_learns_pair_counts_on_many_points():
    rng = np.random.default_rng(0)
    clusters, labels = rng.integers(0, 900, 20_000), rng.integers(0, 1100, 20_000)
    clusters[:5000] = labels[:5000]
    (_, wrong), (missed, right) = pair_confusion_matrix(labels, clusters).astype(np.float64)
    assert pairwise_f1(clusters, labels) == pytest.approx(2 * right / (2 * right + wrong + missed), rel=1e-12)


def test_by_hand():
    # Pairs together: 01 02 12 34; of one class: 01 23 24 34; both: 01 34.
    assert score_named("F1").of_clusters([0, 0, 0, 1, 1], [4, 4, 6, 6, 6]) == pytest.approx(2 * 2 / (4 + 4))
