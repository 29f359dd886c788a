"""Several models as one."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import nearkin
from nearkin.errors import RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.runs.model import load_again
from nearkin.runs.run import run
from nearkin.training.state import NullObserver


@pytest.fixture
def other(trained, tmp_path):
    """A run on the same images with another seed."""
    run(RunFolder(trained).recipe().with_changes({"training.seed": 5}), RunFolder(tmp_path / "other"), NullObserver())
    return tmp_path / "other"


def test_the_cosine_is_the_mean_of_the_models_cosines(trained, other, photos):
    parts = [nearkin.load(path, device="cpu") for path in (trained, other)]
    both = nearkin.load([trained, other], device="cpu")
    images = sorted(photos.rglob("*.png"))[:6]
    vectors, alone = both.encode(images), [part.encode(images) for part in parts]
    assert vectors.shape == (6, 16) == (6, both.dim)
    np.testing.assert_allclose(vectors @ vectors.T, np.mean([each @ each.T for each in alone], axis=0), atol=1e-6)
    assert np.abs(alone[0] @ alone[0].T - alone[1] @ alone[1].T).max() > 1e-3  # the two do differ


def test_it_is_another_model_than_its_parts_and_can_be_loaded_again(trained, other, photos):
    both = nearkin.load([trained, other], device="cpu", flip=True)
    identities = {
        nearkin.load(given, device="cpu").identity for given in (trained, other, [trained, other], [other, trained])
    }
    assert len(identities | {both.identity}) == 5
    assert nearkin.load([trained]).identity == nearkin.load(trained).identity
    again = load_again(both.path, both.options, device="cpu")
    assert (again.identity, again.options) == (both.identity, {"flip": True, "also": [str(other)]})
    image = next(photos.rglob("*.png"))
    np.testing.assert_array_equal(again.encode(image), both.encode(image))


def test_held_out_images_are_those_that_neither_was_trained_on(trained, other, tmp_path):
    both = nearkin.load([trained, other], device="cpu")
    held_out = both.held_out()
    assert held_out.vectors.shape == (16, 16)
    np.testing.assert_array_equal(held_out.labels, nearkin.load(trained).held_out().labels)
    recipe = RunFolder(trained).recipe().with_changes({"protocol.split_seed": 3})
    run(recipe, RunFolder(tmp_path / "another split"), NullObserver())
    assert RunFolder(tmp_path / "another split").split.trained != RunFolder(trained).split.trained
    assert nearkin.load([trained, tmp_path / "another split"], device="cpu").held_out() is None


def test_models_that_do_not_go_together_are_refused(trained, tmp_path):
    recipe = RunFolder(trained).recipe()
    run(recipe.with_changes({"data.shorter_side": 60}), RunFolder(tmp_path / "larger"), NullObserver())
    with pytest.raises(RecipeError, match=r"different sizes \(48, 60 pixels\)"):
        nearkin.load([trained, tmp_path / "larger"])
    run(recipe.with_changes({"encoder.normalisation": "ball"}), RunFolder(tmp_path / "ball"), NullObserver())
    with pytest.raises(RecipeError, match="compared by angle and models that are compared by distance"):
        nearkin.load([trained, tmp_path / "ball"])
    with pytest.raises(RecipeError, match="at least one run"):
        nearkin.load([])


def test_files_without_torch_go_together_too(trained, tmp_path, photos):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    nearkin.export(trained, output=tmp_path / "a.onnx")
    shutil.copy(tmp_path / "a.onnx", tmp_path / "b.onnx")
    image = next(photos.rglob("*.png"))
    alone, both = nearkin.load(tmp_path / "a.onnx"), nearkin.load([tmp_path / "a.onnx", tmp_path / "b.onnx"])
    np.testing.assert_allclose(both.encode(image), np.tile(alone.encode(image), 2) / 2**0.5, atol=1e-6)
    with pytest.raises(RecipeError, match="flip cannot be changed in a file"):
        nearkin.load(tmp_path / "a.onnx", flip=True)
