"""What tests of runs share."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run


@pytest.fixture
def kinds():
    """``kinds(folder, split)``: names of the classes that a run has in a part of its split."""

    def named(folder, split):
        stored = RunFolder(folder).split
        return [stored.class_names[label] for label in np.unique(stored.labels[stored.splits == split])]

    return named


@pytest.fixture
def add_kinds():
    """``add_kinds(photos, *names)``: four images of noise for each new class."""

    def add(photos, *names):
        for number, name in enumerate(names):
            (photos / name).mkdir(parents=True)
            for index in range(4):
                pixels = np.random.default_rng([number, index]).integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(photos / name / f"{index}.png")

    return add


@pytest.fixture
def train_like(trained, tmp_path):
    """``train_like(name, changes)``: a run with the recipe of ``trained`` and changes to it."""

    def train(name, changes):
        run(RunFolder(trained).recipe().with_changes(changes), RunFolder(tmp_path / name))
        return tmp_path / name

    return train
