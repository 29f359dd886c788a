"""A trained encoder as other programs use it."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin
from nearkin.errors import DataError
from nearkin.runs.folder import RunFolder
from nearkin.runs.trained_run import load_run


def test_every_form_of_an_image_is_encoded_in_the_order_given(trained, photos):
    model = nearkin.load(trained, device="cpu")
    paths = sorted(photos.rglob("*.png"))[:5]
    wanted = load_run(trained, device="cpu").embed(paths).numpy()
    arrays = [np.asarray(Image.open(path)) for path in paths]
    for given in (
        paths,
        [str(path) for path in paths],
        list(map(Image.open, paths)),
        arrays,
        torch.from_numpy(np.stack(arrays)),
    ):
        found = model.encode(given)
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    np.testing.assert_allclose(model.encode(paths[::-1], batch_size=2), wanted[::-1], atol=1e-6)
    assert model.encode(paths[0]).shape == (1, 8)
    assert model.encode([]).shape == (0, 8)
    assert (model.dim, model.distance) == (8, "cosine")
    with pytest.raises(DataError, match="batch_size"):
        model.encode(paths, batch_size=0)


def test_a_path_that_is_no_run_says_what_to_give(trained, tmp_path):
    with pytest.raises(DataError, match=r"no run folder .*rum'; did you mean '.*run'"):
        nearkin.load(tmp_path / "rum")
    with pytest.raises(DataError, match=r"no run folder .*'; 'nearkin train --data FOLDER -o RUN' makes one"):
        nearkin.load(tmp_path / "nothing" / "like it")
    with pytest.raises(DataError, match="is a file: give the folder of a run"):
        nearkin.load(RunFolder(trained).path / "recipe.yaml")
    with pytest.raises(DataError, match=r"there is no file .*write it with nearkin export"):
        nearkin.load(tmp_path / "model.onnx")


CODE = """
import sys
import numpy as np
import nearkin
model = nearkin.load("model.onnx")
np.save("found.npy", model.encode(sys.argv[1:]))
assert "torch" not in sys.modules
"""


def test_an_exported_file_is_the_same_model_and_needs_no_torch(trained, photos, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    nearkin.export(trained, output=tmp_path / "model.onnx")
    run, file = nearkin.load(trained, device="cpu"), nearkin.load(tmp_path / "model.onnx")
    assert (file.identity, file.dim, file.distance) == (run.identity, run.dim, run.distance)
    paths = [str(path) for path in sorted(photos.rglob("*.png"))[:5]]
    np.testing.assert_allclose(file.encode(paths), run.encode(paths), atol=1e-5)
    subprocess.run([sys.executable, "-c", CODE, *paths], check=True, cwd=tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "found.npy"), run.encode(paths), atol=1e-5)
