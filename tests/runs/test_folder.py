"""What a run leaves in its folder is known, and nothing else is ever taken away."""

from __future__ import annotations

import json

import pytest

from nearkin.runs.folder import RunFolder

QUICK = ["encoder.backbone=small", "encoder.weights=null", "encoder.dim=4", "data.image_size=16", "training.device=cpu"]


@pytest.fixture
def trained(nearkin, photos, tmp_path):
    options = [*QUICK, "training.max_steps=2", "training.tensorboard=true"]
    assert nearkin("train", "--data", photos, "-o", tmp_path / "run", *options)[0] == 0
    assert nearkin("plot", tmp_path / "run", "--only", "curves,map")[0] == 0
    assert nearkin("report", tmp_path / "run")[0] == 0
    return tmp_path / "run"


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_clearing_a_run_takes_all_of_it_and_nothing_else(trained, photos):
    record = json.loads((trained / "environment.json").read_text())
    assert record["resolved_recipe"] == RunFolder(trained).recipe().as_mapping()
    assert RunFolder(trained).images == (str(photos), RunFolder(trained).split.images_hash)
    written = files(trained)
    assert {"neighbours.png", "report.html", "split.csv", "plots/curves.png"} <= written
    mine = {
        "notes.txt",
        "plots/mine.png",
        "plots/curves-old.png",
        "checkpoints/kept.pt",
        "my split.csv",
        "x/scores.json",
    }
    for name in mine:
        (trained / name).parent.mkdir(exist_ok=True)
        (trained / name).write_text("mine")
    RunFolder(trained).clear()
    assert files(trained) == mine | {".lock"}


def test_a_run_begun_anew_does_not_show_pictures_of_the_one_before(nearkin, trained, photos):
    code, _, err = nearkin("train", "--data", photos, "-o", trained, "--overwrite", "--no-picture", *QUICK)
    assert code == 0, err
    assert not {"neighbours.png", "report.html", "plots/curves.png"} & files(trained)
