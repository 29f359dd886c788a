"""Runs and backbones scored: on their own test classes, on other data, and with options of test time."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import nearkin
from nearkin import evaluate_backbone
from nearkin.encoders import build_encoder
from nearkin.errors import DataError
from nearkin.evaluation.reranking import Rerank
from nearkin.evaluation.retrieval import measure
from nearkin.runs.data import open_run_data
from nearkin.runs.evaluate import evaluate_run
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe

NAMES = ["R@1", "R@2", "MAP@R"]


def vectors_of(path, **options):
    """Vectors and labels of the test images, by the model as other programs use it."""
    first = path[0] if isinstance(path, list) else path
    data = open_run_data(RunFolder(first), RunFolder(first).recipe())
    rows = data.protocol.test.query
    images = [data.images.images[row] for row in rows]
    return nearkin.load(path, device="cpu", **options).encode(images), data.images.table.labels[rows]


def scores_of(result):
    return {name: result.scores[name] for name in NAMES}


def test_its_own_test_classes_have_the_scores_of_the_run(trained):
    result = evaluate_run(trained)
    assert result.scores == RunFolder(trained).scores().test
    assert (result.images, result.classes, result.trained_on, result.note) == (16, 2, None, None)
    assert "conditions" not in result


def test_other_data_say_how_much_of_them_was_trained_on(trained, photos, tmp_path, add_kinds, kinds):
    other, first, second = tmp_path / "other", *kinds(trained, "train")[:2]
    add_kinds(other, "x", "y")
    result = evaluate_run(trained, data=str(other))
    assert (result.trained_on, result.note) == ({"images": 0, "classes": 0}, None)
    shutil.copytree(photos / first, other / "same images, another name")
    shutil.copytree(other / "x", other / second)
    result = evaluate_run(trained, data=str(other))
    assert result.trained_on == {"images": 8, "classes": 2}
    assert "was trained on 8 of these 20 images, and on 2 of these 4 classes" in result.note
    for kind in kinds(trained, "train"):
        shutil.copytree(photos / kind, tmp_path / "same" / kind)
    reports = []
    result = evaluate_run(trained, data=str(tmp_path / "same"), announce=reports.append)
    assert result.trained_on == {"images": 32, "classes": 4}
    assert "these very images" in result.note
    assert (reports[0].images, reports[0].classes) == (32, 4)


def test_a_run_that_took_no_step_was_trained_on_nothing(train_like, photos):
    result = evaluate_run(train_like("untrained", {"training.epochs": 0, "training.max_steps": None}), data=str(photos))
    assert (result.trained_on, result.note) == ({"images": 0, "classes": 0}, None)


def test_of_data_with_a_test_split_that_is_scored(trained, tmp_path, add_kinds):
    add_kinds(tmp_path / "other" / "train", "a", "b")
    add_kinds(tmp_path / "other" / "test", "c", "d", "e")
    result = evaluate_run(trained, data=str(tmp_path / "other"))
    assert (result.images, result.classes) == (12, 3)


def test_without_test_classes_there_is_nothing_to_score(train_like):
    with pytest.raises(DataError, match="'own photos' has no test classes"):
        evaluate_run(train_like("untested", {"protocol.test_share": 0.0}))


def test_mirror_images_and_larger_crops_are_those_of_a_run_that_has_them_and_are_named(trained, train_like):
    plain, unusual = evaluate_run(trained), evaluate_run(trained, flip=True, eval_size=64)
    assert "64 pixels" in unusual.conditions
    assert "mirror images" in unusual.conditions
    # The same single step, scored so from the beginning.
    same = train_like("unusual", {"protocol.flip": True, "protocol.eval_size": 64})
    scores = RunFolder(same).scores()
    assert scores.test == unusual.scores == evaluate_run(same).scores
    assert scores.conditions.selection.endswith(unusual.conditions)
    assert evaluate_run(same, flip=False, eval_size=32).scores == plain.scores
    scaled = evaluate_run(train_like("scaled", {"protocol.eval_scale": 2.0}))
    assert scaled.scores == evaluate_run(trained, eval_size=64).scores


def test_concatenated_runs_have_the_scores_of_the_concatenated_model(trained, train_like):
    other = train_like("other", {"training.seed": 5})
    result = evaluate_run(trained, also=[other], flip=True)
    expected = measure(NAMES, *vectors_of([trained, other], flip=True))
    assert scores_of(result) == pytest.approx({name: expected[name] for name in NAMES})
    assert f"concatenated with those of {other}" in result.conditions
    assert result.note is None
    another_split = train_like("another split", {"protocol.split_seed": 3})
    assert "another split: it was trained on" in evaluate_run(trained, also=[another_split]).note


def test_reranked_scores_are_named_transductive(trained):
    result = evaluate_run(trained, rerank=Rerank(k1=4))
    expected = measure(NAMES, *vectors_of(trained), rerank=Rerank(k1=4))
    assert scores_of(result) == pytest.approx({name: expected[name] for name in NAMES})
    assert result.scores["covering_radius"] == evaluate_run(trained).scores["covering_radius"]
    assert "(transductive)" in result.conditions


def test_a_backbone_is_the_baseline_of_a_run_on_the_same_images(photos, tmp_path):
    """With the test split in the folder both score the same images, one before training and the other without any."""
    weights = tmp_path / "weights.pth"
    torch.save(build_encoder("small").backbone.state_dict(), weights)
    whole = evaluate_backbone("small", str(photos), weights=weights, overrides=["data.image_size=32"], device="cpu")
    assert (whole.images, whole.classes) == (48, 6), "images without a split are all scored"
    for number, kind in enumerate(sorted(photos.iterdir())):
        split = "test" if number < 2 else "train"
        (photos / split).mkdir(exist_ok=True)
        kind.rename(photos / split / kind.name)
    changes = [f"data.source={json.dumps(str(photos))}", "encoder.backbone=small", f"encoder.weights={weights}"]
    changes += ["encoder.dim=16", "data.image_size=32", "training.max_steps=1", "training.device=cpu"]
    untrained = run(load_recipe("own_photos/pretrained", changes), tmp_path / "run").untrained
    seen = []
    result = evaluate_backbone(
        "small",
        str(photos),
        weights=weights,
        overrides=["data.image_size=32"],
        device="cpu",
        watch=lambda what, done, total: seen.append((done, total)),
    )
    assert (result.images, result.classes) == (16, 2)
    assert {name: result.scores[name] for name in untrained} == pytest.approx(untrained)
    assert "weights.pth" in result.weights
    assert seen == [(0, 16), (16, 16)]


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (["--backbone", "efficientnet_lit0", "--data", "."], 2, "efficientnet_lite0"),
        (["--backbone", "resnet50", "--data", "."], 2, "ImageNet"),
        (["--backbone", "resnet50", "encoder.weights=none.pth", "--data", "."], 3, "none.pth"),
        (["--backbone", "small"], 2, "no images to score"),
        (["--backbone", "small", "--data", ".", "runs/a"], 2, "not both"),
        (["--backbone", "small", "--data", ".", "data.imagesize=3"], 2, "image_size"),
        (["runs/a", "encoder.weights=w.pth"], 2, "encoder.weights=w.pth"),
        (["runs/a", "runs/b"], 2, "runs/a, runs/b"),
        ([], 2, "none"),
    ],
)
def test_mistakes_get_one_clear_line(nearkin, arguments, code, part):
    got, _, err = nearkin("evaluate", *arguments)
    assert got == code, err
    assert part in " ".join(err.split())
    assert "Traceback" not in err
