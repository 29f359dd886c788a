"""What every engine of an index has to hold, beside the same search written out in float64."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nearkin.index import Index, faiss_engine, pgvector_engine
from nearkin.index.engine import ENGINES, nearest, new_identity, open_engine
from nearkin.index.segments import Segments
from nearkin.runs.model import Model


def engines_under_test():
    """Names of engines; of one that is a server a fixture ``<name>_address`` tells where, or skips if it cannot run.

    With Milvus, of which a new collection alone takes three seconds, the suite is slow; what it must not lose is in
    ``tests/index/test_milvus_engine.py``, too.
    """
    return ["exact", "faiss", "pgvector", pytest.param("milvus", marks=pytest.mark.slow)]


pytestmark = pytest.mark.parametrize("name", engines_under_test())
DISTANCES = pytest.mark.parametrize("distance", ["cosine", "euclidean"])
LEAST_ROWS = 60


class Stored:
    """Vectors on disk in segments of 37, with an engine beside them, written as an index does it."""

    def __init__(self, folder, name, dim, distance, identity):
        self.folder, self.name, self.distance, self.identity = folder, name, distance, identity
        self.vectors = Segments(folder / "vectors", dim, np.float32, rows_per_segment=37)
        self.engine = open_engine(name, folder / "engine", self.vectors, distance, identity)
        self.rows, self.removed = 0, []

    def add(self, vectors):
        self.vectors.append(self.rows, vectors)
        self.engine.add(self.rows, vectors)
        self.rows += len(vectors)
        self.engine.rebuild(self.rows, self.live)
        return self.show()

    @property
    def live(self):
        return np.setdiff1d(np.arange(self.rows), self.removed)

    def show(self):
        self.vectors.show(self.rows)
        self.engine.show(self.rows, self.live)
        return self

    def again(self):
        """As another process would open it."""
        other = Stored(self.folder, self.name, self.vectors.width, self.distance, self.identity)
        other.rows, other.removed = self.rows, self.removed
        return other.show()

    def search(self, queries, k, allowed=None):
        return nearest(self.engine, self.vectors, self.distance, queries, k, allowed)

    @property
    def recall(self):
        """The share of the ten nearest that it says it finds; None for all of them, always."""
        return self.engine.status().get("recall@10")


@pytest.fixture
def engine_of(request, monkeypatch):
    """The name or address to open an engine by; what is approximate is built for a few rows already."""
    monkeypatch.setattr(faiss_engine, "LEAST_ROWS", LEAST_ROWS)
    monkeypatch.setattr(pgvector_engine.PostgresTable, "exact_below", LEAST_ROWS)
    return lambda name: name if name in ENGINES else request.getfixturevalue(f"{name}_address")


@pytest.fixture
def make_engine(engine_of, tmp_path):
    """Vectors with an engine of that name, each new; what it has beside its files is taken away after the test."""
    made = []

    def make(name, dim, distance="cosine"):
        made.append(Stored(tmp_path / str(len(made)), engine_of(name), dim, distance, new_identity()))
        return made[-1]

    yield make
    for stored in made:
        stored.engine.discard()


def unit(x):
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(lengths > 0, lengths, 1)


def some(rng, rows, dim, distance="cosine"):
    """Of length 1 or less, where a few are alike, a few have one large number and one is zero."""
    x = rng.normal(size=(rows, dim))
    x[::7, 0] *= 30
    x[5 % rows] = 0
    x[rows // 2 :: 11] = x[rows // 2]
    return (unit(x) * (1 if distance == "cosine" else rng.uniform(0, 1, (rows, 1)))).astype(np.float32)


def near(rng, vectors, count):
    """Queries as they come: near to what is stored."""
    picked = vectors[rng.integers(0, len(vectors), count)].astype(np.float64)
    lengths = np.linalg.norm(picked, axis=1, keepdims=True)
    return picked + 0.1 * lengths / np.sqrt(vectors.shape[1]) * rng.normal(size=picked.shape)


def truth(vectors, query, distance):
    x = vectors.astype(np.float64)
    return x @ query if distance == "cosine" else -np.linalg.norm(x - query, axis=1)


def check(found, vectors, queries, k, stored, allowed=None):
    """The k best of what is allowed, in order; where scores are equal but for rounding either may come first.

    An engine that says it misses some may do so, but shows as many, none that is not allowed, and true scores in order.
    """
    rows = np.arange(len(vectors)) if allowed is None else allowed
    assert len(found) == len(queries)
    shares, recall = [], stored.recall
    for query, (ids, scores) in zip(queries, found, strict=True):
        every = truth(vectors, query, stored.distance)
        assert len(ids) == len(set(ids.tolist())) == min(k, len(rows))
        assert set(ids.tolist()) <= set(rows.tolist())
        np.testing.assert_allclose(scores, every[ids], rtol=0, atol=1e-12)
        assert (np.diff(scores) <= 0).all()
        same = np.flatnonzero(np.diff(scores) == 0)
        assert (ids[same] < ids[same + 1]).all(), "equal ones by number"
        best = np.sort(every[rows])[::-1][:k]
        if recall is None:
            np.testing.assert_allclose(scores, best, rtol=0, atol=1e-12)
        shares += [(scores >= best[-1] - 1e-12).mean()] if len(best) else []
    if recall is not None and len(shares) >= 30:  # of fewer queries a share says little
        assert np.mean(shares) >= recall - 0.1


@DISTANCES
@pytest.mark.parametrize(("rows", "dim"), [(1, 1), (38, 33), (500, 64)])
def test_the_same_as_all_products_in_float64(name, distance, rows, dim, make_engine):
    rng = np.random.default_rng(rows)
    vectors = some(rng, rows, dim, distance)
    stored = make_engine(name, dim, distance).add(vectors)
    queries = np.concatenate([near(rng, vectors, 70), vectors[:3].astype(np.float64), np.zeros((1, dim))])
    for k in (1, 10, rows, rows + 5):
        check(stored.search(queries, k), vectors, queries, k, stored)


@DISTANCES
def test_scores_that_8_bits_cannot_tell_apart(name, distance, make_engine):
    rng = np.random.default_rng(0)
    centre = unit(rng.normal(size=(1, 48)))
    vectors = unit(centre + 1e-4 * rng.normal(size=(300, 48))).astype(np.float32)
    queries = unit(centre + 1e-4 * rng.normal(size=(40, 48)))
    stored = make_engine(name, 48, distance).add(vectors)
    check(stored.search(queries, 7), vectors, queries, 7, stored)


@DISTANCES
def test_only_what_is_allowed(name, distance, make_engine):
    rng = np.random.default_rng(0)
    vectors = some(rng, 600, 12, distance)
    stored = make_engine(name, 12, distance).add(vectors)
    queries = near(rng, vectors, 40)
    for share in (0.01, 0.05, 0.1, 0.5, 0.99):
        allowed = np.flatnonzero(rng.uniform(size=600) < share)
        check(stored.search(queries, 10, allowed), vectors, queries, 10, stored, allowed)
    kind = np.argsort(-truth(vectors, -queries[0], distance))[:60]  # all far away from where is asked
    check(stored.search(queries[:1], 10, np.sort(kind)), vectors, queries[:1], 10, stored, np.sort(kind))
    assert [len(ids) for ids, _ in stored.search(queries, 10, np.empty(0, dtype=np.int64))] == [0] * 40


def test_what_is_removed_does_not_come_back(name, make_engine):
    rng = np.random.default_rng(0)
    vectors = some(rng, 90, 8)
    stored = make_engine(name, 8).add(vectors)
    gone, queries = np.arange(0, 90, 3), vectors[::3].astype(np.float64)
    stored.engine.remove(gone)
    stored.removed = gone
    left = stored.live
    for each in (stored, stored.again()):
        check(each.search(queries, 5, left), vectors, queries, 5, stored, left)
    more = some(rng, 40, 8)
    left = np.concatenate([left, np.arange(90, 130)])
    both = np.concatenate([vectors, more])
    check(stored.add(more).search(queries, 5, left), both, queries, 5, stored, left)


def test_added_bit_by_bit_and_opened_again(name, make_engine):
    rng = np.random.default_rng(0)
    vectors = some(rng, 120, 8)
    stored, reader = make_engine(name, 8), None
    queries = vectors[:4].astype(np.float64)
    for part in np.split(vectors, [1, 36, 38, 80, 85, 110]):
        stored.add(part)
        reader = reader or stored.again()
        reader.rows = stored.rows
        for each in (stored, stored.again(), reader.show()):
            check(each.search(queries, 9), vectors[: stored.rows], queries, 9, stored)
    newest = vectors[-1:].astype(np.float64)
    assert stored.search(newest, 1)[0][0] == [119], "what was added last is found at once"


def test_its_own_files_can_be_thrown_away_and_built_anew(name, make_engine):
    rng = np.random.default_rng(0)
    vectors, queries = some(rng, 100, 8), unit(rng.normal(size=(3, 8)))
    stored = make_engine(name, 8).add(vectors)
    shutil.rmtree(stored.folder / "engine", ignore_errors=True)
    check(stored.again().search(queries, 6), vectors, queries, 6, stored)
    stored.engine.rebuild(100)
    check(stored.again().search(queries, 6), vectors, queries, 6, stored)
    stored.engine.discard()
    stored.engine.rebuild(100)
    check(stored.again().search(queries, 6), vectors, queries, 6, stored)


@pytest.mark.parametrize("share", [0, 0.5])
def test_its_own_files_cut_short(name, share, make_engine):
    rng = np.random.default_rng(0)
    vectors, queries = some(rng, 100, 8), unit(rng.normal(size=(3, 8)))
    stored = make_engine(name, 8).add(vectors)
    for path in (stored.folder / "engine").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    other = stored.again()
    check(other.search(queries, 6), vectors, queries, 6, other)
    other.engine.rebuild(100)
    for each in (other.show(), other.again(), other.add(vectors[:5])):
        known = np.concatenate([vectors, vectors[:5]])[: each.rows]
        check(each.search(queries, 6), known, queries, 6, each)


def test_what_a_killed_writer_left_behind_is_written_over(name, make_engine):
    rng = np.random.default_rng(0)
    vectors, queries = some(rng, 160, 8), unit(rng.normal(size=(3, 8)))
    stored = make_engine(name, 8).add(vectors[:80])
    stored.vectors.append(80, 9 * vectors[:25])
    stored.engine.add(80, 9 * vectors[:25])
    stored.vectors.truncate(80)
    stored.engine.rebuild(80)
    check(stored.show().search(queries, 6), vectors[:80], queries, 6, stored)
    check(stored.add(vectors[80:]).search(queries, 6), vectors, queries, 6, stored)


def test_all_vectors_alike_and_no_vectors(name, make_engine):
    stored = make_engine(name, 4).show()
    assert [len(ids) for ids, _ in stored.search(np.eye(4)[:2], 3)] == [0, 0]
    alike = np.tile(unit(np.ones((1, 4))), (100, 1)).astype(np.float32)
    stored = make_engine(name, 4).add(alike)
    for ids, scores in stored.search(np.eye(4)[:2], 3):
        assert len(set(ids.tolist())) == 3
        assert len(set(scores.tolist())) == 1
        assert name != "exact" or ids.tolist() == [0, 1, 2]


def test_threads_that_search_while_one_adds(name, make_engine):
    rng = np.random.default_rng(0)
    vectors = some(rng, 400, 8)
    stored = make_engine(name, 8).add(vectors[:100])
    queries, wrong, done = near(rng, vectors[:100], 4), [], threading.Event()

    def look():
        while not done.is_set():
            for query, (ids, scores) in zip(queries, stored.search(queries, 10), strict=True):
                true = truth(vectors, query, "cosine")[ids]
                if len(set(ids.tolist())) != 10 or not np.allclose(scores, true, rtol=0, atol=1e-12):
                    wrong.append((ids, scores))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for part in np.split(vectors[100:], 6):
        stored.add(part)
    done.set()
    for thread in threads:
        thread.join(60)
    assert not wrong
    check(stored.search(queries, 10), vectors, queries, 10, stored)


READER = """
import json, sys
from pathlib import Path
import numpy as np
from nearkin.index.engine import nearest, open_engine
from nearkin.index.segments import Segments

