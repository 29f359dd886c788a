"""What tests of runs share: a run of one step, and classes that are added or looked up."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin.runs.folder import RunFolder


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
