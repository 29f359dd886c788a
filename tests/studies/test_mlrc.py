"""The reality check on photographs that take a second to learn, with two folds of two classes."""

from __future__ import annotations

import csv
import io
import itertools
import json

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import nearkin
from nearkin.errors import DataError, Notice, RecipeError, TrainingError
from nearkin.report.table import csv_text, markdown
from nearkin.runs.folder import RunFolder
from nearkin.runs.scores import EnsembleScores
from nearkin.runs.trained_run import TrainedRun
from nearkin.studies import study
from nearkin.studies.mlrc import RealityCheck, mlrc, mlrc_table


@pytest.fixture
def recipe(tiny):
    return tiny("training.seed=5", "training.max_steps=3")


@pytest.fixture
def work(monkeypatch):
    """Fold and seed of every model that was trained, and how many images were embedded, each time."""
    trained, embedded = [], []
    run, embed = study.run, TrainedRun.embed

    def noted_run(recipe, *arguments, **options):
        run(recipe, *arguments, **options)
        trained.append((recipe.protocol.fold, recipe.training.seed))

    def noted_embed(model, images, rows):
        embedded.append(len(rows))
        return embed(model, images, rows)

    monkeypatch.setattr(study, "run", noted_run)
    monkeypatch.setattr(TrainedRun, "embed", noted_embed)
    return trained, embedded


def reference(vectors, labels):
    """R@1, P@R and MAP@R by sorting all distances, query by query."""
    rows = []
    for query, vector in enumerate(vectors):
        others = [row for row in range(len(vectors)) if row != query]
        order = sorted(others, key=lambda row: ((vectors[row] - vector) ** 2).sum())
        hits = (labels[order] == labels[query]).astype(float)
        total = int(hits.sum())
        precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
        rows.append((hits[0], hits[:total].mean(), (precision * hits)[:total].sum() / total))
    return dict(zip(("R@1", "P@R", "MAP@R"), np.mean(rows, axis=0), strict=True))


def stored_embeddings(folder):
    """``{(fold, seed): array}`` from the files next to the models, in double precision and of length 1."""
    stored = {}
    for file in folder.glob("fold-*/seed-*/test_embeddings-*.npy"):
        vectors = np.load(file).astype(np.float64)
        key = tuple(int(part.split("-")[1]) for part in file.parts[-3:-1])
        assert key not in stored
        stored[key] = vectors / np.sqrt((vectors**2).sum(axis=1, keepdims=True))
    return stored


def test_one_repeat_and_then_a_second(recipe, tmp_path, work):
    assert nearkin.mlrc is mlrc
    trained, embedded = work
    folder = tmp_path / "check"
    first = mlrc(recipe, folder=folder)
    assert trained == [(0, 5), (1, 6)]
    assert embedded == [16, 16]
    assert (first["protocol"], first.folds, first.repeats, first.seeds) == ("mlrc", 2, 1, [5, 6])
    assert (first.dim, first.concatenated_dim) == (4, 8)
    assert EnsembleScores.read(folder) == first
    assert (folder / "mlrc.md").read_text().startswith("# MLRC on own photos: proxy_anchor, ")
    runs = [RunFolder(folder / f"fold-{fold}" / f"seed-{seed}").scores() for fold, seed in ((0, 5), (1, 6))]
    for name in ("R@1", "P@R", "MAP@R"):
        assert first.separate[name].mean == pytest.approx((runs[0].test[name] + runs[1].test[name]) / 2)
        assert first.separate[name].interval is first.concatenated[name].interval is None
    assert [model.chosen_by for model in first.models] == [scores.best["MAP@R"] for scores in runs]

    second = mlrc(recipe, folder=folder, repeats=2)
    assert trained[2:] == [(0, 7), (1, 8)]
    assert embedded == [16] * 4, "the first models' embeddings were kept"
    assert second.models[:2] == first.models
    assert second.combinations.repeats_by_fold == [[0, 0], [0, 1], [1, 0], [1, 1]]
    vectors, labels = stored_embeddings(folder), np.repeat([0, 1], 8)
    for number, (one, two) in enumerate(itertools.product((0, 1), repeat=2)):
        expected = reference(np.hstack([vectors[0, 5 + 2 * one], vectors[1, 6 + 2 * two]]), labels)
        assert {name: value.values[number] for name, value in second.concatenated.items()} == pytest.approx(expected)
    for name, value in second.separate.items():
        single = [model.scores[name] for model in second.models]
        means = [(single[0] + single[1]) / 2, (single[2] + single[3]) / 2]
        half = 12.7062 * abs(means[0] - means[1]) / 2
        assert value.interval == pytest.approx([sum(means) / 2 - half, sum(means) / 2 + half], abs=1e-4)
    assert mlrc(recipe, folder=folder).separate == first.separate, "fewer repeats leave the others out"
    assert len(trained) == len(embedded) == 4

    weights = load_file(folder / "fold-0" / "seed-5" / "encoder.safetensors")
    save_file(
        {key: value * 1.5 for key, value in weights.items()}, folder / "fold-0" / "seed-5" / "encoder.safetensors"
    )
    mlrc(recipe, folder=folder)
    assert len(embedded) == 5, "other weights have other embeddings"


