"""What every engine of an index has to hold, beside the same search written out in float64."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from nearkin.index.engine import ENGINES, new_identity, open_engine
from nearkin.index.queries import nearest_of
from nearkin.index.segments import Segments


def engines_under_test():
    """Names of engines; of one that is a server there is a fixture ``<name>_address``, which skips where it cannot run."""
    return ["exact"]


pytestmark = pytest.mark.parametrize("name", engines_under_test())
DISTANCES = pytest.mark.parametrize("distance", ["cosine", "euclidean"])


class Stored:
    """Vectors on disk in segments of 37, with an engine beside them."""

    def __init__(self, folder, name, dim, distance, identity):
        self.folder, self.name, self.distance, self.identity = folder, name, distance, identity
        self.vectors = Segments(folder / "vectors", dim, np.float32, rows_per_segment=37)
        self.engine = open_engine(name, folder / "engine", self.vectors, distance, identity)
        self.rows = 0

    def add(self, vectors):
        self.vectors.append(self.rows, vectors)
        self.engine.add(self.rows, vectors)
        self.rows += len(vectors)
        return self.show()

    def show(self):
        self.vectors.show(self.rows)
        self.engine.show(self.rows)
        return self

    def again(self):
        """As another process would open it."""
        other = Stored(self.folder, self.name, self.vectors.width, self.distance, self.identity)
        other.rows = self.rows
        return other.show()

    def search(self, queries, k, allowed=None):
        return nearest_of(self.engine, self.vectors, self.distance, queries, k, allowed)


@pytest.fixture
def make_engine(request, tmp_path):
    """Vectors with an engine of that name, each new; what it has beside its files is taken away after the test."""
    made = []

    def make(name, dim, distance="cosine"):
        name = request.getfixturevalue(f"{name}_address") if name not in ENGINES else name
        made.append(Stored(tmp_path / str(len(made)), name, dim, distance, new_identity()))
        return made[-1]

    yield make
    for stored in made:
        stored.engine.discard()


def unit(x):
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(lengths > 0, lengths, 1)


def some(rng, rows, dim, distance):
    """Of length 1 or less, where a few are alike, a few have one large number and one is zero."""
    x = rng.normal(size=(rows, dim))
    x[::7, 0] *= 30
    x[5 % rows] = 0
    x[rows // 2 :: 11] = x[rows // 2]
    return (unit(x) * (1 if distance == "cosine" else rng.uniform(0, 1, (rows, 1)))).astype(np.float32)


def truth(vectors, query, distance):
    x = vectors.astype(np.float64)
    return x @ query if distance == "cosine" else -np.linalg.norm(x - query, axis=1)


def check(found, vectors, queries, k, distance, allowed=None):
    """The k best of what is allowed, in order; where scores are equal but for rounding either may come first."""
    rows = np.arange(len(vectors)) if allowed is None else allowed
    assert len(found) == len(queries)
    for query, (ids, scores) in zip(queries, found, strict=True):
        every = truth(vectors, query, distance)
        assert len(ids) == len(set(ids.tolist())) == min(k, len(rows))
        assert set(ids.tolist()) <= set(rows.tolist())
        np.testing.assert_allclose(scores, every[ids], rtol=0, atol=1e-12)
        np.testing.assert_allclose(scores, np.sort(every[rows])[::-1][:k], rtol=0, atol=1e-12)
        assert (np.diff(scores) <= 0).all()
        same = np.flatnonzero(np.diff(scores) == 0)
        assert (ids[same] < ids[same + 1]).all(), "equal ones by number"


@DISTANCES
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (3, 5), (37, 16), (38, 33), (500, 64)])
def test_the_same_as_all_products_in_float64(name, distance, rows, dim, make_engine):
    rng = np.random.default_rng(rows)
    vectors = some(rng, rows, dim, distance)
    stored = make_engine(name, dim, distance).add(vectors)
    queries = np.concatenate([unit(rng.normal(size=(70, dim))), vectors[:3].astype(np.float64), np.zeros((1, dim))])
    for k in (1, 10, rows, rows + 5):
        check(stored.search(queries, k), vectors, queries, k, distance)


@DISTANCES
def test_scores_that_8_bits_cannot_tell_apart(name, distance, make_engine):
    rng = np.random.default_rng(0)
    centre = unit(rng.normal(size=(1, 48)))
    vectors = unit(centre + 1e-4 * rng.normal(size=(300, 48))).astype(np.float32)
    queries = unit(centre + 1e-4 * rng.normal(size=(5, 48)))
    check(make_engine(name, 48, distance).add(vectors).search(queries, 7), vectors, queries, 7, distance)


@DISTANCES
def test_only_what_is_allowed(name, distance, make_engine):
    rng = np.random.default_rng(0)
    vectors = some(rng, 200, 12, distance)
    stored = make_engine(name, 12, distance).add(vectors)
    queries = unit(rng.normal(size=(4, 12)))
    for share in (0.01, 0.1, 0.5, 0.99):
        allowed = np.flatnonzero(rng.uniform(size=200) < share)
        check(stored.search(queries, 10, allowed), vectors, queries, 10, distance, allowed)
    assert [len(ids) for ids, _ in stored.search(queries, 10, np.empty(0, dtype=np.int64))] == [0] * 4


def test_what_is_removed_does_not_come_back(name, make_engine):
    rng = np.random.default_rng(0)
    vectors = some(rng, 90, 8, "cosine")
    stored = make_engine(name, 8).add(vectors)
    gone, queries = np.arange(0, 90, 3), vectors[::3].astype(np.float64)
    stored.engine.remove(gone)
    left = np.setdiff1d(np.arange(90), gone)
    check(stored.search(queries, 5, left), vectors, queries, 5, "cosine", left)


def test_added_bit_by_bit_and_opened_again(name, make_engine):
    rng = np.random.default_rng(0)
    vectors = some(rng, 120, 8, "cosine")
    stored, reader = make_engine(name, 8), None
    for part in np.split(vectors, [1, 36, 38, 80]):
        stored.add(part)
        reader = reader or stored.again()
        reader.rows = stored.rows
        for each in (stored, stored.again(), reader.show()):
            known = vectors[: stored.rows]
            check(each.search(vectors[:4].astype(np.float64), 9), known, vectors[:4].astype(np.float64), 9, "cosine")


def test_its_own_files_can_be_thrown_away_and_built_anew(name, make_engine):
    rng = np.random.default_rng(0)
    vectors, queries = some(rng, 100, 8, "cosine"), unit(rng.normal(size=(3, 8)))
    stored = make_engine(name, 8).add(vectors)
    shutil.rmtree(stored.folder / "engine", ignore_errors=True)
    check(stored.again().search(queries, 6), vectors, queries, 6, "cosine")
    stored.engine.rebuild(100)
    check(stored.again().search(queries, 6), vectors, queries, 6, "cosine")


def test_what_a_killed_writer_left_behind_is_written_over(name, make_engine):
    rng = np.random.default_rng(0)
    vectors, queries = some(rng, 60, 8, "cosine"), unit(rng.normal(size=(3, 8)))
    stored = make_engine(name, 8).add(vectors[:30])
    stored.vectors.append(30, 9 * vectors[:25])
    stored.engine.add(30, 9 * vectors[:25])
    stored.vectors.truncate(30)
    stored.engine.rebuild(30)
    check(stored.show().search(queries, 6), vectors[:30], queries, 6, "cosine")
    check(stored.add(vectors[30:]).search(queries, 6), vectors, queries, 6, "cosine")


def test_all_vectors_alike_and_no_vectors(name, make_engine):
    stored = make_engine(name, 4).show()
    assert [len(ids) for ids, _ in stored.search(np.eye(4)[:2], 3)] == [0, 0]
    alike = np.tile(unit(np.ones((1, 4))), (100, 1)).astype(np.float32)
    stored = make_engine(name, 4).add(alike)
    for ids, scores in stored.search(np.eye(4)[:2], 3):
        assert ids.tolist() == [0, 1, 2]
        assert len(set(scores.tolist())) == 1


def test_it_says_what_it_is(name, make_engine):
    assert make_engine(name, 4).add(np.eye(4)).engine.status()["rows"] == 4
