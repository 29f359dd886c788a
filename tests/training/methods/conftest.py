"""A problem small enough to follow by hand: tiny images in memory, a tiny network."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.training.build import build_state
from nearkin.training.recipe_check import load_recipe

TINY = {
    "data": {"transform": "digits", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 6, "normalisation": "ball"},
    "objective": {"name": "contrastive"},
    "training": {
        "epochs": 50,
        "batch_size": 8,
        "sampler": "balanced",
        "images_per_class": 2,
        "learning_rate": 1e-3,
        "proxy_lr_multiplier": 1,
        "device": "cpu",
        "schedule": "constant",
        "evaluate_every_steps": 2,
        "optimiser": "adam",
    },
    "protocol": {"name": "validation", "select_by": "MAP@R"},
}


def tiny_table(sizes=(5, 3, 1, 4, 4), *, held_out=3, seed=0):
    """Training classes of the given sizes, and ``held_out`` classes each to validate and to test."""
    rng = np.random.default_rng(seed)
    names, splits = [], []
    for number, size in enumerate(sizes):
        names += [f"train {number}"] * size
        splits += ["train"] * size
    for split in ("validation", "test"):
        for number in range(held_out):
            names += [f"{split} {number}"] * 3
            splits += [split] * 3
    centres = {name: rng.normal(128, 60, (8, 8)) for name in dict.fromkeys(names)}
    pixels = np.stack([centres[name] + rng.normal(0, 25, (8, 8)) for name in names]).clip(0, 255).astype(np.uint8)
    return ImageTable.build("tiny", pixels, names, splits=splits)


@pytest.fixture
def table_of():
    """Builds a table: ``table_of(sizes, held_out=0)``."""
    return tiny_table


@pytest.fixture
def tiny():
    """Builds a training state: ``tiny("method.name=ccp", table=…)``."""

    def build(*overrides, table=None, mapping=None):
        recipe = load_recipe(mapping or TINY, overrides)
        from nearkin.training import methods

        methods.catalogue()[recipe.method.name].check(recipe)
        return build_state(recipe, open_images(tiny_table() if table is None else table, cache_dir=None))

    return build
