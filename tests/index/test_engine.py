"""Queries that recall is measured with: not stored, and as the stored ones are."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.index.engine import RECALL_AT, recall_measure, unseen_queries
from nearkin.index.exact_engine import ExactEngine
from nearkin.index.segments import Segments

DIM = 12


@pytest.fixture
def stored(tmp_path):
    """Thirty kinds of sixty vectors each."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, DIM)).repeat(60, axis=0) * 3 + rng.normal(size=(1800, DIM))
    vectors = Segments(tmp_path / "vectors", DIM, np.float32)
    vectors.append(0, x.astype(np.float32))
    vectors.show(1800)
    exact = ExactEngine(tmp_path / "engine", vectors, "euclidean")
    exact.rebuild(1800)
    exact.show(1800)
    return exact, vectors


def test_a_query_is_what_the_formula_says(stored):
    exact, vectors = stored
    rows = np.arange(1800)
    (query,) = unseen_queries(exact, vectors, "euclidean", rows, 1)
    x = vectors.take(rows).astype(np.float64)
    own = int(np.random.default_rng(1).choice(rows, 1, replace=False)[0])
    order = np.argsort(np.linalg.norm(x - x[own], axis=1), kind="stable")
    np.testing.assert_allclose(query, (2 * x[own] + 2 * x[order[5]] - x[order[10]]) / 3)


def test_queries_are_not_stored_and_as_far_from_their_nearest_as_those_are(stored):
    exact, vectors = stored
    queries = unseen_queries(exact, vectors, "euclidean", np.arange(1800), 100)
    x = vectors.take(np.arange(1800)).astype(np.float64)
    far = np.sort(np.linalg.norm(x[None] - queries[:, None], axis=2), axis=1)
    among = np.sort(np.linalg.norm(x[None] - x[:100, None], axis=2), axis=1)[:, 1:]  # without itself
    assert far[:, 0].min() > 0.1
    assert 0.5 < np.median(far[:, RECALL_AT - 1]) / np.median(among[:, RECALL_AT - 1]) < 1.5


def test_rows_that_are_gone_make_no_query(stored):
    exact, vectors = stored
    left = np.arange(60, 1800)  # the first kind is gone
    queries = unseen_queries(exact, vectors, "euclidean", left, 1740)
    assert len(queries) == 1740
    centre = vectors.take(np.arange(60)).mean(axis=0)
    assert np.linalg.norm(queries - centre, axis=1).min() > 3
    assert len(unseen_queries(exact, vectors, "euclidean", np.arange(3), 64)) == 3, "fewer than ten will do"


def test_by_angle_queries_have_length_1(stored):
    exact, vectors = stored
    lengths = np.linalg.norm(unseen_queries(exact, vectors, "cosine", np.arange(1800), 20), axis=1)
    np.testing.assert_allclose(lengths, 1)


def test_recall_counts_scores_and_what_is_not_found(stored):
    exact, vectors = stored
    recall = recall_measure(exact, vectors, "euclidean", np.arange(1800), 20)
    assert recall(exact) == 1

    class Misses(ExactEngine):
        def candidates(self, queries, k, allowed):
            return [rows[::2] for rows in super().candidates(queries, 1800, allowed)]

    half = Misses(exact._folder, vectors, "euclidean")
    half.show(1800)
    assert 0.3 < recall(half) < 0.7
