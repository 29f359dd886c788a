from __future__ import annotations

import numpy as np

from nearkin.recipe import Recipe
from nearkin.report import draw_neighbours, neighbours
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.state import Silent


def test_the_picture_shows_right_and_wrong_before_and_after(photos, tmp_path, monkeypatch):
    recipe = Recipe.from_mapping(
        {
            "data": {"source": str(photos), "transform": "mild", "image_size": 32, "workers": 1},
            "encoder": {"backbone": "resnetv2_20", "dim": 8},
            "training": {"epochs": 1, "batch_size": 16, "device": "cpu"},
            "protocol": {"name": "conventional", "test_share": 0.5},
        }
    )
    folder = RunFolder(tmp_path / "run")
    run(recipe, folder, Silent())
    shown = []
    genuine = neighbours._figure

    def spy(data, pool, places, labels, found, title):
        shown.append((pool, places, labels, found))
        assert "classes never seen in training" in title
        return genuine(data, pool, places, labels, found, title)

    monkeypatch.setattr(neighbours, "_figure", spy)
    file = draw_neighbours(folder, queries=3, neighbours=8)
    assert file.read_bytes().startswith(b"\x89PNG")
    pool, places, labels, found = shown[0]
    assert len(pool) == 24
    assert list(found) == ["before training", "after training"]
    for order in found.values():
        assert order.shape == (3, 7), "seven others of a class of eight can be found"
        assert all(place not in row for place, row in zip(places.tolist(), order.tolist(), strict=True))
    assert len(set(labels[places].tolist())) == 3


def test_a_large_gallery_is_thinned_by_whole_classes(monkeypatch):
    monkeypatch.setattr(neighbours, "GALLERY_LIMIT", 20)
    labels = np.repeat(np.arange(30), 5)
    rows = neighbours._whole_classes(np.arange(150), labels, np.random.default_rng(0))
    kept, counts = np.unique(labels[rows], return_counts=True)
    assert len(kept) == 4
    assert (counts == 5).all()


def test_without_test_classes_there_is_no_picture(photos, tmp_path):
    recipe = Recipe.from_mapping(
        {
            "data": {"source": str(photos), "transform": "mild", "image_size": 32, "workers": 1},
            "encoder": {"backbone": "resnetv2_20", "dim": 8},
            "training": {"epochs": 1, "max_steps": 1, "device": "cpu"},
            "protocol": {"test_share": 0.0},
        }
    )
    folder = RunFolder(tmp_path / "run")
    scores = run(recipe, folder, Silent())
    assert scores["test"] is None
    assert draw_neighbours(folder) is None
