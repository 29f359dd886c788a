"""Whole runs: what their scores and records say under each protocol, and what is announced before they train."""

from __future__ import annotations

import json

import pytest

import nearkin
from nearkin.errors import DataError
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 2},
    "training": {"epochs": 3, "max_steps": 6, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3},
    "protocol": {"test_share": 0.35},
}


class Watcher(Observer):
    """Remembers the state of the last step."""

    def on_step(self, state, loss, images):
        self.state = state


def manifest(photos):
    """A list with four training kinds, and queries and gallery of two others."""
    lines = ["path,label,split"]
    for number, kind in enumerate(sorted(path for path in photos.iterdir() if path.is_dir())):
        for place, file in enumerate(sorted(kind.iterdir())):
            split = "train" if number < 4 else ("query" if place < 3 else "gallery")
            lines.append(f"{kind.name}/{file.name},{kind.name},{split}")
    (photos / "list.csv").write_text("\n".join(lines))
    return photos / "list.csv"


def recipe_for(source, *overrides):
    return load_recipe(TINY, [f"data.source={json.dumps(str(source))}", *overrides])


def test_in_distribution_reports_the_last_epoch_in_two_dimensions(photos, tmp_path):
    scores = run(recipe_for(photos, "protocol.name=in-distribution"), RunFolder(tmp_path / "run"), Watcher())
    assert (scores["protocol"], scores["selection"]) == ("in-distribution", "last epoch")
    assert scores["test_classes"] == "classes also seen in training"
    assert scores["best"] == scores["last"]
    assert "R@1" not in scores["last"], "the test images are scored once, at the end"
    assert 0 < scores["test"]["R@1"] <= 1
    record = json.loads((tmp_path / "run" / "environment.json").read_text())["data"]
    assert (record["training_images"], record["test_images"]) == (30, 18), "3 of the 8 images of each kind test"


def test_query_gallery_reports_the_best_evaluation_of_the_queries(photos, tmp_path):
    recipe = recipe_for(manifest(photos), "protocol.name=query-gallery")
    scores = run(recipe, RunFolder(tmp_path / "run"), Watcher())
    assert scores["selection"] == "best R@1 of the test queries in their gallery"
    history = RunFolder(tmp_path / "run").evaluations()
    assert scores["test"]["R@1"] == max(row["R@1"] for row in history if row["step"])
    assert evaluate_run(tmp_path / "run", data=str(photos))["images"] == 48, "other data need no query and gallery"
    with pytest.raises(DataError, match="the query-gallery protocol needs images of the splits"):
        run(recipe_for(photos, "protocol.name=query-gallery"), RunFolder(tmp_path / "other"), Watcher())


def test_mlrc_chooses_on_its_fold_and_scores_the_test_classes_once(photos, tmp_path):
    recipe = recipe_for(photos, "protocol.name=mlrc", "protocol.folds=2", "protocol.fold=1")
    watcher = Watcher()
    scores = run(recipe, RunFolder(tmp_path / "run"), watcher)
    history = RunFolder(tmp_path / "run").evaluations()
    assert scores["best"]["MAP@R"] == max(row["MAP@R"] for row in history if row["step"])
    labels, protocol = watcher.state.table.labels, watcher.state.protocol
    parts = [set(labels[rows]) for rows in (protocol.train_rows, protocol.validation.query, protocol.test.query)]
    assert [len(part) for part in parts] == [2, 2, 2]
    assert len(set.union(*parts)) == 6


def test_a_run_trains_with_the_wrong_labels_and_records_them(photos, tmp_path):
    recipe = recipe_for(photos, "protocol.label_noise=0.25", "protocol.train_share=0.5")
    folder, watcher = RunFolder(tmp_path / "run"), Watcher()
    scores = run(recipe, folder, watcher)
    state = watcher.state
    # Six kinds of eight images; two test, and half of the images of four leaves sixteen.
    assert len(state.labels) == 16
    assert (state.labels != state.table.take(state.protocol.train_rows).training_labels()).sum() == 4
    record = json.loads(folder.environment_file.read_text())["data"]
    assert (record["training_images"], record["replaced_labels"]) == (16, 4)
    assert scores["training_conditions"] == (
        "50 % of the training images of each class, 25 % of the training labels replaced"
    )


def test_a_run_from_python_needs_a_recipe_and_a_folder(photos, tmp_path):
    recipe = load_recipe("own_photos/small", [f"data.source={json.dumps(str(photos))}", "training.max_steps=1"])
    scores = nearkin.run(recipe, str(tmp_path / "run"))
    assert nearkin.RunFolder(tmp_path / "run").scores() == scores
