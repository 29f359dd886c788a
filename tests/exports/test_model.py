from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.transforms import Transform
from nearkin.errors import DataError, MissingExtraError
from nearkin.exports.model import ExportedModel, Settings, load_exported
from nearkin.exports.torch_files import write_onnx

SETTINGS = Settings(identity="abc", dim=2, normalisation="l2", size=5, resize=8, squash=False, shorter_side=20)


def test_images_of_all_sizes_go_through_together_in_their_order(photo_of):
    """A compute that shows what it was given: the crop's first pixel, and how many came at a time."""
    seen = []

    def compute(frames):
        seen.append(frames.shape)
        return frames[:, 2, 2, :2].astype(np.float32)  # round(1.5) is 2

    images = [photo_of(9 + place, 30 - place, place) for place in range(7)]
    found = ExportedModel(SETTINGS, compute).encode(images, batch_size=3)
    assert seen == [(3, 8, 8, 3), (3, 8, 8, 3), (1, 8, 8, 3)]
    transform = Transform(name="t", size=5, resize=8)
    assert found.tolist() == [transform.evaluate(image)[0, 0, :2].tolist() for image in images]


def test_one_image_none_and_opened_ones():
    model = ExportedModel(SETTINGS, lambda frames: np.ones((len(frames), 2), np.float32))
    assert model.encode(Image.new("L", (9, 9))).shape == (1, 2)
    assert model.encode(torch.zeros(4, 9, 9, 3, dtype=torch.uint8)).shape == (4, 2)
    assert model.encode([]).shape == (0, 2)
    assert model.encode([np.zeros((9, 9), np.uint8)] * 3, rows=np.array([2, 0])).shape == (2, 2)
    assert (model.dim, model.identity, model.normalisation) == (2, "abc", "l2")
    with pytest.raises(ValueError, match="batch_size"):
        model.encode([], batch_size=0)


def test_what_is_no_exported_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no exported encoder.*\.onnx"):
        load_exported(tmp_path / "a.onx")
    with pytest.raises(DataError, match="there is no file"):
        load_exported(tmp_path / "a.onnx")
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    (tmp_path / "a.onnx").write_bytes(b"no such thing")
    with pytest.raises(DataError, match=r"a\.onnx cannot be read by onnxruntime"):
        load_exported(tmp_path / "a.onnx")


def test_without_onnxruntime_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.onnx").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"nearkin\[onnx\]"):
        load_exported(tmp_path / "a.onnx")


def test_an_onnx_file_runs_without_torch_and_gives_what_the_run_gives(graph_of, photo_of, tmp_path):
    for module in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(module, reason="the extra onnx is not installed")
    graph, settings = graph_of()
    write_onnx(graph, settings, tmp_path / "a.onnx")
    images = [photo_of(90, 75, 1), photo_of(40, 200, 2)]
    for place, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{place}.png")
    code = """
import sys
import numpy as np
from nearkin.exports.model import load_exported
found = load_exported("a.onnx").encode(["0.png", "1.png"])
assert "torch" not in sys.modules, "torch was imported"
np.save("found.npy", found)
"""
    source = str(Path(__import__("nearkin").__file__).parents[1])
    subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})" + code], check=True, cwd=tmp_path
    )
    transform = Transform(name="tiny", size=64, resize=71)
    assert min(images[0].shape[:2]) > settings.shorter_side
    shrunk = np.array(Image.fromarray(images[0]).resize((71, 85), Image.Resampling.BILINEAR))
    crops = np.stack([transform.evaluate(shrunk), transform.evaluate(images[1])])
    with torch.inference_mode():
        expected = graph.encoder(torch.from_numpy(crops)).numpy()
    assert np.abs(np.load(tmp_path / "found.npy") - expected).max() <= 1e-5