folder, name, identity = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
vectors = Segments(folder / "vectors", 8, np.float32, rows_per_segment=37)
engine = open_engine(name, folder / "engine", vectors, "cosine", identity)
for line in sys.stdin:
    vectors.show(int(line))
    engine.show(int(line))
    found = nearest(engine, vectors, "cosine", np.load(folder / "queries.npy"), 10, None)
    print(json.dumps([ids.tolist() for ids, _ in found]), flush=True)
"""


def test_another_process_sees_what_one_adds(name, make_engine):
    if name == "exact":
        pytest.skip("a part of every other engine")
    rng = np.random.default_rng(0)
    vectors = some(rng, 300, 8)
    stored, queries = make_engine(name, 8).add(vectors[:100]), near(rng, vectors, 20)
    np.save(stored.folder / "queries.npy", queries)
    with subprocess.Popen(
        [sys.executable, "-c", READER, stored.folder, stored.name, stored.identity],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        for part in ([], vectors[100:110], vectors[110:300]):
            if len(part):
                stored.add(part)
            print(stored.rows, file=reader.stdin, flush=True)
            seen = json.loads(reader.stdout.readline())
            for query, ids, (own, scores) in zip(queries, seen, stored.search(queries, 10), strict=True):
                found = np.sort(truth(vectors[: stored.rows], query, "cosine")[ids])[::-1]
                assert len(set(ids)) == len(own) == 10
                np.testing.assert_allclose(found, scores, rtol=0, atol=1e-12)
        reader.stdin.close()
        assert reader.wait(60) == 0


def pictures(folder, count, seed=0):
    """Images whose colours above and below are their vectors."""
    folder.mkdir(exist_ok=True)
    for number, colours in enumerate(np.random.default_rng(seed).integers(0, 256, (count, 2, 1, 3))):
        pixels = np.broadcast_to(colours, (2, 4, 3)).repeat(2, axis=0).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03}.png")
    return folder


def colours_of(images, batch_size):
    rows = [np.concatenate([half.mean(axis=(0, 1)) for half in np.array_split(image, 2)]) for image in images]
    return unit(np.array(rows, dtype=np.float32).reshape(-1, 6) - 127.5).astype(np.float32)


def test_an_index_of_it_and_one_that_changes_to_it(name, engine_of, tmp_path):
    """Changed files, removals, filters, restarts and another engine: as an index by the exact engine has them."""
    model = Model(Path("nowhere"), "colours", 6, "cosine", 32, colours_of)
    photos, engine = pictures(tmp_path / "photos", 90), engine_of(name)
    exact, index = (Index.create(tmp_path / each, model, engine=by) for each, by in (("a", "exact"), ("b", engine)))
    queries = near(np.random.default_rng(0), np.eye(6), 12)

    def same(*opened):
        for where in (None, {"id": (10, 60)}, {"id": [3, 4, 5]}):
            wanted = [[hit.score for hit in hits] for hits in exact.search(list(queries), 8, where=where)]
            for each in opened:
                found = each.search(list(queries), 8, where=where)
                if "recall@10" not in each.status().engine:
                    np.testing.assert_allclose([[hit.score for hit in hits] for hits in found], wanted, atol=1e-12)
                assert [len(hits) for hits in found] == [len(row) for row in wanted]
                assert {hit.id for hits in found for hit in hits} <= set(exact.ids(where).tolist())

    try:
        for each in (exact, index):
            each.add(photos)
        reader = Index.open(tmp_path / "b")
        same(index, reader)
        for number in (7, 30):
            Image.new("RGB", (4, 4), (number, 9, 200)).save(photos / f"{number:03}.png")
        for each in (exact, index):
            assert each.add(photos).added == 2
            each.remove([1, 2, 50])
        same(index, reader, Index.open(tmp_path / "b"))
        assert len(index) == len(exact) == 87
        index.use_engine("exact")
        same(index, reader, Index.open(tmp_path / "b"))
        assert reader.status().engine["name"] == "exact"
        index.use_engine(engine)
        pictures(photos, 200)
        for each in (exact, index):
            each.add(photos)
        same(index, reader, Index.open(tmp_path / "b"))
        assert [each.name for each in (tmp_path / "b" / "engine").iterdir()] == [name]
    finally:
        index._engine.discard()


def test_it_says_what_it_is(name, make_engine):
    stored = make_engine(name, 4).add(unit(np.random.default_rng(0).normal(size=(80, 4))))
    status = stored.engine.status()
    assert status["rows"] == 80
    assert json.loads(json.dumps(status)) == status
    assert ("recall@10" in status) == (name not in ("exact", "milvus"))  # Milvus compares so few with all
    assert 0.9 < status.get("recall@10", 1) <= 1
