"""A run scored again: on its own test classes, and on other data with what of them it was trained on."""

from __future__ import annotations

import shutil

import pytest

from nearkin.errors import DataError
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.state import NullObserver


def test_its_own_test_classes_have_the_scores_of_the_run(trained):
    result = evaluate_run(trained)
    assert result.scores == RunFolder(trained).scores().test
    assert (result.images, result.classes, result.trained_on, result.note) == (16, 2, None, None)


def test_other_data_say_how_much_of_them_was_trained_on(trained, photos, tmp_path, add_kinds, kinds):
    other = tmp_path / "other"
    add_kinds(other, "x", "y")
    shutil.copytree(photos / kinds(trained, "train")[0], other / "same images, another name")
    shutil.copytree(other / "x", other / kinds(trained, "train")[1])
    result = evaluate_run(trained, data=str(other))
    assert result["trained_on"] == {"images": 8, "classes": 2}
    assert "was trained on 8 of these 20 images, and on 2 of these 4 classes" in result["note"]
    shutil.rmtree(other / "same images, another name")
    shutil.rmtree(other / kinds(trained, "train")[1])
    result = evaluate_run(trained, data=str(other))
    assert (result["trained_on"], result["note"]) == ({"images": 0, "classes": 0}, None)


def test_the_very_images_that_trained_say_nothing_about_new_ones(trained, photos, tmp_path, kinds):
    for kind in kinds(trained, "train"):
        shutil.copytree(photos / kind, tmp_path / "same" / kind)
    told = []
    result = evaluate_run(trained, data=str(tmp_path / "same"), announce=told.append)
    assert result.trained_on == {"images": 32, "classes": 4}
    assert result.note == "it was trained on these very images, so this says nothing about new ones"
    assert (told[0].images, told[0].classes) == (32, 4)


def test_of_data_with_a_test_split_that_is_scored(trained, tmp_path, add_kinds):
    add_kinds(tmp_path / "other" / "train", "a", "b")
    add_kinds(tmp_path / "other" / "test", "c", "d", "e")
    result = evaluate_run(trained, data=str(tmp_path / "other"))
    assert (result.images, result.classes) == (12, 3)


def test_without_test_classes_there_is_nothing_to_score(trained, tmp_path):
    recipe = RunFolder(trained).recipe().with_changes({"protocol.test_share": 0.0})
    run(recipe, RunFolder(tmp_path / "untested"), NullObserver())
    with pytest.raises(DataError, match="'own photos' has no test classes: give others with --data"):
        evaluate_run(tmp_path / "untested")


def test_mirror_images_and_larger_crops_are_those_of_a_run_that_has_them_and_are_named(trained, tmp_path):
    plain = evaluate_run(trained)
    unusual = evaluate_run(trained, flip=True, eval_size=64)
    assert (plain.conditions, "conditions" in plain) == (None, False)
    assert unusual["conditions"] == "test crops of 64 pixels, embeddings averaged with those of mirror images"
    # The same single step, scored so from the beginning.
    recipe = RunFolder(trained).recipe().with_changes({"protocol.flip": True, "protocol.eval_size": 64})
    scores = run(recipe, RunFolder(tmp_path / "unusual"), NullObserver())
    assert scores.test == unusual.scores
    assert scores.conditions.selection.endswith("pixels, embeddings averaged with those of mirror images")
    assert evaluate_run(tmp_path / "unusual").scores == unusual.scores
    assert "centre 64" in RunFolder(tmp_path / "unusual").environment().transform
    back = evaluate_run(tmp_path / "unusual", flip=False, eval_size=32)
    assert back.scores == plain.scores


def test_crops_as_a_multiple_of_those_of_training_are_those_of_that_size(trained, tmp_path):
    recipe = RunFolder(trained).recipe().with_changes({"protocol.eval_scale": 2.0})
    run(recipe, RunFolder(tmp_path / "scaled"), NullObserver())
    scaled, large = evaluate_run(tmp_path / "scaled"), evaluate_run(trained, eval_size=64)
    assert scaled.scores == large.scores
    assert scaled["test_time"] == {"eval_scale": 2.0}
    assert scaled["conditions"] == "test crops 2 times as large as those of training"
    assert evaluate_run(tmp_path / "scaled", eval_size=32).scores == evaluate_run(trained).scores
