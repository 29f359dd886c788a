from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import nearkin
from nearkin.errors import DataError, MissingExtraError, Notice, RecipeError
from nearkin.exports import export as module
from nearkin.exports.export import TO_PILLOW, TO_TORCH, export
from nearkin.exports.graph import PixelsToEmbeddings
from nearkin.exports.model import load_exported
from nearkin.runs.trained import load_run


@pytest.fixture
def has_onnx():
    for name in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(name, reason="the extra onnx is not installed")


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(("format_", "suffix"), [("onnx", "onnx"), ("torch-export", "pt2"), ("safetensors",) * 2])
def test_a_file_encodes_as_its_run_does_and_has_a_card(format_, suffix, trained, photos, tmp_path, request):
    if format_ == "onnx":
        request.getfixturevalue("has_onnx")
    made = nearkin.export(trained, format_, tmp_path / "out" / f"model.{suffix}")
    assert files_in(tmp_path / "out") == [f"model.{suffix}", f"model.{suffix}.md"]
    paths = sorted(photos.rglob("*.png"))[::5]
    found = load_exported(made.file).encode(paths, batch_size=4)
    assert np.abs(found - load_run(trained, device="cpu").embed(paths).numpy()).max() <= 1e-5
    assert made.check.images == "18 images of the run"
    assert made.check.to_torch <= TO_TORCH
    assert 0 < made.check.to_pillow <= TO_PILLOW
    assert made.settings == load_exported(made.file).settings
    card = made.card.read_text()
    for part in ("## Data", "## Score", "| R@1 |", "## Recipe", "backbone `small`", "## Licence", "test_share: 0.35"):
        assert part in card
    assert f"load_exported('model.{suffix}')" in card
    assert "trained on every kind" not in card


def test_identity_is_that_of_the_weights_whatever_the_format(trained, tmp_path):
    files = [export(trained, kind, tmp_path / f"a{end}") for kind, end in list(module.SUFFIX.items())[1:]]
    assert len({made.settings.identity for made in files}) == 1
    last = export(trained, "safetensors", tmp_path / "b.safetensors")
    assert last.settings == files[0].settings


def test_a_file_that_is_beyond_the_tolerance_is_not_written(trained, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.safetensors").write_bytes(b"what was there")

    def wrong(graph, section, settings, path):
        graph.encoder.head.bias.data += 0.01
        right(graph, section, settings, path)
        graph.encoder.head.bias.data -= 0.01

    right = module.write_weights
    monkeypatch.setattr(module, "write_weights", wrong)
    with pytest.raises(DataError, match="nothing was written"):
        export(trained, "safetensors", tmp_path / "out" / "a.safetensors")
    assert files_in(tmp_path / "out") == ["a.safetensors"]
    assert (tmp_path / "out" / "a.safetensors").read_bytes() == b"what was there"


def test_a_crop_that_is_not_pillows_is_not_written(trained, tmp_path, monkeypatch):
    crops = PixelsToEmbeddings.crops
    monkeypatch.setattr(PixelsToEmbeddings, "crops", lambda self, images: crops(self, images).transpose(2, 3))
    with pytest.raises(DataError, match="nothing was written"):
        export(trained, "safetensors", tmp_path / "a.safetensors")


def test_without_the_runs_images_a_photo_stands_in(trained, photos, tmp_path):
    shutil.rmtree(photos)
    with pytest.warns(Notice, match="not at hand"):
        made = export(trained, "safetensors", tmp_path / "a.safetensors")
    assert made.check.images == "9 cuts of a photo that comes with matplotlib"


def test_given_images_are_what_it_is_checked_on(trained, photos, tmp_path):
    paths = sorted(photos.rglob("*.png"))
    made = export(trained, "safetensors", tmp_path / "a.safetensors", images=paths[:2])
    assert made.check.images == "6 images that were given"
    with pytest.raises(RecipeError, match="give at least one"):
        export(trained, "safetensors", tmp_path / "a.safetensors", images=[])


def test_int8_says_what_it_costs(trained, photos, tmp_path, has_onnx, monkeypatch):
    whole = export(trained, "onnx", tmp_path / "a.onnx")
    made = export(trained, "onnx", tmp_path / "b.onnx", int8=True)
    assert files_in(tmp_path) == ["a.onnx", "a.onnx.md", "b.onnx", "b.onnx.md", "own photos", "run"]
    assert made.file.stat().st_size < 0.45 * whole.file.stat().st_size
    assert made.settings.identity == f"{whole.settings.identity}-int8" == load_exported(made.file).identity
    assert 0.9 < made.int8.cosine < 1
    recall = json.loads((trained / "scores.json").read_text())["test"]["R@1"]
    assert made.int8.float_recall == pytest.approx(recall)
    assert 0 <= made.int8.recall <= 1
    assert f"R@1 on the run's test classes {100 * made.int8.recall:.2f}" in made.card.read_text()
    shutil.rmtree(photos)
    with pytest.warns(Notice, match="not at hand"), pytest.raises(DataError, match="give some with --images"):
        export(trained, "onnx", tmp_path / "c.onnx", int8=True)
    given = list(np.random.default_rng(0).integers(0, 256, (5, 60, 50, 3), dtype=np.uint8))
    with pytest.warns(Notice, match="not measured"):
        made = export(trained, "onnx", tmp_path / "c.onnx", int8=True, images=given)
    assert made.int8.recall is None
    assert "R@1 was not measured" in made.card.read_text()
    before = made.file.read_bytes()
    monkeypatch.setattr(module, "TO_FLOAT", 1.1)
    with pytest.warns(Notice, match="not measured"), pytest.raises(DataError, match="nothing was written: in int8"):
        export(trained, "onnx", tmp_path / "c.onnx", int8=True, images=given)
    assert made.file.read_bytes() == before


def test_mistakes_are_told_before_any_work(trained, tmp_path, monkeypatch):
    with pytest.raises(RecipeError, match=r"unknown format 'onxx'.*onnx"):
        export(trained, "onxx")
    with pytest.raises(RecipeError, match="int8 is for the format onnx"):
        export(trained, "safetensors", int8=True)
    with pytest.raises(RecipeError, match=r"must end in \.pt2"):
        export(trained, "torch-export", tmp_path / "a.onnx")
    (tmp_path / "a.pt2").mkdir()
    with pytest.raises(RecipeError, match="it is a folder"):
        export(trained, "torch-export", tmp_path / "a.pt2")
    with pytest.raises(DataError, match="no run at"):
        export(tmp_path / "none", "safetensors", tmp_path / "a.safetensors")
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[onnx\]"):
        export(trained, "onnx", tmp_path / "a.onnx")