@pytest.mark.parametrize("kind", [TrainingError, DataError])
def test_a_model_that_fails_is_an_error_of_its_kind(recipe, tmp_path, monkeypatch, kind):
    def fail(*_, **__):
        raise kind("the loss became nan at step 3")

    monkeypatch.setattr(study, "run", fail)
    with pytest.raises(kind, match=r"2 of 2 .*the loss became nan at step 3"):
        mlrc(recipe, folder=tmp_path / "check")
    with pytest.raises(DataError, match=r"mlrc\.json"):
        RealityCheck(recipe, folder=tmp_path / "check").table()


def test_what_cannot_be_done(recipe, tiny, tmp_path):
    with pytest.raises(DataError, match="4 folds of at least 2 need 8"):
        mlrc(tiny("protocol.folds=4"), folder=tmp_path / "check")
    for options in ({"repeats": 0}, {"jobs": 0}):
        with pytest.raises(RecipeError, match="at least 1, got 0"):
            mlrc(recipe, folder=tmp_path / "other", **options)
    mlrc(recipe, folder=tmp_path / "third")
    with pytest.raises(RecipeError, match=r"objective\.alpha was None, is 16\.0"):
        mlrc(tiny("training.seed=5", "training.max_steps=3", "objective.alpha=16"), folder=tmp_path / "third")


def test_models_of_other_images_make_no_ensemble(recipe, photos, tmp_path):
    before = mlrc(recipe, folder=tmp_path / "check")
    (photos / "a new one").mkdir()
    for number, file in enumerate(sorted((photos / "kiwi").iterdir())):
        Image.fromarray(255 - np.asarray(Image.open(file))).save(photos / "a new one" / f"{number}.png")
    with pytest.warns(Notice, match="8 images of 1 new class"):
        again = mlrc(recipe, folder=tmp_path / "check")
    assert again.concatenated == before.concatenated
    with pytest.warns(Notice), pytest.raises(DataError, match=r"fold-\d/seed-\d was not tested on the images"):
        mlrc(recipe, folder=tmp_path / "check", repeats=2)


def ensemble(repeats):
    def values(mean, interval):
        interval = interval if repeats > 1 else None
        one = {"mean": mean, "spread": None, "values": [mean], "interval": interval}
        return dict.fromkeys(("R@1", "P@R", "MAP@R"), one)

    model = {"repeat": 0, "fold": 1, "seed": 6, "epoch": 1.5, "chosen_by": 0.75, "seconds": 3.0}
    model |= {"recipe": "0a1b2c3d", "selection": "best", "hardware": "Some GPU"}
    scores = {"R@1": 0.6, "P@R": 0.3, "MAP@R": 0.2}
    return EnsembleScores.from_record(
        {
            "protocol": "mlrc",
            "selection": "best MAP@R",
            "select_by": "MAP@R",
            "folds": 4,
            "repeats": repeats,
            "data": "cub",
            "test_classes": "never seen",
            "objective": "contrastive",
            "method": "ccp",
            "backbone": "resnet50",
            "dim": 128,
            "concatenated_dim": 512,
            "hardware": "Some GPU",
            "training_conditions": "10 % of the images",
            "seeds": list(range(4 * repeats)),
            "recipe": "0a1b2c3d",
            "separate": values(0.5912, [0.58, 0.6024]),
            "concatenated": values(0.66, [0.655, 0.665]),
            "combinations": {"scored": min(256, repeats**4), "possible": repeats**4},
            "models": [{**model, "scores": scores}, {**model, "epoch": None, "chosen_by": None, "scores": scores}],
        }
    )


def test_the_table_has_intervals_and_conditions():
    text = markdown(mlrc_table(ensemble(10)))
    assert text.startswith("# MLRC on cub: contrastive with ccp, never seen\n")
    assert "| separate | 128 | 59.12 ± 1.12 | 59.12 ± 1.12 | 59.12 ± 1.12 |" in text
    assert "| concatenated | 512 | 66.00 ± 0.50 |" in text
    for condition in ("10 repeats, seeds 0–39", "Some GPU", "recipe 0a1b2c3d", "10 % of the images", "10,000"):
        assert condition in text
    single = markdown(mlrc_table(ensemble(1)))
    assert "59.12 |" in single
    rows = list(csv.DictReader(io.StringIO(csv_text(mlrc_table(ensemble(3))))))
    assert [(row["what"], row["dim"]) for row in rows] == [("separate", "128")] * 3 + [("concatenated", "512")] * 3
    assert (float(rows[0]["mean"]), rows[0]["interval"]) == (0.5912, "0.58; 0.6024")
    assert json.loads(json.dumps(dict(ensemble(3))))["repeats"] == 3
