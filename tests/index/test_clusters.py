"""Items in clusters: as many as there are clumps, the typical first, and held against labels."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest

from nearkin.data.manifest import read_manifest
from nearkin.errors import DataError, RecipeError
from nearkin.index import clusters
from nearkin.index.clusters import cluster, write_manifest
from nearkin.index.index import Index


def clumps(number, per_clump, seed=0, spread=0.04):
    """Pixels ``[N, 1, 2, 3]`` whose values, as vectors of six, lie around so many directions."""
    rng = np.random.default_rng(seed)
    while True:
        centres = rng.uniform(30, 225, (number, 6))
        unit = (centres - 127.5) / np.linalg.norm(centres - 127.5, axis=1, keepdims=True)
        if (unit @ unit.T - 2 * np.eye(number)).max() < 0.75:
            break
    points = centres.repeat(per_clump, axis=0) + rng.normal(0, 127 * spread, (number * per_clump, 6))
    return points.round().clip(0, 255).astype(np.uint8).reshape(-1, 1, 2, 3)


@pytest.fixture
def make(tmp_path, model):
    def made(pixels, labels=None, name="index", **changes):
        embed = lambda images, _: _directions(images)  # noqa: E731
        index = Index.create(tmp_path / name, replace(model, embed=embed, **changes))
        index.add(list(pixels), labels=labels)
        return index

    return made


def _directions(images):
    rows = np.stack([image.reshape(6) for image in images]).astype(np.float32) - 127.5
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("number", [2, 5, 12])
def test_the_number_is_found_where_there_are_clumps(make, number):
    labels = [f"kind {kind}" for kind in np.repeat(np.arange(number), 15)]
    found = cluster(make(clumps(number, 15, seed=number), labels))
    assert len(found.ids) == number
    assert found.purity == found.nmi == 1.0
    assert found.silhouette > 0.7
    assert sorted(id for ids in found.ids for id in ids) == list(range(15 * number))


def test_largest_and_most_typical_first(make):
    pixels = np.concatenate([clumps(3, 15, seed=3)[:15], clumps(3, 15, seed=3)[15:24], clumps(3, 15, seed=3)[30:42]])
    index = make(pixels)
    found = cluster(index, 3)
    assert [len(ids) for ids in found.ids] == [15, 12, 9]
    assert (found.purity, found.nmi, found.silhouette) == (None, None, None)
    for ids in found.ids:
        vectors = index.vectors(list(ids)).astype(np.float64)
        away = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
        assert (np.diff(away) >= -1e-6).all()


def test_only_some_items_and_labels_that_do_not_fit(make):
    labels = [f"kind {kind // 2}" for kind in np.repeat(np.arange(4), 10)]
    index = make(clumps(4, 10, seed=4), labels)
    found = cluster(index, 4)
    assert found.purity == 1.0
    assert found.nmi == pytest.approx(2 / 3)  # log 2 over the mean of log 4 and log 2
    assert cluster(index, 1).purity == 0.5
    some = cluster(index, 2, where={"label": "kind 0"})
    assert {index.get(id).label for ids in some.ids for id in ids} == {"kind 0"}


def test_many_items_are_judged_by_some_of_them(make, monkeypatch):
    monkeypatch.setattr(clusters, "MOST_JUDGED", 60)
    assert len(cluster(make(clumps(3, 40, seed=3))).ids) == 3


def test_the_manifest_can_be_read(make, tmp_path, images, model):
    index = Index.create(tmp_path / "index", model)
    index.add(images)
    found = cluster(index, 4)
    write_manifest(tmp_path / "clusters.csv", index, found)
    with open(tmp_path / "clusters.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [list(row) for row in rows[:1]] == [["id", "path", "label", "cluster"]]
    for number, ids in enumerate(found.ids, start=1):
        assert [int(row["id"]) for row in rows if row["cluster"] == str(number)] == list(ids)
    table = read_manifest(tmp_path / "clusters.csv", need_labels=False)
    assert len(table) == 20
    assert table.columns["cluster"].tolist() == [row["cluster"] for row in rows]


def test_mistakes(make):
    index = make(clumps(2, 3, seed=2))
    for number in (0, 7):
        with pytest.raises(RecipeError, match="from 1 to the number of items, 6"):
            cluster(index, number)
    index.remove([0, 1, 2, 3, 4])
    with pytest.raises(DataError, match="too few"):
        cluster(index)
