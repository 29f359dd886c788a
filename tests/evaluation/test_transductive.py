"""Scores of changed rankings against rankings made one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.errors import RecipeError
from nearkin.evaluation.measurement import measure
from nearkin.evaluation.query_expansion import expand_queries
from nearkin.evaluation.reranking import reranked_distances
from nearkin.evaluation.retrieval import ranking_scores
from nearkin.evaluation.transductive import Expand, Rerank, measure_changed

NAMES = ["R@1", "R@2", "P@R", "MAP@R"]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 5)
    return rng.normal(size=(12, 6))[labels] + rng.normal(size=(60, 6)), labels * 7 - 3


def distances_of(change, x, gallery):
    if isinstance(change, Expand):
        y = x if gallery is None else gallery
        return -(expand_queries(x, gallery, k=change.k, alpha=change.alpha).numpy() @ (y.T / np.linalg.norm(y, axis=1)))
    return torch.cat([d for _, d in reranked_distances(x, gallery, k1=change.k1, k2=change.k2)]).numpy()


@pytest.mark.parametrize("change", [Expand(3), Expand(10, alpha=0.0), Rerank(), Rerank(k1=4, k2=2)], ids=str)
@pytest.mark.parametrize("with_gallery", [False, True])
def test_scores_are_those_of_the_changed_ranking(data, change, with_gallery):
    x, labels = data
    queries = np.arange(0, 60, 3) if with_gallery else np.arange(60)
    found_in = np.setdiff1d(np.arange(60), queries) if with_gallery else queries
    given = (x[found_in], labels[found_in]) if with_gallery else ()
    distances = distances_of(change, x[queries], x[found_in] if with_gallery else None)
    hits, num_true = [], []
    for place, (query, row) in enumerate(zip(queries, distances, strict=True)):
        order = [g for g in np.argsort(row.round(12), kind="stable") if with_gallery or g != place]
        hits.append(labels[found_in][order] == labels[query])
        num_true.append(hits[-1].sum())
    expected = ranking_scores(np.array(hits), np.array(num_true), recall_at=(1, 2))
    assert measure_changed(NAMES, x[queries], labels[queries], *given, change=change) == pytest.approx(expected)


def test_a_query_without_match_is_not_counted(data):
    x, labels = data
    labels = np.where(np.arange(60) == 0, 999, labels)
    assert measure_changed(["R@1"], x, labels, change=Expand(2))["queries_without_match"] == 1


def test_what_is_no_ranking_stays_as_it_is(data):
    x, labels = data
    plain, changed = measure(["R@1", "NMI"], x, labels), measure_changed(["R@1", "NMI"], x, labels, change=Rerank())
    assert plain["NMI"] == changed["NMI"]
    assert measure_changed(["NMI"], x, labels, change=Rerank()) == {"NMI": plain["NMI"]}


def test_what_it_did_is_said_as_transductive():
    assert str(Expand(5)) == "queries expanded by their 5 nearest test images, alpha 3 (transductive)"
    assert "k1 20, k2 6, weight 0.3 (transductive)" in str(Rerank())


def test_what_cannot_be_is_refused(data):
    for wrong in (lambda: Expand(0), lambda: Expand(1, -1), lambda: Rerank(k1=0), lambda: Rerank(weight=1.5)):
        with pytest.raises(RecipeError, match="got"):
            wrong()
    with pytest.raises(RecipeError, match="by angle"):
        measure_changed(["R@1"], *data, change=Expand(1), distance="euclidean")


@pytest.mark.gpu
@pytest.mark.parametrize("change", [Expand(3), Rerank(k1=4, k2=2)], ids=str)
def test_scores_are_the_same_on_a_gpu(data, change):
    x, labels = data
    there = torch.from_numpy(x).cuda()
    assert measure_changed(NAMES, there, labels, change=change) == pytest.approx(
        measure_changed(NAMES, x, labels, change=change), nan_ok=True
    )
    given = (there[:30], labels[:30], there[30:], labels[30:])
    assert measure_changed(NAMES, *given, change=change) == pytest.approx(
        measure_changed(NAMES, x[:30], labels[:30], x[30:], labels[30:], change=change), nan_ok=True
    )
