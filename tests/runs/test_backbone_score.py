"""A backbone scored without any training."""

from __future__ import annotations

import csv
import json

import pytest
import torch

from nearkin import evaluate_backbone
from nearkin.encoders import build_encoder
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver

TINY = ["encoder.weights=null", "data.image_size=32", "data.workers=1"]


def weights_file(folder, name="small"):
    torch.manual_seed(7)
    torch.save(build_encoder(name).backbone.state_dict(), folder / "weights.pth")
    return folder / "weights.pth"


def test_it_is_the_baseline_of_a_run_on_the_same_images(photos, tmp_path):
    """With the test split in the folder both score the same images, one before training and the other without any."""
    kinds = sorted(photos.iterdir())
    for split in ("train", "test"):
        (photos / split).mkdir()
    for number, kind in enumerate(kinds):
        kind.rename(photos / ("test" if number < 2 else "train") / kind.name)
    weights = weights_file(tmp_path)
    changes = [f"data.source={json.dumps(str(photos))}", "encoder.backbone=small", f"encoder.weights={weights}"]
    changes += ["encoder.dim=16", "data.image_size=32", "training.epochs=1", "training.device=cpu"]
    scores = run(load_recipe("own_photos/pretrained", changes), RunFolder(tmp_path / "run"), NullObserver())
    seen = []
    result = evaluate_backbone(
        "small",
        str(photos),
        weights=weights,
        overrides=["data.image_size=32"],
        device="cpu",
        watch=lambda what, done, total: seen.append((done, total)),
    )
    assert (result["images"], result["classes"]) == (16, 2)
    for name, value in scores["untrained"].items():
        assert result["scores"][name] == pytest.approx(value), name
    assert "weights.pth" in result["weights"]
    assert seen == [(0, 16), (16, 16)]


def test_images_without_a_split_are_scored_whole(nearkin, photos, tmp_path):
    weights = weights_file(tmp_path)
    code, out, err = nearkin(
        "evaluate", "--backbone", "small", "--weights", weights, "--data", photos, "data.image_size=32", "--json"
    )
    assert code == 0, err
    assert (json.loads(out)["images"], json.loads(out)["classes"]) == (48, 6)
    code, out, err = nearkin("evaluate", "--backbone", "small", "--data", photos, *TINY)
    assert code == 0, err
    said = " ".join(out.split())
    assert "small without training and without a head; weights: none, random numbers; 48 images of 6 classes" in said


def test_a_manifest_does_too(photos, tmp_path):
    with open(photos / "all.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for kind in sorted(path for path in photos.iterdir() if path.is_dir()):
            writer.writerows([f"{kind.name}/{image.name}", kind.name] for image in kind.iterdir())
    result = evaluate_backbone("small", str(photos / "all.csv"), overrides=TINY)
    assert result["images"] == 48


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--backbone", "efficientnet_lit0", "--data", "."], 2, "did you mean 'efficientnet_lite0'"),
        (["--backbone", "resnet50", "--data", "."], 2, "does not bring ImageNet weights"),
        (["--backbone", "resnet50", "--weights", "none.pth", "--data", "."], 3, "none.pth does not exist"),
        (["--backbone", "small"], 2, "which images?"),
        (["--backbone", "small", "--data", ".", "runs/a"], 2, "a run folder or --backbone, not both"),
        (["--backbone", "small", "--data", ".", "data.imagesize=3"], 2, "did you mean 'image_size'"),
        (["runs/a", "--weights", "w.pth"], 2, "--weights goes with --backbone"),
        (["runs/a", "runs/b"], 2, "one run folder is scored at a time, got runs/a, runs/b"),
        ([], 2, "one run folder is scored at a time, got none"),
    ],
)
def test_mistakes_get_one_clear_line(nearkin, arguments, code, said):
    got, _, err = nearkin("evaluate", *arguments)
    assert got == code, err
    assert said in " ".join(err.split())
    assert "Traceback" not in err
