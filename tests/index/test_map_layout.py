from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.neighbours import nearest
from nearkin.index import Index
from nearkin.index.map_layout import NAME, lay_out, make_layout, place_by_neighbours, principal_components, read_layout
from nearkin.runs.trained_run import ClassProxies


def clustered(kinds=40, per_kind=12, dim=64, seed=0):
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(kinds), per_kind)
    vectors = rng.normal(size=(kinds, dim))[labels] + 0.6 * rng.normal(size=(len(labels), dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def agreement(points, labels, k=5):
    """How many of each point's nearest in the plane have its label."""
    found, _ = nearest(np.asarray(points), k=k, distance="euclidean")
    return (labels[found] == labels[:, None]).mean()


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_what_is_near_stands_near_and_far_more_so_than_in_principal_components(distance):
    vectors, labels = clustered()
    told = []
    points = lay_out(vectors, distance, progress=lambda done, of: told.append((done, of)))
    assert points.shape == (480, 2)
    assert points.dtype == np.float32
    assert np.isfinite(points).all()
    assert agreement(points, labels) > 0.95  # by chance 0.02
    assert agreement(principal_components(vectors), labels) < 0.6
    done, of = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert done[-1] == of[-1]
    assert 2 * done[0] == of[0], "480 are searched in one block, and the search is half of the work"


def test_the_same_vectors_give_the_same_map():
    vectors, _ = clustered(kinds=4, per_kind=8)
    assert np.array_equal(lay_out(vectors, "cosine"), lay_out(vectors, "cosine"))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 20])
def test_few_items_and_copies_have_a_place_each(rows):
    for vectors in (np.ones((rows, 3), dtype=np.float32), np.eye(rows, 1, dtype=np.float32), np.zeros((rows, 2))):
        points = lay_out(vectors.astype(np.float32), "cosine")
        assert points.shape == (rows, 2)
        assert np.isfinite(points).all()


def test_a_new_item_stands_at_the_weighted_mean_of_its_neighbours():
    rng = np.random.default_rng(1)
    known, new = (rng.normal(size=(n, 6)).astype(np.float32) for n in (30, 4))
    points = rng.normal(size=(30, 2)).astype(np.float32)
    placed = place_by_neighbours(new, known, points, "euclidean")
    for row, where in zip(new.astype(np.float64), placed, strict=True):
        far = np.linalg.norm(known - row, axis=1)
        five = np.argsort(far)[:5]
        weights = 1 / (far[five] + 1e-6)
        assert where == pytest.approx((points[five] * weights[:, None]).sum(axis=0) / weights.sum(), abs=1e-4)


@pytest.fixture
def index(tmp_path, images, model):
    made = Index.create(tmp_path / "colours.index", model)
    made.add(images)
    yield made
    made.close()


def test_a_map_is_kept_and_follows_what_is_added_and_removed(index, images, tmp_path, model, write_images):
    assert read_layout(index) is None
    made = make_layout(index)
    again = read_layout(Index.open(index.path, model))
    assert again.ids.tolist() == made.ids.tolist() == list(range(20))
    assert np.array_equal(again.points, made.points)
    index.remove([0, 7])
    index.add(write_images(tmp_path / "more", kinds=1, per_kind=2, seed=5))
    now = read_layout(index)
    assert now.ids.tolist() == [*(each for each in range(20) if each not in (0, 7)), 20, 21]
    assert np.array_equal(now.points[:18], made.points[np.setdiff1d(np.arange(20), [0, 7])])
    kept = now.ids[:18]
    placed = place_by_neighbours(index.vectors([20, 21]), index.vectors(kept), now.points[:18], "cosine")
    assert np.allclose(now.points[18:], placed)


def test_a_large_index_shows_some_of_its_items(index, monkeypatch):
    monkeypatch.setattr("nearkin.index.map_layout.MOST", 12)
    made = make_layout(index)
    assert len(made.ids) == 12
    assert set(made.ids.tolist()) < set(range(20))
    assert np.array_equal(read_layout(index).ids, made.ids)
    index.remove(made.ids[:2])
    assert len(read_layout(index).ids) == 12  # two others have room now


def test_proxies_stand_among_their_nearest_items(index, monkeypatch):
    found = ClassProxies(index.vectors([3, 11]), ("kind 0", "another"))
    monkeypatch.setattr("nearkin.runs.trained_run.proxies_of", lambda path, dim: found)
    made = make_layout(index)
    assert np.allclose(made.proxies, made.points[[3, 11]], atol=1e-2)
    stored = read_layout(index)
    assert stored.classes == ("kind 0", "another")
    assert np.array_equal(stored.proxies, made.proxies)


def test_what_cannot_be_laid_out_or_read_says_so(index, tmp_path, model):
    with pytest.raises(RecipeError, match="empty"):
        make_layout(Index.create(tmp_path / "none.index", model))
    (index.path / NAME).write_bytes(b"PK no map")
    with pytest.raises(DataError, match="again"):
        read_layout(index)


def test_the_map_of_another_encoder_counts_as_none(index):
    make_layout(index)
    with np.load(index.path / NAME) as stored:
        parts = dict(stored)
    np.savez(index.path / NAME, **(parts | {"encoder": np.array("another")}))
    assert read_layout(index) is None
