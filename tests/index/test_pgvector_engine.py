"""The engine that is a PostgreSQL, on a real one; ``tests/contracts/test_engines.py`` has what all engines hold."""

from __future__ import annotations

import sys
import threading

import numpy as np
import psycopg
import pytest
from tests.stored import Stored, clusters

from nearkin.errors import DataError, MissingExtraError
from nearkin.index import Index
from nearkin.index.engine import open_engine
from nearkin.index.pgvector_engine import PostgresTable
from nearkin.index.segments import Segments


@pytest.fixture
def store(pgvector_address, tmp_path):
    made = []

    def make(vectors, distance="cosine"):
        made.append(Stored(pgvector_address, tmp_path / str(len(made)), vectors, distance))
        return made[-1]

    yield make
    for each in made:
        each.engine.discard()


@pytest.fixture
def build_early(monkeypatch):
    monkeypatch.setattr(PostgresTable, "exact_below", 100)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_the_graph_finds_what_it_says_with_filters_too(store, build_early, distance, pgvector_address):
    rng = np.random.default_rng(0)
    vectors = clusters(rng, 3000, 16)
    stored = store(vectors, distance)
    said = stored.engine.status()
    assert said["index"] == "hnsw"
    assert said["rows"] == said["rows on the server"] == 3000
    assert said["version"].startswith("PostgreSQL 18")
    assert said["recall@10"] >= 0.95
    queries = vectors[rng.integers(0, 3000, 50)] + 0.05 * rng.normal(size=(50, 16))
    for share in (None, 0.01, 0.05, 0.5, 0.95):
        allowed = None if share is None else np.flatnonzero(rng.uniform(size=3000) < share)
        assert stored.recall(queries, 10, allowed) >= 0.95
    by = "<#>" if distance == "cosine" else "<->"
    with psycopg.connect(pgvector_address) as db:
        ask = f"EXPLAIN SELECT id FROM {stored.identity} ORDER BY vector {by} %s::vector LIMIT 26"
        plan = " ".join(row[0] for row in db.execute(ask, [str(vectors[0].tolist())]))
    assert f"Index Scan using {stored.identity}_hnsw" in plan


def test_more_dimensions_than_an_index_takes(store, build_early):
    vectors = clusters(np.random.default_rng(0), 150, 2100)
    stored = store(vectors)
    assert stored.engine.status()["index"] == "none, all rows are compared"
    assert stored.recall(vectors[:20].astype(np.float64), 5) >= 0.95


def test_writing_the_same_rows_again_and_deleting_many(store):
    rng = np.random.default_rng(0)
    vectors = clusters(rng, 6000, 4)
    stored = store(vectors)
    table = stored.engine._table
    table.put(np.arange(0, 6000, 2), vectors[::2])
    assert (table.count(), table.count(5990)) == (6000, 10)
    table.delete(np.arange(1, 6000, 2))
    assert table.rows(0, 6000).tolist() == list(range(0, 6000, 2))
    stored.engine.rebuild(6000)
    stored.engine.show(6000)
    assert stored.recall(vectors[:5].astype(np.float64)) == 1


def test_a_server_that_is_killed_in_the_middle_of_an_add(store, postgres_server):
    vectors = clusters(np.random.default_rng(0), 4000, 8)
    stored = store(vectors[:100])
    stored.vectors.append(100, vectors[100:])
    begun = threading.Event()

    def add():
        for first in range(100, 4000, 50):
            stored.engine.add(first, vectors[first : first + 50])
            if first == 1000:
                begun.set()

    thread = threading.Thread(target=add)
    thread.start()
    assert begun.wait(60)
    postgres_server.kill()
    postgres_server.start()
    thread.join()
    assert stored.engine._table.rows(0, 8000).tolist() == list(range(4000))
    for each in (stored.engine, stored.truth):
        each.rebuild(4000)
        each.show(4000)
    assert stored.recall(vectors[::100].astype(np.float64)) == 1


def test_searches_go_on_after_the_server_was_started_again(store, postgres_server):
    vectors = clusters(np.random.default_rng(0), 200, 8)
    stored = store(vectors)
    assert stored.recall(vectors[:3].astype(np.float64)) == 1
    postgres_server.kill()
    assert "error" in stored.engine.status()
    postgres_server.start()
    assert stored.recall(vectors[:3].astype(np.float64)) == 1


def test_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nearkin\[pgvector\]'"):
        open_engine("postgresql://127.0.0.1/x", tmp_path, Segments(tmp_path, 4, np.float32), "cosine", "a")


def test_no_server_and_no_word_of_the_password(tmp_path):
    vectors = Segments(tmp_path / "vectors", 4, np.float32)
    engine = open_engine(
        "postgresql://me:hidden@127.0.0.1:1/birds", tmp_path / "engine", vectors, "cosine", "nearkin_a"
    )
    with pytest.raises(DataError, match=r"PostgreSQL at postgresql://me@127.0.0.1:1/birds cannot be reached") as raised:
        engine.add(0, np.eye(4, dtype=np.float32))
    assert "hidden" not in str(raised.value) + str(engine.status())
    assert "\n" not in str(raised.value)


def test_a_user_who_may_not_write_and_a_database_that_is_not_there(pgvector_address, tmp_path):
    with psycopg.connect(pgvector_address) as db:
        db.execute("DROP ROLE IF EXISTS reader")
        db.execute("CREATE EXTENSION IF NOT EXISTS vector")
        db.execute("CREATE ROLE reader LOGIN")
    vectors = Segments(tmp_path / "vectors", 4, np.float32)
    engine = open_engine(pgvector_address.replace("postgres@", "reader@"), tmp_path, vectors, "cosine", "nearkin_a")
    with pytest.raises(DataError, match="refused: permission denied"):
        engine.rebuild(0)
    engine = open_engine(pgvector_address[: -len("postgres")] + "nothing", tmp_path, vectors, "cosine", "nearkin_a")
    with pytest.raises(DataError, match="nothing"):
        engine.rebuild(0)


def test_a_password_works_and_is_nowhere_in_the_index(pgvector_address, model, images, tmp_path, monkeypatch):
    with psycopg.connect(pgvector_address) as db:
        if not db.execute("SELECT 1 FROM pg_roles WHERE rolname = 'locked'").fetchone():
            db.execute("CREATE ROLE locked LOGIN SUPERUSER PASSWORD 'heron-4711'")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    address = pgvector_address.replace("postgres@", "locked:heron-4711@")
    index = Index.create(tmp_path / "index", model, engine=address)
    index.add(images)
    wanted = [hit.id for hit in index.search(3, 5)]
    index.close()
    for path in (tmp_path / "index").rglob("*"):
        assert path.is_dir() or b"heron-4711" not in path.read_bytes(), path
    opened = Index.open(tmp_path / "index", model)
    with pytest.raises(DataError, match=r"cannot be reached .*password"):
        opened.search(3, 5)
    monkeypatch.setenv("PGPASSWORD", "heron-4711")
    assert [hit.id for hit in opened.search(3, 5)] == wanted
    assert "heron-4711" not in str(opened.status())
    opened.use_engine("exact")
    assert [hit.id for hit in opened.search(3, 5)] == wanted
    with psycopg.connect(pgvector_address) as db:
        assert not db.execute(
            "SELECT tablename FROM pg_tables WHERE tableowner = 'locked' AND schemaname = 'public'"
        ).fetchall()
