from __future__ import annotations

import json

import pytest

from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


@pytest.fixture
def trained(photos, tmp_path):
    tiny = {
        "data": {"source": str(photos), "transform": "mild", "image_size": 32, "workers": 1, "shorter_side": 48},
        "encoder": {"backbone": "small", "dim": 8},
        "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
    }
    run(load_recipe(tiny), RunFolder(tmp_path / "run"), Observer())
    return tmp_path / "run"


def test_the_command_writes_file_and_card_and_says_how_well_it_fits(nearkin, trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = nearkin("export", trained, "--format", "safetensors")
    assert code == 0, err
    assert (tmp_path / "run.safetensors").is_file()
    assert (tmp_path / "run.safetensors.md").is_file()
    assert "run.safetensors: 8 dimensions" in out
    assert "Checked on 18 images of the run" in out


def test_as_json_on_own_images(nearkin, trained, photos, tmp_path):
    output = tmp_path / "a.safetensors"
    code, out, err = nearkin(
        "export", trained, "--format", "safetensors", "-o", output, "--images", photos / "kiwi", "--json"
    )
    assert code == 0, err
    told = json.loads(out)
    assert told["file"] == str(output)
    assert told["check"]["images"] == "18 images that were given"


def test_mistakes_take_one_line(nearkin, trained, tmp_path):
    code, _, err = nearkin("export", trained, "--format", "safetensors", "-o", tmp_path / "a.onnx")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = nearkin("export", tmp_path / "none")
    assert code in (3, 4)
    assert err.count("\n") == 1
