"""The exact engine, by whatever it scans: no true neighbour is missed, and few others are proposed."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.evaluation import neighbours
from nearkin.index import exact_engine as exact
from nearkin.index.exact_engine import ExactEngine
from nearkin.index.segments import Segments


@pytest.fixture(params=["int8", "float32", "no torch"])
def scan(request, monkeypatch):
    """Every way to scan."""
    if request.param == "int8" and not neighbours.in_8_bits(16):
        pytest.skip("this processor's 8-bit products lose bits, so the scan is in float32 here")
    if request.param != "int8":
        monkeypatch.setattr(neighbours, "in_8_bits", lambda dim: False)
        monkeypatch.setattr(exact, "in_8_bits", lambda dim: False)
    if request.param == "no torch":
        monkeypatch.setattr(neighbours, "torch", None)
    return "of 8-bit copies" if request.param == "int8" else "of float32 vectors"


def engine_of(vectors, distance, folder, rows_per_segment=1 << 16):
    segments = Segments(folder / "vectors", vectors.shape[1], np.float32, rows_per_segment=rows_per_segment)
    segments.append(0, vectors)
    segments.show(len(vectors))
    engine = ExactEngine(folder / "engine", segments, distance)
    engine.rebuild(len(vectors))
    engine.show(len(vectors))
    return engine


def scores_of(queries, vectors, distance):
    if distance == "euclidean":
        return -np.linalg.norm(queries[:, None] - vectors[None].astype(np.float64), axis=2)
    return queries @ vectors.T.astype(np.float64)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("dim", [1, 24])
@pytest.mark.parametrize("k", [1, 10, 600])
def test_all_that_is_nearest_is_proposed(scan, distance, dim, k, tmp_path, monkeypatch):
    for name, value in (("_QUERIES", 3), ("_ROWS", 48), ("_SAMPLE", 60)):
        monkeypatch.setattr(exact, name, value)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, dim)).astype(np.float32)
    vectors[7], vectors[400] = 0, vectors[3]
    queries = np.concatenate([vectors[3:4], rng.normal(size=(7, dim))]).astype(np.float64)
    engine = engine_of(vectors, distance, tmp_path, rows_per_segment=170)
    scores = scores_of(queries, vectors, distance)
    few = np.array([5, 171, 499])
    for allowed in (None, np.arange(0, 500, 3), np.arange(20, 490), few, np.empty(0, dtype=np.int64)):
        among = np.arange(500) if allowed is None else allowed
        proposed = engine.candidates(queries, k, allowed)
        assert len(proposed) == len(queries)
        for score, rows in zip(scores, proposed, strict=True):
            nearest = among[np.argsort(-score[among], kind="stable")[:k]]
            assert set(nearest.tolist()) <= set(rows.tolist()) <= set(among.tolist())
            assert (np.diff(rows) > 0).all()
    assert engine.status() == {"rows": 500, "scan": "of float32 vectors" if dim == 1 else scan}


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_scores_that_float32_cannot_tell_apart(scan, distance, tmp_path):
    """Vectors a few last bits away from each other: products in float32 put them in another order."""
    rng = np.random.default_rng(0)
    centre = rng.normal(size=(1, 96))
    vectors = (centre * (1 + 1e-7 * rng.normal(size=(400, 96)))).astype(np.float32)
    queries = centre + 1e-3 * rng.normal(size=(6, 96))
    proposed = engine_of(vectors, distance, tmp_path).candidates(queries, 5, None)
    for score, rows in zip(scores_of(queries, vectors, distance), proposed, strict=True):
        assert set(np.argsort(-score, kind="stable")[:5].tolist()) <= set(rows.tolist())


def test_few_rows_are_proposed_where_few_are_near(scan, tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20_000, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    proposed = engine_of(vectors, "cosine", tmp_path).candidates(vectors[:8].astype(np.float64), 10, None)
    assert max(map(len, proposed)) < 250


def test_guesses_that_were_too_high_are_made_good(scan, tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "_SAFETY", (-10.0,))
    vectors = np.random.default_rng(0).normal(size=(5000, 8)).astype(np.float32)
    (rows,) = engine_of(vectors, "cosine", tmp_path).candidates(np.ones((1, 8)), 50, None)
    assert set(np.argsort(-vectors.astype(np.float64).sum(axis=1))[:50].tolist()) <= set(rows.tolist())


def test_nothing_of_nothing(tmp_path):
    engine = ExactEngine(tmp_path / "engine", Segments(tmp_path / "vectors", 3, np.float32), "cosine")
    engine.show(0)
    assert [rows.tolist() for rows in engine.candidates(np.ones((2, 3)), 1, None)] == [[], []]
