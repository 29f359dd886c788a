from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file

from nearkin.runs.folder import RunFolder
from nearkin.studies.mlrc import mlrc, scoring


def reference(vectors, labels, gallery=None, gallery_labels=None):
    """R@1, P@R and MAP@R by sorting all distances, query by query."""
    rows = []
    for query, vector in enumerate(vectors):
        among = vectors if gallery is None else gallery
        owners = labels if gallery is None else gallery_labels
        places = [row for row in range(len(among)) if gallery is not None or row != query]
        order = sorted(places, key=lambda row: ((among[row] - vector) ** 2).sum())
        hits = (owners[order] == labels[query]).astype(float)
        total = int(hits.sum())
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        rows.append((hits[0], hits[:total].mean(), (precision * hits)[:total].sum() / total))
    return dict(zip(("R@1", "P@R", "MAP@R"), np.mean(rows, axis=0), strict=True))


def kept_embeddings(folder):
    """``{(fold, seed): array}`` from the files beside the models, in double precision and of length 1."""
    found = {}
    for file in folder.glob("fold-*/seed-*/test_embeddings-*.npy"):
        vectors = np.load(file).astype(np.float64)
        key = tuple(int(part.split("-")[1]) for part in file.parts[-3:-1])
        assert key not in found
        found[key] = vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return found


def test_separate_and_concatenated_scores_are_those_of_the_kept_embeddings(recipe, tmp_path):
    result = mlrc(recipe, folder=tmp_path / "check", repeats=2)
    assert result.combinations.repeats_by_fold == [[0, 0], [0, 1], [1, 0], [1, 1]]
    vectors, labels = kept_embeddings(tmp_path / "check"), np.repeat([0, 1], 8)
    for number, (one, two) in enumerate(itertools.product((0, 1), repeat=2)):
        expected = reference(np.hstack([vectors[0, 5 + 2 * one], vectors[1, 6 + 2 * two]]), labels)
        ours = {name: value.values[number] for name, value in result.concatenated.items()}
        assert ours == pytest.approx(expected)
    for name, value in result.separate.items():
        each = [model.scores[name] for model in result.models]
        means = [(each[0] + each[1]) / 2, (each[2] + each[3]) / 2]
        assert value.values == pytest.approx(means)
        half = 12.7062 * abs(means[0] - means[1]) / 2
        assert value.interval == pytest.approx([sum(means) / 2 - half, sum(means) / 2 + half], abs=1e-4)
    assert result.concatenated["MAP@R"].interval[0] <= result.concatenated["MAP@R"].mean


def test_embeddings_of_other_weights_are_not_used(recipe, tmp_path, embedded):
    mlrc(recipe, folder=tmp_path / "check")
    ours, other = (tmp_path / "check" / name / "encoder.safetensors" for name in ("fold-0/seed-5", "fold-1/seed-6"))
    save_file(load_file(other), ours)
    mlrc(recipe, folder=tmp_path / "check")
    assert len(embedded) == 3
    vectors = kept_embeddings(tmp_path / "check")
    assert np.array_equal(vectors[0, 5], vectors[1, 6]), "and one file is left beside each model"


def test_queries_are_searched_in_the_gallery(make_recipe, photos, tmp_path):
    kinds = sorted(path.name for path in photos.iterdir())
    lines = ["path,label,split"]
    for number, kind in enumerate(kinds):
        for place, file in enumerate(sorted((photos / kind).iterdir())):
            split = "train" if number < 4 else ("query" if place % 3 == 0 else "gallery")
            lines.append(f"{kind}/{file.name},{kind},{split}")
    (photos / "list.csv").write_text("\n".join(lines))
    result = mlrc(make_recipe(f"data.source={json.dumps(str(photos / 'list.csv'))}"), folder=tmp_path / "check")
    vectors = kept_embeddings(tmp_path / "check")
    joined = np.hstack([vectors[0, 5], vectors[1, 6]])
    assert joined.shape == (16, 8)
    expected = reference(joined[:6], np.repeat([0, 1], 3), joined[6:], np.repeat([0, 1], 5))
    assert {name: value.mean for name, value in result.concatenated.items()} == pytest.approx(expected)


def test_many_repeats_are_sampled_and_say_so(recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "MOST_COMBINATIONS", 3)
    console = Console(file=(tmp_path / "said").open("w"))
    result = mlrc(recipe, folder=tmp_path / "check", repeats=2, console=console)
    assert (result.combinations.scored, result.combinations.possible) == (3, 4)
    assert len(result.concatenated["R@1"].values) == 3
    console.file.close()
    assert "scoring 3 combinations" in (tmp_path / "said").read_text()


def test_embeddings_in_the_ball_are_compared_by_distance(make_recipe, tmp_path):
    result = mlrc(make_recipe("encoder.normalisation=ball"), folder=tmp_path / "check")
    folders = [RunFolder(tmp_path / "check" / name) for name in ("fold-0/seed-5", "fold-1/seed-6")]
    for model, folder in zip(result.models, folders, strict=True):
        assert model.scores["R@1"] == pytest.approx(folder.scores().test["R@1"])
        assert model.scores["MAP@R"] == pytest.approx(folder.scores().test["MAP@R"])
    raw = [np.load(next(folder.path.glob("test_embeddings-*.npy"))).astype(np.float64) for folder in folders]
    expected = reference(np.hstack(raw), np.repeat([0, 1], 8))
    assert {name: value.mean for name, value in result.concatenated.items()} == pytest.approx(expected)
