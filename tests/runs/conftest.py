"""What tests of runs share: a run of one step, and classes that are added or looked up."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training.state import Silent

TINY = {
    "data": {"transform": "mild", "image_size": 32, "workers": 1, "shorter_side": 48},
    "encoder": {"backbone": "small", "dim": 8},
    "training": {"epochs": 1, "max_steps": 1, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "conventional", "test_share": 0.35},
}


@pytest.fixture
def trained(photos, tmp_path):
    """The folder of a run on ``photos``."""
    recipe = Recipe.from_mapping(TINY, [f"data.source={json.dumps(str(photos))}"])
    run(recipe, RunFolder(tmp_path / "run"), Silent())
    return tmp_path / "run"


@pytest.fixture
def kinds():
    """``kinds(folder, split)``: names of the classes that a run has in a part of its split."""

    def named(folder, split):
        stored = RunFolder(folder).stored_split
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
