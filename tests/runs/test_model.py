"""A trained encoder as other programs use it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import nearkin
from nearkin.errors import DataError
from nearkin.runs.folder import RunFolder
from nearkin.runs.trained import load_run


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


def test_the_identity_is_that_of_the_vectors(trained, tmp_path):
    identity = nearkin.load(trained).identity
    assert nearkin.load(shutil.copytree(trained, tmp_path / "copy")).identity == identity
    others = {identity}
    for change in ({"flip": True}, {"test_size": 40}):
        others.add(nearkin.runs.model.identity_of(load_run(trained, **change)))
    run = load_run(trained)
    with torch.no_grad():
        next(run.encoder.head.parameters())[0, 0] += 1
    others.add(nearkin.runs.model.identity_of(run))
    assert len(others) == 4


def test_held_out_images_are_those_of_classes_never_trained_on(trained, photos, kinds):
    held_out = nearkin.load(trained, device="cpu").held_out()
    assert len(np.unique(held_out.labels)) == len(kinds(trained, "test"))
    assert len(held_out.labels) == len(held_out.vectors) == 8 * len(kinds(trained, "test"))
    stored = RunFolder(trained).stored_split
    assert set(held_out.labels.tolist()) == set(stored.labels[stored.splits == "test"].tolist())
    shutil.rmtree(photos)
    assert nearkin.load(trained, device="cpu").held_out() is None


def test_a_path_that_is_no_run_says_what_to_give(trained, tmp_path):
    with pytest.raises(DataError, match=r"no run folder .*rum'; did you mean '.*run'"):
        nearkin.load(tmp_path / "rum")
    with pytest.raises(DataError, match="is a file: give the folder of a run"):
        nearkin.load(RunFolder(trained).path / "recipe.yaml")
