from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import normalized_mutual_info_score

from nearkin.evaluation import normalised_mutual_information
from nearkin.evaluation.scores import score_named

GROUPINGS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(*(st.lists(st.integers(0, 5), min_size=n, max_size=n) for _ in range(2)))
)


@settings(max_examples=80, deadline=None)
@given(GROUPINGS)
def test_it_is_that_of_scikit_learn(grouping):
    clusters, labels = grouping
    expected = normalized_mutual_info_score(labels, clusters, average_method="arithmetic")
    assert normalised_mutual_information(clusters, labels) == pytest.approx(expected, abs=1e-9)


def test_by_hand():
    # Clusters of 3 and 1, classes of 2 and 2, together 2, 1 and 1 of 4.
    clusters = -(3 / 4 * math.log(3 / 4) + 1 / 4 * math.log(1 / 4))
    classes, joint = math.log(2), 1 / 2 * math.log(2) + 1 / 2 * math.log(4)
    expected = 2 * (clusters + classes - joint) / (clusters + classes)
    assert score_named("NMI").of_clusters([0, 0, 0, 1], [5, 5, 3, 3]) == pytest.approx(expected)
