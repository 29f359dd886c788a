"""Torch's scan of the exact engine: what 8 bits lose is bounded, and processors that cannot do it take float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.index import torch_scan
from nearkin.index.codes import coded


def drawn(rng, rows, dim):
    """Vectors of all lengths, some with one number that is far larger than the others."""
    x = rng.normal(size=(rows, dim)) * 10.0 ** rng.uniform(-6, 3, (rows, 1))
    x[::5, 0] *= 1e4
    x[3] = 0
    return x.astype(np.float32)


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("dim", [1, 7, 64, 513])
def test_the_error_is_never_larger_than_said(int8, dim, monkeypatch):
    if int8 and not torch_scan.int8_is_exact():
        pytest.skip("this processor's products of 8 bits lose some, so the scan is in float32 here")
    monkeypatch.setattr(torch_scan, "int8_is_exact", lambda: int8)
    rng = np.random.default_rng(dim)
    queries, vectors = drawn(rng, 20, dim).astype(np.float64), drawn(rng, 200, dim)
    some = coded(vectors)
    scanned, error = torch_scan._Queries.of(queries).scan(
        torch.from_numpy(some.codes), torch.from_numpy(some.figures), torch.from_numpy(vectors)
    )
    off = np.abs(scanned.double().numpy() - queries @ vectors.astype(np.float64).T)
    assert (off <= error.double().numpy()).all()
    long = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(vectors, axis=1)
    assert (error.numpy() <= 0.2 * np.sqrt(dim) * long + 1e-30).all(), "and not much larger than it must be"


@pytest.mark.parametrize("int8", [True, False])
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("k", [1, 10, 600])
def test_all_that_could_be_nearest_is_proposed_and_little_else(int8, distance, k, monkeypatch):
    if int8 and not torch_scan.int8_is_exact():
        pytest.skip("this processor's products of 8 bits lose some, so the scan is in float32 here")
    monkeypatch.setattr(torch_scan, "int8_is_exact", lambda: int8)
    for name, size in (("_BLOCK", 48), ("_LARGE_BLOCK", 64), ("QUERIES", 3)):
        monkeypatch.setattr(torch_scan, name, size)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(500, 130)).astype(np.float32)
    vectors[7], vectors[400] = 0, vectors[3]
    queries = np.concatenate([vectors[3:4], rng.normal(size=(7, 130))]).astype(np.float64)
    segments = [(coded(part), part) for part in (vectors[:170], vectors[170:340], vectors[340:])]
    scores = queries @ vectors.T.astype(np.float64)
    if distance == "euclidean":
        scores = -np.linalg.norm(queries[:, None] - vectors[None].astype(np.float64), axis=2)
    for allowed in (None, np.arange(0, 500, 3), np.array([5, 171, 499]), np.empty(0, dtype=np.int64)):
        among = np.arange(500) if allowed is None else allowed
        found = torch_scan.candidates(segments, queries, k, allowed, distance)
        assert len(found) == len(queries)
        for score, rows in zip(scores, found, strict=True):
            nearest = among[np.argsort(-score[among], kind="stable")[:k]]
            assert set(nearest.tolist()) <= set(rows.tolist()) <= set(among.tolist())
            assert (np.diff(rows) > 0).all()
            assert len(rows) <= len(nearest) + (30 if int8 else 5)  # eight bits tell less apart
