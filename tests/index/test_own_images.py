"""A run's own test images in an index."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from PIL import Image

from nearkin.data.source import read_source
from nearkin.errors import DataError
from nearkin.index.index import Index
from nearkin.index.own_images import add_test_images
from nearkin.runs.folder import RunFolder
from nearkin.runs.model import load
from nearkin.runs.run import run
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver


def test_of_photos_only_those_of_kinds_not_trained_on(trained, photos, tmp_path):
    model = load(trained)
    index = Index.create(tmp_path / "index", model)
    added = add_test_images(index, trained)
    with open(trained / "split.csv", newline="", encoding="utf-8") as file:
        tested = {row["image"] for row in csv.DictReader(file) if row["split"] == "test"}
    items = index.items(index.ids())
    assert added.added == len(items) == 16
    assert {item.path for item in items} == {str(photos / id) for id in tested}
    assert all(item.path == str(photos / item.label / item.path.rpartition("/")[2]) for item in items)
    assert add_test_images(index, trained).known == 16


def test_images_that_lie_in_no_files_become_files(tmp_path, monkeypatch):
    glyphs = read_source("glyphs")
    monkeypatch.setattr("nearkin.runs.data.read_source", lambda *_, **__: glyphs.take(glyphs.labels % 60 == 0))
    changes = ["training.max_steps=1", "training.epochs=1", "training.device=cpu", "protocol.name=conventional"]
    run(load_recipe("glyphs/demo", changes), RunFolder(tmp_path / "run"), NullObserver())
    index = Index.create(tmp_path / "index", load(tmp_path / "run"))
    added = add_test_images(index, tmp_path / "run")
    wanted = (glyphs.labels % 60 == 0) & (glyphs.splits == "test")
    assert added.added == len(np.unique(glyphs.images[wanted], axis=0)) > 50
    item = index.get(7)
    with Image.open(item.path) as image:
        pixels = np.array(image)
    (row,) = np.flatnonzero(wanted & (glyphs.images == pixels).all(axis=(1, 2)))[:1]
    assert item.label == glyphs.class_names[glyphs.labels[row]]
    assert item.path.startswith(str(tmp_path / "index" / "images" / "U+"))
    assert index.search(item.path, k=1)[0].id == 7


def test_a_run_on_everything_has_none(trained, photos, tmp_path):
    recipe = load_recipe(trained / "recipe.yaml", ["protocol.name=everything"])
    run(recipe, RunFolder(tmp_path / "final"), NullObserver())
    index = Index.create(tmp_path / "index", load(tmp_path / "final"))
    with pytest.raises(DataError, match="no test images"):
        add_test_images(index, tmp_path / "final")
