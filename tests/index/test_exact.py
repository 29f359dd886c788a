"""The exact engine, by whatever it scans: no true neighbour goes, and few others are proposed."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.index import exact, numpy_scan, torch_scan
from nearkin.index.exact import ExactEngine
from nearkin.index.segments import Segments


@pytest.fixture(params=["torch", "no products of 8 bits", "no torch"])
def scan(request, monkeypatch):
    """Every way to scan."""
    if request.param == "no torch":
        monkeypatch.setattr(exact, "scan", numpy_scan)
    if request.param == "no products of 8 bits":
        monkeypatch.setattr(torch_scan, "int8_is_exact", lambda: False)
    return exact.scan.precision()


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_all_that_is_nearest_is_proposed(scan, distance, tmp_path, monkeypatch):
    monkeypatch.setattr(exact.scan, "QUERIES", 2)  # so that five go in three parts
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(90, 24)).astype(np.float32)
    segments = Segments(tmp_path / "vectors", 24, np.float32, rows_per_segment=40)
    segments.append(0, vectors)
    segments.show(90)
    engine = ExactEngine(tmp_path / "engine", segments, distance)
    engine.rebuild(90)
    engine.show(90)
    queries = rng.normal(size=(5, 24))
    for allowed in (None, np.arange(0, 90, 2), np.arange(41, 45)):
        rows = np.arange(90) if allowed is None else allowed
        products = queries @ vectors.T.astype(np.float64)
        if distance == "euclidean":
            products = -np.linalg.norm(queries[:, None] - vectors[None], axis=2)
        for scores, found in zip(products, engine.candidates(queries, 3, allowed), strict=True):
            assert set(rows[np.argsort(-scores[rows])[:3]].tolist()) <= set(found.tolist()) <= set(rows.tolist())
    assert engine.status() == {"rows": 90, "scan": scan}


@pytest.mark.parametrize("dim", [1, 2])
def test_few_allowed_rows_are_the_ones_scanned(scan, dim, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(500, dim)).astype(np.float32)
    segments = Segments(tmp_path / "vectors", dim, np.float32)
    segments.append(0, vectors)
    segments.show(500)
    engine = ExactEngine(tmp_path / "engine", segments, "cosine")
    engine.rebuild(500)
    engine.show(500)
    allowed = np.arange(3, 500, 50)
    (found,) = engine.candidates(np.ones((1, dim)), 3, allowed)
    best = allowed[np.argsort(-vectors[allowed].astype(np.float64).sum(axis=1))[:3]]
    assert set(best.tolist()) <= set(found.tolist()) <= set(allowed.tolist())


def test_few_rows_are_proposed_where_few_are_near(scan, tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20_000, 64)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    segments = Segments(tmp_path / "vectors", 64, np.float32)
    segments.append(0, vectors)
    segments.show(20_000)
    engine = ExactEngine(tmp_path / "engine", segments, "cosine")
    engine.add(0, vectors)
    engine.show(20_000)
    found = engine.candidates(vectors[:8].astype(np.float64), 10, None)
    assert max(map(len, found)) < 200
