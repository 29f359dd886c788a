"""Numpy's scan of the exact engine, against all products in float64."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.index import numpy_scan
from nearkin.index.codes import coded


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dim", [1, 7, 130])
@pytest.mark.parametrize("k", [1, 10, 600])
def test_all_that_could_be_nearest_is_proposed_and_little_else(distance, dim, k, monkeypatch):
    monkeypatch.setattr(numpy_scan, "_BLOCK", 64)
    rng = np.random.default_rng(dim)
    vectors = (rng.normal(size=(500, dim)) * 10.0 ** rng.uniform(-3, 3, (500, 1))).astype(np.float32)
    vectors[7], vectors[400] = 0, vectors[3]
    queries = rng.normal(size=(8, dim))
    queries[0] = vectors[3]
    segments = [(coded(part), part) for part in (vectors[:170], vectors[170:340], vectors[340:])]
    scores = queries @ vectors.T.astype(np.float64)
    if distance == "euclidean":
        scores = -np.linalg.norm(queries[:, None] - vectors[None].astype(np.float64), axis=2)
    for allowed in (None, np.arange(0, 500, 3), np.array([5, 171, 499]), np.empty(0, dtype=np.int64)):
        among = np.arange(500) if allowed is None else allowed
        found = numpy_scan.candidates(segments, queries, k, allowed, distance)
        for score, rows in zip(scores, found, strict=True):
            nearest = among[np.argsort(-score[among], kind="stable")[:k]]
            assert set(nearest.tolist()) <= set(rows.tolist()) <= set(among.tolist())
            assert (np.diff(rows) > 0).all()
            if dim == 130:
                assert len(rows) <= len(nearest) + 20


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_scores_that_float32_cannot_tell_apart(distance):
    """Vectors a few last bits away from each other: products in float32 put them in another order than they are in."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(1, 96))
    vectors = (centre * (1 + 1e-7 * rng.normal(size=(400, 96)))).astype(np.float32)
    queries = centre + 1e-3 * rng.normal(size=(6, 96))
    scores = queries @ vectors.T.astype(np.float64)
    if distance == "euclidean":
        scores = -np.linalg.norm(queries[:, None] - vectors[None].astype(np.float64), axis=2)
    found = numpy_scan.candidates([(coded(vectors), vectors)], queries, 5, None, distance)
    for score, rows in zip(scores, found, strict=True):
        assert set(np.argsort(-score, kind="stable")[:5].tolist()) <= set(rows.tolist())


def test_nothing_of_nothing():
    assert [rows.tolist() for rows in numpy_scan.candidates([], np.ones((2, 3)), 1, None, "cosine")] == [[], []]


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_vectors_of_nothing_are_all_as_near(distance):
    """Their products are exactly zero, without any error to make room for ties."""
    vectors = np.zeros((9, 4), dtype=np.float32)
    found = numpy_scan.candidates([(coded(vectors), vectors)], np.eye(4)[:2], 3, None, distance)
    assert [rows.tolist() for rows in found] == [list(range(9))] * 2
