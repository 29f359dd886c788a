"""k-reciprocal re-ranking against the paper's definition, in plain sets and dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.evaluation import reranking
from nearkin.evaluation.reranking import Rerank, reranked_distances
from nearkin.evaluation.retrieval import measure
from nearkin.evaluation.scores import score_named


def by_definition(x, k1, k2, weight):
    """Distances ``[N, N]`` of all images to each other, image by image and set by set."""
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    count = len(x)
    squared = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    d = squared / squared.max(axis=1, keepdims=True)
    order = [[p] + [g for g in np.argsort(squared[p], kind="stable") if g != p] for p in range(count)]

    def near(p, k):
        return order[p][: k + 1]

    def reciprocal(p, k):
        return {g for g in near(p, k) if p in near(g, k)}

    v = np.zeros((count, count))
    for p in range(count):
        own = reciprocal(p, k1)
        wider = set(own)
        for q in own:
            theirs = reciprocal(q, round(k1 / 2))
            if 3 * len(theirs & own) >= 2 * len(theirs):
                wider |= theirs
        for g in wider:
            v[p, g] = np.exp(-d[p, g])
        v[p] /= v[p].sum()
    v = np.array([np.mean([v[q] for q in near(p, k2 - 1)], axis=0) for p in range(count)])
    jaccard = np.empty((count, count))
    for p in range(count):
        for g in range(count):
            jaccard[p, g] = 1 - np.minimum(v[p], v[g]).sum() / np.maximum(v[p], v[g]).sum()
    return (1 - weight) * jaccard + weight * d


def all_of(*given, **settings):
    rows, distances = zip(*reranked_distances(*given, rerank=Rerank(**settings)), strict=True)
    assert torch.equal(torch.cat(rows), torch.arange(len(given[0])))
    return torch.cat(distances).numpy()


def clustered(kinds=8, per_kind=6, dim=5, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(kinds, dim)).repeat(per_kind, axis=0) + 0.5 * rng.normal(size=(kinds * per_kind, dim))


@pytest.mark.parametrize("settings", [(20, 6, 0.3), (5, 1, 0.0), (4, 3, 0.7), (1, 2, 0.3), (1000, 1000, 0.3)])
@pytest.mark.parametrize("small_blocks", [False, True])
def test_distances_are_those_of_the_definition(settings, small_blocks, monkeypatch):
    if small_blocks:
        monkeypatch.setattr(reranking, "_AT_ONCE", 50)
        monkeypatch.setattr(reranking, "BLOCK_BYTES", 24 * 48 * 5)
    x = clustered()
    k1, k2, weight = settings
    expected = by_definition(x, min(k1, len(x) - 1), min(k2, len(x)), weight)
    np.testing.assert_allclose(all_of(x, k1=k1, k2=k2, weight=weight), expected, atol=1e-10)


def test_queries_and_gallery_are_looked_at_together():
    x = clustered()
    expected = by_definition(x, 7, 3, 0.3)[:20, 20:]
    np.testing.assert_allclose(all_of(x[:20], x[20:], k1=7, k2=3), expected, atol=1e-10)


def test_it_mends_a_ranking_by_what_neighbours_agree_on():
    """Two kinds along two arcs that come close at one end: the plain order mixes them there."""
    angles = np.linspace(0, 1.2, 25)
    arcs = [np.stack([np.cos(a), np.sin(a), h * np.ones_like(a)], 1) for a, h in ((angles, 0.0), (angles, 0.35))]
    x, labels = np.concatenate(arcs), np.repeat([0, 1], 25)
    plain, changed = all_of(x, weight=1.0), all_of(x, k1=6, k2=2, weight=0.3)

    def right(distances):
        distances = distances + np.diag(np.full(len(x), np.inf))
        return (labels[distances.argsort(axis=1)[:, :24]] == labels[:, None]).mean()

    assert right(changed) > right(plain)


def test_copies_and_single_images_are_no_trouble():
    x = np.ones((30, 4))
    assert np.isfinite(all_of(x)).all()
    assert np.isfinite(all_of(np.eye(4)[:1])).all()
    assert np.isfinite(all_of(np.zeros((3, 4)))).all()


NAMES = ["R@1", "R@2", "P@R", "MAP@R"]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 5)
    return rng.normal(size=(12, 6))[labels] + rng.normal(size=(60, 6)), labels * 7 - 3


@pytest.mark.parametrize("rerank", [Rerank(), Rerank(k1=4, k2=2)], ids=str)
@pytest.mark.parametrize("with_gallery", [False, True])
def test_scores_are_those_of_the_reranked_ranking(data, rerank, with_gallery):
    x, labels = data
    queries = np.arange(0, 60, 3) if with_gallery else np.arange(60)
    found_in = np.setdiff1d(np.arange(60), queries) if with_gallery else queries
    given = (x[found_in], labels[found_in]) if with_gallery else ()
    distances = all_of(x[queries], *given[:1], k1=rerank.k1, k2=rerank.k2)
    hits, num_true = [], []
    for place, (query, row) in enumerate(zip(queries, distances, strict=True)):
        order = [g for g in np.argsort(row.round(12), kind="stable") if with_gallery or g != place]
        hits.append(labels[found_in][order] == labels[query])
        num_true.append(hits[-1].sum())
    ranked = torch.from_numpy(np.array(hits)), torch.from_numpy(np.array(num_true))
    expected = {name: float(score_named(name).per_query(*ranked).mean()) for name in NAMES}
    found = measure(NAMES, x[queries], labels[queries], *given, rerank=rerank)
    assert found == pytest.approx(expected | {"queries_without_match": 0.0})


def test_a_query_without_match_is_not_counted(data):
    x, labels = data
    labels = np.where(np.arange(60) == 0, 999, labels)
    assert measure(["R@1"], x, labels, rerank=Rerank())["queries_without_match"] == 1


def test_what_is_no_ranking_stays_as_it_is(data):
    x, labels = data
    plain, changed = measure(["R@1", "NMI"], x, labels), measure(["R@1", "NMI"], x, labels, rerank=Rerank())
    assert plain["NMI"] == changed["NMI"]
    assert measure(["NMI"], x, labels, rerank=Rerank()) == {"NMI": plain["NMI"]}


def test_what_it_did_is_said_as_transductive():
    assert "k1 20, k2 6, weight 0.3 (transductive)" in str(Rerank())


def test_what_cannot_be_is_refused(data):
    for wrong in (lambda: Rerank(k1=0), lambda: Rerank(weight=1.5)):
        with pytest.raises(RecipeError, match="got"):
            wrong()
    with pytest.raises(RecipeError, match="by angle"):
        measure(["R@1"], *data, rerank=Rerank(), distance="euclidean")


@pytest.mark.gpu
def test_scores_are_the_same_on_a_gpu(data):
    rerank = Rerank(k1=4, k2=2)
    x, labels = data
    there = torch.from_numpy(x).cuda()
    assert measure(NAMES, there, labels, rerank=rerank) == pytest.approx(measure(NAMES, x, labels, rerank=rerank))
    given = (there[::2], labels[::2], there[1::2], labels[1::2])  # both have images of every class
    assert measure(NAMES, *given, rerank=rerank) == pytest.approx(
        measure(NAMES, x[::2], labels[::2], x[1::2], labels[1::2], rerank=rerank)
    )
