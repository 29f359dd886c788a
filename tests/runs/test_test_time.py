"""Runs scored with what can be done without training, against the same done by hand."""

from __future__ import annotations

import pytest

import nearkin
from nearkin.evaluation.measurement import measure
from nearkin.evaluation.reranking import Rerank, measure_reranked
from nearkin.runs.data import open_run_data
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.state import NullObserver

NAMES = ["R@1", "R@2", "MAP@R"]


@pytest.fixture
def other(trained, tmp_path):
    run(RunFolder(trained).recipe().with_changes({"training.seed": 5}), RunFolder(tmp_path / "other"), NullObserver())
    return tmp_path / "other"


def vectors_of(path, **options):
    """Vectors and labels of the test images, by the model as other programs use it."""
    first = path[0] if isinstance(path, list) else path
    data = open_run_data(RunFolder(first), RunFolder(first).recipe())
    rows = data.protocol.test.query
    images = [data.images.images[row] for row in rows]
    return nearkin.load(path, device="cpu", **options).encode(images), data.images.table.labels[rows]


def scores_of(result):
    return {name: result.scores[name] for name in NAMES}


def only(found):
    return pytest.approx({name: found[name] for name in NAMES})


def test_scores_of_concatenated_runs_are_those_of_the_concatenated_model(trained, other):
    result = evaluate_run(trained, also=[other], flip=True)
    assert scores_of(result) == only(measure(NAMES, *vectors_of([trained, other], flip=True)))
    assert result["test_time"] == {"flip": True, "with": [str(other)]}
    assert f"embeddings concatenated with those of {other}" in result["conditions"]


def test_reranked_scores_are_named_transductive(trained):
    result = evaluate_run(trained, rerank=Rerank(k1=4))
    assert scores_of(result) == only(measure_reranked(NAMES, *vectors_of(trained), rerank=Rerank(k1=4)))
    plain = evaluate_run(trained)
    assert result.scores["covering_radius"] == plain.scores["covering_radius"]
    assert result["test_time"]["rerank"]["transductive"] is True
    assert "(transductive)" in result["conditions"]


def test_nothing_asked_changes_nothing(trained):
    result = evaluate_run(trained)
    assert result.scores == RunFolder(trained).scores().test
    assert not {"test_time", "conditions"} & set(result)


def test_a_run_that_was_trained_on_the_others_test_images_is_pointed_out(trained, other, tmp_path):
    assert evaluate_run(trained, also=[other]).note is None
    recipe = RunFolder(trained).recipe().with_changes({"protocol.split_seed": 3})
    run(recipe, RunFolder(tmp_path / "another split"), NullObserver())
    note = evaluate_run(trained, also=[tmp_path / "another split"]).note
    assert "another split: it was trained on" in note
