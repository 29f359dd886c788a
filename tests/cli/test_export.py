from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from nearkin.exports import export as exports
from nearkin.exports.export import Check, Exported, Int8
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver


@pytest.fixture
def trained(photos, tmp_path):
    tiny = {
        "data": {"source": str(photos), "transform": "mild", "image_size": 32, "workers": 1, "shorter_side": 48},
        "encoder": {"backbone": "small", "dim": 8},
        "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
    }
    run(load_recipe(tiny), RunFolder(tmp_path / "run"), NullObserver())
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
    assert told["int8"] is None


def test_mistakes_take_one_line(nearkin, trained, tmp_path):
    code, _, err = nearkin("export", trained, "--format", "safetensors", "-o", tmp_path / "a.onnx")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = nearkin("export", tmp_path / "none")
    assert code in (3, 4)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("int8", "said"),
    [
        (Int8(0.98765, 0.5, 0.51239), "int8: cosine to float32 0.9877, R@1 50.00, 51.24 in float32"),
        (Int8(0.98765), "int8: cosine to float32 0.9877, R@1 not measured"),
        (Int8(0.98765, None, 0.5), "int8: cosine to float32 0.9877, R@1 not measured"),
        (Int8(0.98765, 0.5, None), "int8: cosine to float32 0.9877, R@1 not measured"),
        (Int8(0.98765, 0.0, 0.0), "int8: cosine to float32 0.9877, R@1 0.00, 0.00 in float32"),
        (None, None),
    ],
)
def test_what_eight_bits_cost_is_said(nearkin, tmp_path, monkeypatch, int8, said):
    file = tmp_path / "a.onnx"
    file.write_bytes(bytes(2_340_000))
    made = Exported(file, tmp_path / "a.md", SimpleNamespace(dim=8), Check("6 images", 3e-7, 0.514, 0.0123), int8)
    asked = {}
    monkeypatch.setattr(exports, "export", lambda *given, **options: asked.update(options, given=given) or made)
    code, out, err = nearkin("export", tmp_path, "--int8", "--checkpoint", "last")
    assert code == 0, err
    assert (asked["given"][:2], asked["int8"], asked["which"]) == ((tmp_path, "onnx"), True, "last")
    first, checked, *rest = out.splitlines()
    assert first == f"{file}: 8 dimensions, 2.3 MB, model card: {tmp_path / 'a.md'}"
    assert checked.startswith("Checked on 6 images: at most 3e-07 from torch; ")
    assert checked.endswith("pixels 0.51 of 256 levels apart and embeddings 0.012")
    assert rest == ([] if said is None else [said])
