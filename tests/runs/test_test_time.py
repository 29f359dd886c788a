"""Runs scored with what can be done without training, against the same done by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nearkin
from nearkin.errors import RecipeError
from nearkin.evaluation.measurement import measure
from nearkin.evaluation.transductive import Expand, Rerank, measure_changed
from nearkin.runs.data import open_run_data
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.state import Silent

NAMES = ["R@1", "R@2", "MAP@R"]


@pytest.fixture
def other(trained, tmp_path):
    run(RunFolder(trained).recipe().but({"training.seed": 5}), RunFolder(tmp_path / "other"), Silent())
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


def test_scores_of_whitened_embeddings_are_those_of_the_whitened_model(trained):
    result = evaluate_run(trained, whiten=3, shrinkage=0.1)
    assert scores_of(result) == only(measure(NAMES, *vectors_of(trained, whiten=3, shrinkage=0.1)))
    assert result["test_time"] == {"whiten": {"dim": 3, "shrinkage": 0.1, "training_images": 32}}
    said = "whitened to 3 dimensions, shrinkage 0.1, learned from 32 training images and from no test image"
    assert result["conditions"] == said


def test_scores_of_runs_side_by_side_are_those_of_the_concatenated_model(trained, other):
    result = evaluate_run(trained, also=[other], flip=True)
    assert scores_of(result) == only(measure(NAMES, *vectors_of([trained, other], flip=True)))
    assert result["test_time"] == {"flip": True, "with": [str(other)]}
    assert f"embeddings side by side with those of {other}" in result["conditions"]
    both = evaluate_run(trained, also=[other], whiten=True)
    assert scores_of(both) == only(measure(NAMES, *vectors_of([trained, other], whiten=True)))
    assert both["test_time"]["whiten"]["dim"] == nearkin.load([trained, other], device="cpu", whiten=True).dim


@pytest.mark.parametrize("change", [Expand(3, 1.0), Rerank(k1=4)], ids=["expand", "rerank"])
def test_changed_rankings_are_scored_and_named_transductive(trained, change):
    result = evaluate_run(trained, change=change)
    assert scores_of(result) == only(measure_changed(NAMES, *vectors_of(trained), change=change))
    plain = evaluate_run(trained)
    assert result.scores["covering_radius"] == plain.scores["covering_radius"]
    ((name, record),) = result["test_time"].items()
    assert name == type(change).__name__.lower()
    assert record["transductive"] is True
    assert "(transductive)" in result["conditions"]


def test_nothing_asked_changes_nothing(trained):
    result = evaluate_run(trained)
    assert result.scores == RunFolder(trained).scores().test
    assert not {"test_time", "conditions"} & set(result)


def test_a_run_that_was_trained_on_the_others_test_images_is_pointed_out(trained, other, tmp_path):
    assert evaluate_run(trained, also=[other]).note is None
    recipe = RunFolder(trained).recipe().but({"protocol.split_seed": 3})
    run(recipe, RunFolder(tmp_path / "another split"), Silent())
    note = evaluate_run(trained, also=[tmp_path / "another split"]).note
    assert "another split: it was trained on" in note


def test_other_data_are_whitened_by_the_runs_own_training_images(trained, tmp_path, add_kinds):
    add_kinds(tmp_path / "more", "x", "y", "z")
    result = evaluate_run(trained, data=str(tmp_path / "more"), whiten=True)
    assert result["test_time"]["whiten"]["training_images"] == 32
    assert (result.images, list(trained.glob("whitening-*.npz")) != []) == (12, True)


def test_what_cannot_be_is_refused(trained):
    with pytest.raises(RecipeError, match="shrinkage is of whitening"):
        evaluate_run(trained, shrinkage=0.5)
    with pytest.raises(RecipeError, match="between 1 and"):
        evaluate_run(trained, whiten=100)


def test_embeddings_stay_tensors_of_float32(trained):
    from nearkin.runs.test_time import AtTestTime
    from nearkin.runs.trained import load_run

    loaded = load_run(trained, device="cpu")
    data = open_run_data(loaded.folder, loaded.recipe)
    at_test_time = AtTestTime([loaded], whiten=True)
    axes = at_test_time.axes(lambda: data)
    found = at_test_time.embed(data.images.images, np.arange(4), at_test_time.whitening(axes))
    assert (found.dtype, len(found)) == (torch.float32, 4)
