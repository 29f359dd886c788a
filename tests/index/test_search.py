"""From vectors of queries to hits, against all scores in order: what is left out, and groups that lie deep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nearkin.index import Index
from nearkin.index.search import SearchContext


@pytest.fixture
def make(tmp_path, model):
    """What is searched in an index of so many labels, of which all near the first axis have the first."""

    def make(labels, allowed=None):
        rng = np.random.default_rng(0)
        vectors = rng.normal(size=(len(labels), 6)).astype(np.float32)
        vectors[:, 0] += np.where(np.array(labels) == "near", 9, 0)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        encoder = replace(model, embed=lambda images, batch_size: vectors[[int(image[0, 0, 0]) for image in images]])
        index = Index.create(tmp_path / "index", encoder)
        index.add([np.full((8, 8, 3), place, np.uint8) for place in range(len(labels))], labels)
        index.search(0)
        return SearchContext(index._vectors, index._engine, index._items, None, "cosine", allowed), vectors

    return make


def in_order(vectors, query):
    return np.argsort(-(vectors.astype(np.float64) @ query), kind="stable").tolist()


def test_what_is_excluded_of_one_query_is_not_of_another(make):
    searched, vectors = make(["near"] * 30)
    queries = np.eye(6)[:2]
    orders = [in_order(vectors, query) for query in queries]
    excluded = [set(orders[0][:3]), set()]
    found = list(searched.hits(queries, excluded, 5, None, rerank=None))
    assert [hit.id for hit in found[0]][:5] == orders[0][3:8]
    assert [hit.id for hit in found[1]][:5] == orders[1][:5]


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_a_group_behind_many_hits_of_another_is_found(make, wanted):
    searched, vectors = make(["near"] * 100 + ["far", "farther"])
    (found,) = searched.hits(np.eye(6)[:1], [set()], wanted, "label", rerank=None)
    assert len({hit.label for hit in found}) >= wanted
    assert [hit.id for hit in found] == in_order(vectors, np.eye(6)[0])[: len(found)]


def test_nothing_where_no_row_is_allowed(make):
    searched, _ = make(["near"] * 4, np.empty(0, dtype=np.int64))
    assert list(searched.hits(np.eye(6)[:2], [set(), set()], 3, None, rerank=None)) == [[], []]
