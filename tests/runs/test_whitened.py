"""A model with whitened vectors: what it learns from, and what it keeps."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import nearkin
from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.whitening import principal_axes
from nearkin.runs.data import open_run_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.trained import load_run


def test_axes_are_those_of_the_training_images_and_of_no_others(trained, photos):
    run = load_run(trained, device="cpu")
    data = open_run_data(run.folder, run.recipe)
    assert len(data.protocol.train_rows) == 32 < len(data.images.table)
    images = data.images.images
    expected = principal_axes(run.embed(images, data.protocol.train_rows).numpy()).whitening(3, shrinkage=0.1)
    model = nearkin.load(trained, device="cpu", whiten=3, shrinkage=0.1)
    paths = sorted(photos.rglob("*.png"))[:5]
    found = model.encode(paths)
    assert (model.dim, model.distance, found.shape) == (3, "cosine", (5, 3))
    np.testing.assert_allclose(found, expected(run.embed(paths).numpy()), atol=1e-4)
    held_out = model.held_out()
    plain = nearkin.load(trained, device="cpu").held_out()
    np.testing.assert_allclose(held_out.vectors, expected(plain.vectors), atol=1e-4)


def test_test_images_play_no_part(trained, photos, kinds, tmp_path):
    first = nearkin.load(trained, device="cpu", whiten=True).identity
    shutil.copytree(trained, tmp_path / "copy", ignore=shutil.ignore_patterns("whitening-*"))
    for kind in kinds(trained, "test"):
        shutil.rmtree(photos / kind)
    assert nearkin.load(tmp_path / "copy", device="cpu", whiten=True).identity == first


def test_what_was_learned_is_kept_and_needs_no_images_again(trained, photos):
    model = nearkin.load(trained, device="cpu", whiten=True)
    image = sorted(photos.rglob("*.png"))[0].read_bytes()
    vectors = model.encode(image)
    shutil.rmtree(photos)
    again = nearkin.load(trained, device="cpu", whiten=True)
    assert again.identity == model.identity
    np.testing.assert_array_equal(again.encode(image), vectors)
    assert nearkin.load(trained, device="cpu", whiten=2).dim == 2  # other dimensions are of the same axes
    with pytest.raises(DataError, match=r"training images of .* are not at hand"):
        nearkin.load(trained, device="cpu", whiten=True, flip=True)
    (file,) = trained.glob("whitening-*.npz")
    file.write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"cannot be read .*delete it"):
        nearkin.load(trained, device="cpu", whiten=True)
    RunFolder(trained).clear()
    assert not list(trained.glob("whitening-*"))


def test_every_way_of_whitening_has_an_identity_of_its_own(trained):
    given = [{}, {"whiten": True}, {"whiten": 3}, {"whiten": 3, "shrinkage": 0.5}, {"whiten": 3, "flip": True}]
    models = [nearkin.load(trained, device="cpu", **each) for each in given]
    assert len({model.identity for model in models}) == len(given)
    assert [dict(model.options) for model in models] == given
    with pytest.raises(RecipeError, match="shrinkage is of whitening"):
        nearkin.load(trained, shrinkage=0.5)
