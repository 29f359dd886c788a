"""What queries find, against a plain ranking and against the scores that the run reported."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nearkin.report.opened_run import CannotDrawError, OpenedRun, Sample, ViewOptions
from nearkin.report.query_results import Neighbour, retrieve


def retrieved(path):
    run = OpenedRun(path, ViewOptions(device="cpu"))
    return retrieve(run, run.test_sample)


def test_scores_by_query_agree_with_what_the_run_reported(four_runs):
    for path in four_runs[1:]:
        found = retrieved(path)
        reported = json.loads((path / "scores.json").read_text())["test"]
        assert found.recall.mean() == pytest.approx(reported["R@1"])
        assert found.precision.mean() == pytest.approx(reported["MAP@R"])
        by_class = found.classes().values()
        assert [score.queries for score in by_class] == [5, 5, 5, 5]
        assert np.mean([score.precision for score in by_class]) == pytest.approx(reported["MAP@R"])


def test_worst_queries_and_where_the_first_right_one_is(four_runs):
    found = retrieved(four_runs[0])
    vectors = found.queries.embeddings.double().numpy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    similar = vectors @ vectors.T
    np.fill_diagonal(similar, -np.inf)
    order = np.argsort(-similar, axis=1, kind="stable")
    same = found.queries.labels[order] == found.queries.labels[:, None]
    worst = found.worst(3)
    assert worst
    assert len({int(found.queries.labels[query]) for query in worst}) == len(worst)
    for query in worst:
        assert not same[query, 0]
        rank = int(np.flatnonzero(same[query])[0])
        row = int(found.queries.rows[order[query, rank]])
        assert found.first_right(query) == (Neighbour(row, int(found.queries.labels[query]), True), rank + 1)
    assert found.precision[worst[0]] == found.precision[found.recall == 0].min()
    assert found.hits[:, :8].tolist() == order[:, :8].tolist()
    for query, places in enumerate(order[:, :8]):
        rows, right = found.queries.rows[places].tolist(), same[query, :8].tolist()
        assert [(each.row, each.right) for each in found.neighbours_of(query)] == list(zip(rows, right, strict=True))


def stand_in(labels, query, gallery):
    """A run of which only the test split, the classes and a stream of random numbers are asked for."""
    protocol = SimpleNamespace(test=SimpleNamespace(query=np.array(query), gallery=gallery and np.array(gallery)))
    data = SimpleNamespace(table=SimpleNamespace(class_names=sorted({str(label) for label in labels})))
    return SimpleNamespace(protocol=protocol, data=data, random=lambda: np.random.default_rng(0))


def test_queries_search_the_gallery_where_there_is_one():
    labels = np.array([0, 0, 1, 1, 2])
    vectors = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2], [-1.0, 0.0]])
    sample = Sample(np.arange(5), labels, vectors)
    found = retrieve(stand_in(labels, [0, 2, 4], [1, 3]), sample, "cosine")
    assert [each.row for each in found.neighbours_of(0)] == [1, 3]
    assert [each.right for each in found.neighbours_of(1)] == [True, False]
    assert found.true.tolist() == [1, 1, 0]
    assert np.isnan(found.recall[2]), "nothing of its class is in the gallery"
    assert found.first_right(1) == (Neighbour(3, 1, True), 1)
    assert sorted(found.choose_queries(9)) == [0, 1]


def test_a_single_image_has_no_neighbours():
    sample = Sample(np.array([0]), np.array([0]), torch.ones(1, 2))
    with pytest.raises(CannotDrawError, match="no neighbours"):
        retrieve(stand_in([0], [0], None), sample, "cosine")
