"""The engine that is a Milvus, on a real one; what holds for every engine is in ``tests/contracts/test_engines.py``."""

from __future__ import annotations

import sys
import threading

import numpy as np
import pytest
from tests.stored import Stored, clusters

from nearkin.errors import DataError, MissingExtraError
from nearkin.index import milvus_engine
from nearkin.index.engine import open_engine
from nearkin.index.milvus_engine import MilvusCollection
from nearkin.index.segments import Segments


@pytest.fixture
def store(milvus_address, tmp_path):
    made = []

    def make(vectors, distance="cosine"):
        made.append(Stored(milvus_address, tmp_path / str(len(made)), vectors, distance))
        return made[-1]

    yield make
    for each in made:
        each.engine.discard()


def counted(monkeypatch):
    """How often the server itself is asked to search."""
    asked = []
    real = MilvusCollection.nearest

    def nearest(self, queries, limit, age):
        asked.append(limit)
        return real(self, queries, limit, age)

    monkeypatch.setattr(MilvusCollection, "nearest", nearest)
    return asked


def test_added_searched_filtered_removed_and_mended(store, monkeypatch):
    asked = counted(monkeypatch)
    rng = np.random.default_rng(0)
    vectors = clusters(rng, 600, 16)
    stored, queries = store(vectors), vectors[:7] + 0.05 * rng.normal(size=(7, 16))
    assert stored.recall(queries) == 1
    assert stored.recall(queries, 5, np.arange(0, 600, 2)) == 1
    assert len(asked) == 1, "under a filter rows are scanned"
    stored.engine.remove(np.arange(0, 600, 3))
    table = stored.engine._table
    left = np.setdiff1d(np.arange(600), np.arange(0, 600, 3))
    assert table.rows(0, 600).tolist() == left.tolist()
    table.delete(left[:5])
    table.put(np.array([600, 601]), vectors[:2])  # as a killed writer leaves them
    table.put(left[50:60], vectors[left[50:60]])
    stored.engine.rebuild(600, left)
    stored.engine.show(600, left)
    assert table.rows(0, 700).tolist() == left.tolist()
    assert stored.recall(queries, 10, left) == 1
    assert len(asked) == 2
    said = stored.engine.status()
    assert (said["rows"], said["rows on the server"], said["index"]) == (600, 400, "hnsw")
    assert said["version"].startswith("Milvus 2.")


def test_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearkin\[milvus\]'"):
        open_engine("http://127.0.0.1:1", tmp_path, Segments(tmp_path, 4, np.float32), "cosine", "a")


def test_no_server_and_no_word_of_the_password(tmp_path, capfd):
    vectors = Segments(tmp_path / "vectors", 4, np.float32)
    engine = open_engine("http://me:hidden@127.0.0.1:1", tmp_path / "engine", vectors, "cosine", "nearkin_a")
    with pytest.raises(DataError, match=r"Milvus at http://me@127.0.0.1:1 cannot be reached") as raised:
        engine.add(0, np.eye(4, dtype=np.float32))
    assert "hidden" not in str(raised.value) + str(engine.status())
    assert "\n" not in str(raised.value)
    assert not "".join(capfd.readouterr()), "its client writes a traceback of its own"


@pytest.mark.parametrize(
    ("address", "environment", "token"),
    [
        ("http://host:19530", None, ""),
        ("http://me:a%40b@host:19530", "other", "me:a@b"),
        ("http://host:19530", "root:Milvus", "root:Milvus"),
    ],
)
def test_who_one_is(address, environment, token, monkeypatch):
    monkeypatch.delenv(milvus_engine.TOKEN, raising=False)
    if environment is not None:
        monkeypatch.setenv(milvus_engine.TOKEN, environment)
    table = MilvusCollection(address, "a", 4, "cosine")
    assert (table._uri, table._token) == ("http://host:19530", token)


@pytest.mark.slow
@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_the_graph_finds_what_it_says_with_filters_too(store, distance, monkeypatch):
    rng = np.random.default_rng(0)
    vectors = clusters(rng, 6000, 32)
    stored = store(vectors, distance)
    assert stored.engine.status()["recall@10"] >= 0.9
    asked = counted(monkeypatch)
    queries = vectors[rng.integers(0, 6000, 50)] + 0.05 * rng.normal(size=(50, 32))
    for share in (0.01, 0.5, 0.95):
        allowed = np.sort(rng.choice(6000, int(6000 * share), replace=False))
        assert stored.recall(queries, 10, allowed) == 1
    assert not asked, "under a filter rows are scanned"
    assert stored.recall(queries, 5990) == 1, "as many as a server gives, and more"


@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle_of_an_add(store, milvus_server):
    vectors = clusters(np.random.default_rng(0), 6000, 16)
    stored = store(vectors[:100])
    stored.vectors.append(100, vectors[100:])
    begun = threading.Event()

    def add():
        for first in range(100, 6000, 100):
            stored.engine.add(first, vectors[first : first + 100])
            if first == 2000:
                begun.set()

    thread = threading.Thread(target=add)
    thread.start()
    assert begun.wait(60)
    milvus_server.kill()
    assert thread.is_alive(), "in the middle"
    milvus_server.start()
    thread.join()
    there = stored.engine._call(stored.engine._table.rows, 0, 8000, patience=60.0)
    assert there.tolist() == list(range(6000)), "before anything is mended"
    for each in (stored.engine, stored.truth):
        each.rebuild(6000)
        each.show(6000)
    assert stored.recall(vectors[::100].astype(np.float64)) >= 0.9
