"""The engines by faiss: when they build, what they scan exactly, and files that are damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from nearkin.errors import MissingExtraError
from nearkin.index import faiss_engine
from nearkin.index.engine import nearest, open_engine
from nearkin.index.faiss_engine import FaissEngine
from nearkin.index.segments import Segments


def around_kinds(rows, dim=16, kinds=40, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(kinds, dim))[rng.integers(0, kinds, rows)] + 0.5 * rng.normal(size=(rows, dim))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


class Growing:
    """Vectors of which more and more are written."""

    def __init__(self, folder, vectors):
        self.every, self.rows = vectors, 0
        self.segments = Segments(folder / "vectors", vectors.shape[1], np.float32, rows_per_segment=500)
        self.engine = FaissEngine(folder / "engine", self.segments, "cosine")
        self.file = folder / "engine" / "built.npz"

    def to(self, rows):
        self.segments.append(self.rows, self.every[self.rows : rows])
        self.engine.add(self.rows, self.every[self.rows : rows])
        self.rows = rows
        self.engine.rebuild(rows)
        self.segments.show(rows)
        self.engine.show(rows)
        return self

    def recall(self, allowed=None, count=50):
        queries = self.every[:count].astype(np.float64) + 0.01
        every = np.arange(self.rows) if allowed is None else allowed
        found = nearest(self.engine, self.segments, "cosine", queries, 10, allowed)
        true = [every[np.argsort(-(self.every[every].astype(np.float64) @ query))[:10]] for query in queries]
        return np.mean([np.isin(each, ids).mean() for each, (ids, _) in zip(true, found, strict=True)])


@pytest.fixture(autouse=True)
def few_rows(monkeypatch):
    monkeypatch.setattr(faiss_engine, "LEAST_ROWS", 1000)


@pytest.fixture
def scans(monkeypatch):
    """Over how many rows the exact scans went."""
    seen, inner = [], faiss_engine.ExactEngine.candidates

    def candidates(self, queries, k, allowed):
        seen.append(None if allowed is None else len(allowed))
        return inner(self, queries, k, allowed)

    monkeypatch.setattr(faiss_engine.ExactEngine, "candidates", candidates)
    return seen


def test_it_is_built_for_many_rows_and_again_when_they_have_grown_by_a_fifth(tmp_path, scans):
    growing = Growing(tmp_path, around_kinds(3000))
    for rows, built in ((999, 0), (1000, 1000), (1200, 1000), (1201, 1201), (2001, 2001), (2010, 2001)):
        growing.to(rows)
        assert growing.engine.status()["built"] == built
        scans.clear()
        assert growing.recall() >= 0.97
        assert scans == ([None] if not built else [rows - built] if rows > built else [])
    status = growing.engine.status()
    assert status["recall@10"] >= 0.97
    assert status["rows"] == 2010


def test_under_a_filter_everything_is_scanned_exactly(tmp_path, scans):
    growing = Growing(tmp_path, around_kinds(2000)).to(2000)
    rng = np.random.default_rng(0)
    for share, is_exact in ((0.01, True), (0.8, True), (0.95, False)):
        allowed = np.sort(rng.choice(2000, int(share * 2000), replace=False))
        scans.clear()
        recall = growing.recall(allowed)
        assert (scans == [len(allowed)]) == is_exact
        assert recall == 1 if is_exact else recall >= 0.95


def test_what_finds_too_few_is_scanned_exactly(tmp_path, scans):
    growing = Growing(tmp_path, around_kinds(1500)).to(1500)
    index, queries = growing.engine._lists[0].index, growing.every[:6].astype(np.float64)

    name = "search_numpy" if hasattr(index, "search_numpy") else "search"  # another test may have put torch into faiss
    inner = getattr(index, name)

    def search(*given, **params):
        scores, rows = inner(*given, **params)
        rows[::2, 9:] = -1
        return scores, rows

    setattr(index, name, search)
    scans.clear()
    assert all(len(rows) >= 10 for rows in growing.engine.candidates(queries, 10, None))
    assert scans == [None], "once, for those that found nine"
    assert len(growing.engine.candidates(queries, 1400, None)[0]) >= 1400
    assert scans == [None, None], "so many that nothing is saved"


def test_vectors_that_it_finds_badly_are_scanned_exactly(tmp_path, monkeypatch, scans):
    inner = FaissEngine._measured
    monkeypatch.setattr(FaissEngine, "_measured", lambda self, *given: replace(inner(self, *given), recall=0.8))
    growing = Growing(tmp_path, around_kinds(1300)).to(1200)
    assert growing.engine.status()["scan"] == "exact, as faiss finds 0.80 of the 10 nearest"
    scans.clear()
    assert growing.recall() == 1
    assert scans == [None]
    modified = growing.file.stat().st_mtime_ns
    growing.to(1210)
    assert growing.file.stat().st_mtime_ns == modified, "not tried again with every write"


def test_a_damaged_file_is_noticed_and_built_again(tmp_path):
    growing = Growing(tmp_path, around_kinds(1000)).to(1000)
    whole = growing.file.read_bytes()
    flipped = [bytearray(whole) for _ in range(3)]
    for content, position in zip(flipped, (0, 2000, len(whole) // 2), strict=True):
        content[position] ^= 255
    for content in (*flipped, whole[:-100], b""):
        growing.file.write_bytes(content)
        growing.engine.show(1000)
        assert growing.engine.status()["scan"] == "exact"
        assert growing.recall() == 1
    growing.to(1000)
    assert growing.engine.status()["built"] == 1000


def test_a_file_of_another_faiss_is_built_anew(tmp_path, monkeypatch):
    growing = Growing(tmp_path, around_kinds(1000)).to(1000)
    other = FaissEngine(tmp_path / "engine", growing.segments, "cosine")

    def refuse(body):
        raise RuntimeError("unknown format")

    monkeypatch.setattr(pytest.importorskip("faiss"), "deserialize_index", refuse)
    other.show(1000)
    assert other.status() == {"rows": 1000, "built": 0, "scan": "exact"}


def test_a_file_that_is_ahead_of_a_reader_waits(tmp_path):
    growing = Growing(tmp_path, around_kinds(1500)).to(1500)
    growing.segments.show(1100)
    growing.engine.show(1100)
    assert growing.engine.status() == {"rows": 1100, "built": 0, "scan": "exact"}
    found = growing.engine.candidates(growing.every[:3].astype(np.float64), 10, None)
    assert all((rows < 1100).all() for rows in found)


def test_without_faiss_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearkin\[faiss\]'"):
        open_engine("faiss", tmp_path, Segments(tmp_path / "vectors", 4, np.float32), "cosine")


def test_it_searches_beside_packages_that_put_torch_into_faiss(tmp_path):
    """pytorch-metric-learning does, by importing this; in a process of its own, as it cannot be undone."""
    script = f"""
import faiss, faiss.contrib.torch_utils
import numpy as np
from pathlib import Path
from nearkin.index import faiss_engine
from nearkin.index.segments import Segments
faiss_engine.LEAST_ROWS = 100
rng = np.random.default_rng(0)
vectors = rng.normal(size=(2000, 8)).astype(np.float32)
vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
stored = Segments(Path({str(tmp_path)!r}) / "vectors", 8, np.float32)
stored.append(0, vectors)
stored.show(2000)
engine = faiss_engine.FaissEngine(Path({str(tmp_path)!r}) / "engine", stored, "cosine")
engine.rebuild(2000)
engine.show(2000)
assert 7 in engine.candidates(vectors[7:8].astype(np.float64), 5, None)[0]
assert engine.status()["recall@10"] is not None, engine.status()
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
