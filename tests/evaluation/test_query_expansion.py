"""α-query expansion against its definition, query by query."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.evaluation import query_expansion
from nearkin.evaluation.query_expansion import expand_queries


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def by_definition(queries, gallery, k, alpha):
    """q + Σ cos(q, x)^alpha · x over the k nearest x, one after the other; q itself is never among them."""
    found = []
    for number, query in enumerate(unit(queries)):
        others = unit(np.delete(queries, number, axis=0) if gallery is None else gallery)
        cosines = others @ query
        total = query.copy()
        for place in np.argsort(-cosines, kind="stable")[:k]:
            if cosines[place] > 0:
                total += cosines[place] ** alpha * others[place]
        found.append(unit(total))
    return np.array(found)


@pytest.mark.parametrize("alpha", [0, 1, 3])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_each_query_is_the_sum_of_itself_and_its_neighbours(alpha, with_gallery, monkeypatch):
    monkeypatch.setattr(query_expansion, "_AT_ONCE", 64)  # several blocks
    rng = np.random.default_rng(0)
    queries, gallery = rng.normal(size=(40, 5)), rng.normal(size=(30, 5)) if with_gallery else None
    for k in (1, 7, 29):
        found = expand_queries(torch.from_numpy(queries), gallery, k=k, alpha=alpha)
        np.testing.assert_allclose(found.numpy(), by_definition(queries, gallery, k, alpha), atol=1e-12)


def test_more_neighbours_than_there_are_means_all():
    x = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_array_equal(expand_queries(x, k=100), expand_queries(x, k=3))


def test_lengths_do_not_count_and_zero_stays_zero():
    x = np.random.default_rng(0).normal(size=(6, 3))
    x[2] = 0
    longer = x * np.arange(1, 7)[:, None]
    found = expand_queries(x, k=2)
    np.testing.assert_allclose(found, expand_queries(longer, k=2), atol=1e-12)
    assert not found[2].any()


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="alpha must be at least 0, got -1"):
        expand_queries(np.eye(3), k=1, alpha=-1)
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        expand_queries(np.eye(3), k=0)
