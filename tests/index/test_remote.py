"""What holds for engines that are servers, with a server that is a dictionary and does as it is told."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError, Notice
from nearkin.index import remote
from nearkin.index.engine import nearest
from nearkin.index.remote import Refused, RemoteEngine, Unreachable
from nearkin.index.segments import Segments

DIM = 6


class Dictionary:
    """A table whose answers are those of float32, and which can be away, full of errors, or behind."""

    server, most, exact_below = "a dictionary at nowhere", 300, 10**9

    def __init__(self):
        self.held, self.away, self.asked, self.built, self.limits = {}, 0, 0, 0, []

    def answer(self):
        if self.away:
            self.away -= 1
            raise Unreachable("it is away")

    def create(self):
        self.answer()

    def count(self, first=0):
        self.answer()
        return sum(row >= first for row in self.held)

    def rows(self, first, last):
        return np.array(sorted(row for row in self.held if first <= row < last), dtype=np.int64)

    def put(self, rows, vectors):
        # As a server that is lost in the middle: some of them are there.
        for row, vector in zip(rows.tolist(), vectors, strict=True):
            self.held[row] = vector
            self.answer()

    def delete(self, rows):
        self.answer()
        for row in rows.tolist():
            self.held.pop(row, None)

    def delete_from(self, first):
        self.delete(np.array([row for row in self.held if row >= first], dtype=np.int64))

    def nearest(self, queries, limit, age):
        self.answer()
        self.asked += len(queries)
        self.limits.append(limit)
        rows = np.array(list(self.held), dtype=np.int64)
        vectors = np.array(list(self.held.values()))
        orders = np.argsort(-(vectors @ queries.T), axis=0, kind="stable")[:limit].T
        far = [-(vectors[order] @ query).astype(np.float64) for order, query in zip(orders, queries, strict=True)]
        return [(rows[order], each) for order, each in zip(orders, far, strict=True)]

    def build(self):
        self.built += 1

    def about(self):
        self.answer()
        return {"version": "1"}

    def drop(self):
        self.answer()
        self.held.clear()


@pytest.fixture
def table():
    return Dictionary()


@pytest.fixture
def stored(table, tmp_path):
    """Five hundred vectors of length 1 on the disk, and an engine that has them."""
    x = np.random.default_rng(0).normal(size=(500, DIM))
    vectors = Segments(tmp_path / "vectors", DIM, np.float32, rows_per_segment=170)
    vectors.append(0, x / np.linalg.norm(x, axis=1, keepdims=True))
    vectors.show(500)
    engine = RemoteEngine(table, tmp_path / "engine", vectors, "cosine")
    engine.add(0, vectors.take(np.arange(500)))
    engine.show(500)
    return engine, vectors


def check(engine, vectors, k, allowed=None, queries=None):
    """Against the products of all, in float64."""
    queries = np.random.default_rng(1).normal(size=(5, DIM)) if queries is None else queries
    rows = np.arange(500) if allowed is None else allowed
    for query, (ids, _) in zip(queries, nearest(engine, vectors, "cosine", queries, k, allowed), strict=True):
        scores = vectors.take(rows).astype(np.float64) @ query
        assert ids.tolist() == rows[np.argsort(-scores)[:k]].tolist()


def test_the_server_is_asked_and_its_answer_taken(stored, table):
    check(*stored, 10)
    assert (table.asked, table.limits) == (5, [10 + remote.SPARE])


def test_under_a_filter_rows_are_scanned(stored, table):
    check(*stored, 3, np.flatnonzero(np.random.default_rng(0).uniform(size=500) < 0.9))
    assert not table.asked


def test_more_than_a_server_gives(stored, table):
    check(*stored, 400)
    assert not table.asked


def test_equal_ones_behind_the_last_are_looked_at(table, tmp_path):
    vectors = Segments(tmp_path / "vectors", DIM, np.float32)
    alike = np.tile(np.eye(DIM)[:1], (200, 1))
    vectors.append(0, alike)
    vectors.show(200)
    engine = RemoteEngine(table, tmp_path / "engine", vectors, "cosine")
    for row in reversed(range(200)):
        engine._table.put(np.array([row]), alike[:1].astype(np.float32))
    engine.rebuild(200)
    engine.show(200)
    ((ids, _),) = nearest(engine, vectors, "cosine", np.eye(DIM)[:1], 3, None)
    assert (ids.tolist(), table.asked) == ([0, 1, 2], 1)


def test_rows_behind_what_is_shown_are_not_given(stored, table):
    engine, vectors = stored
    query = np.random.default_rng(1).normal(size=(1, DIM))
    for row in range(500, 540):
        table.held[row] = (query[0] / np.linalg.norm(query)).astype(np.float32)
    check(engine, vectors, 10, None, query)


def test_a_server_that_lacks_rows_is_not_believed_and_gets_them(stored, table):
    engine, vectors = stored
    for row in (3, 77, 499):
        del table.held[row]
    engine.show(500)
    check(engine, vectors, 10)
    assert not table.asked
    engine.rebuild(500)
    engine.show(500)
    assert sorted(table.held) == list(range(500))
    check(engine, vectors, 10)
    assert table.asked


def test_what_is_removed_is_deleted_there_and_not_sent_again(stored, table):
    engine, vectors = stored
    gone = np.arange(0, 500, 5)
    engine.remove(gone)
    left = np.setdiff1d(np.arange(500), gone)
    assert sorted(table.held) == left.tolist()
    engine.rebuild(500, left)
    engine.show(500, left)
    assert sorted(table.held) == left.tolist()
    check(engine, vectors, 10, left)
    assert table.limits == [10 + remote.SPARE], "as many as without a filter: all that it has is allowed"


def test_a_server_that_comes_back_in_the_middle_of_an_add(stored, table):
    engine, vectors = stored
    table.away = 3
    engine.add(500, vectors.take(np.arange(20)))
    assert sorted(table.held) == list(range(520))


@pytest.mark.parametrize("call", ["candidates", "add", "rebuild"])
def test_a_server_that_never_was_there_is_one_line_at_once(call, table, tmp_path):
    vectors = Segments(tmp_path / "vectors", DIM, np.float32)
    vectors.append(0, np.eye(DIM))
    vectors.show(DIM)
    engine = RemoteEngine(table, tmp_path / "engine", vectors, "cosine")
    engine.show(DIM)
    table.away = 1
    arguments = {"candidates": (np.eye(DIM), 2, None), "add": (0, np.eye(DIM)), "rebuild": (DIM,)}[call]
    with pytest.raises(
        DataError, match=r"a dictionary at nowhere cannot be reached \(it is away\): .*--engine exact"
    ) as raised:
        getattr(engine, call)(*arguments)
    assert "\n" not in str(raised.value)
    assert not table.away, "asked once"


def test_what_a_server_refuses_is_one_line(stored, table, monkeypatch):
    engine, vectors = stored

    def refuse(rows, vectors):
        raise Refused("the disk is full")

    monkeypatch.setattr(table, "put", refuse)
    with pytest.raises(DataError, match="a dictionary at nowhere refused: the disk is full"):
        engine.add(500, vectors.take(np.arange(2)))


def test_status_of_a_server_that_is_away(stored, table):
    engine, _ = stored
    assert engine.status() == {"rows": 500, "server": table.server, "version": "1", "rows on the server": 500}
    table.away = 1
    assert engine.status() == {"rows": 500, "server": table.server, "error": "it is away"}


def test_another_engine_can_be_chosen_while_the_server_is_away(stored, table, tmp_path):
    engine, _ = stored
    table.away = 1
    with pytest.warns(Notice, match="could not be deleted there"):
        engine.discard()
    assert not any(path.is_file() for path in (tmp_path / "engine").rglob("*"))


def test_recall_is_measured_when_it_is_built_and_again_at_twice_the_rows(stored, table, monkeypatch):
    engine, _ = stored
    monkeypatch.setattr(table, "exact_below", 100)
    right = table.nearest
    # Every third of the nearest is missed.
    monkeypatch.setattr(
        table,
        "nearest",
        lambda *given: [(np.delete(a, np.s_[::3]), np.delete(b, np.s_[::3])) for a, b in right(*given)],
    )
    for rows, built in ((60, 0), (200, 1), (399, 1), (400, 2), (500, 2)):
        engine.rebuild(rows)
        assert table.built == built
    assert engine.status()["recall@10"] == pytest.approx(2 / 3, abs=0.1)


def test_a_row_that_was_removed_while_the_server_was_away_is_deleted_later(stored, table):
    engine, vectors = stored
    live = np.delete(np.arange(500), [7, 490])
    engine.show(500, live)
    check(engine, vectors, 10, live)
    assert not table.asked, "it has two rows too many"
    engine.rebuild(500, live)
    engine.show(500, live)
    assert sorted(table.held) == live.tolist()
    check(engine, vectors, 10, live)
    assert table.asked
