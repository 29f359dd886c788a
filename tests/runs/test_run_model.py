from __future__ import annotations

import shutil

import numpy as np
import torch

import nearkin
from nearkin.runs.folder import RunFolder
from nearkin.runs.trained_run import identity_of, load_run


def test_the_identity_is_that_of_the_vectors(trained, tmp_path):
    identity = nearkin.load(trained).identity
    assert nearkin.load(shutil.copytree(trained, tmp_path / "copy")).identity == identity
    others = {identity}
    for change in ({"flip": True}, {"eval_size": 40}):
        others.add(identity_of(load_run(trained, **change)))
    run = load_run(trained)
    with torch.no_grad():
        next(run.encoder.head.parameters())[0, 0] += 1
    others.add(identity_of(run))
    assert len(others) == 4


def test_held_out_images_are_those_of_classes_never_trained_on(trained, photos, kinds):
    held_out = nearkin.load(trained, device="cpu").held_out()
    assert len(np.unique(held_out.labels)) == len(kinds(trained, "test"))
    assert len(held_out.labels) == len(held_out.vectors) == 8 * len(kinds(trained, "test"))
    stored = RunFolder(trained).split
    assert set(held_out.labels.tolist()) == set(stored.labels[stored.splits == "test"].tolist())
    shutil.rmtree(photos)
    assert nearkin.load(trained, device="cpu").held_out() is None
