"""The exact engine's scan: what 8 bits lose is bounded, and processors that cannot do it take float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.index import exact
from nearkin.index.exact import ExactEngine, coded
from nearkin.index.segments import Segments


def drawn(rng, rows, dim):
    """Vectors of all lengths, some with one number that is far larger than the others."""
    x = rng.normal(size=(rows, dim)) * 10.0 ** rng.uniform(-6, 3, (rows, 1))
    x[::5, 0] *= 1e4
    x[3] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("dim", [1, 7, 64, 513])
def test_the_error_is_never_larger_than_said(int8, dim, monkeypatch):
    if int8 and not exact.int8_is_exact():
        pytest.skip("this processor's products of 8 bits lose some, so the scan is in float32 here")
    monkeypatch.setattr(exact, "int8_is_exact", lambda: int8)
    rng = np.random.default_rng(dim)
    queries, vectors = drawn(rng, 20, dim).astype(np.float64), drawn(rng, 200, dim)
    some = coded(vectors)
    scanned, error = exact._Queries.of(queries).scan(
        torch.from_numpy(some.codes), torch.from_numpy(some.figures), torch.from_numpy(vectors)
    )
    off = np.abs(scanned.double().numpy() - queries @ vectors.astype(np.float64).T)
    assert (off <= error.double().numpy()).all()
    long = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    assert (error.numpy() <= 0.2 * np.sqrt(dim) * long + 1e-30).all(), "and not much larger than it must be"


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_without_exact_products_of_8_bits_the_scan_is_in_float32(distance, tmp_path, monkeypatch):
    monkeypatch.setattr(exact, "int8_is_exact", lambda: False)
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
    assert engine.status() == {"rows": 90, "scan": "float32"}


@pytest.mark.parametrize("dim", [1, 2])
def test_few_allowed_rows_are_the_ones_scanned(dim, tmp_path):
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


def test_few_rows_are_proposed_where_few_are_near(tmp_path):
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
