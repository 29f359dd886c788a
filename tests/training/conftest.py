"""A small run on the photos, whole or at its first step."""

from __future__ import annotations

import json

import pytest

from nearkin.data.loader import TrainingLoader
from nearkin.runs.data import open_data
from nearkin.training.build import build_state
from nearkin.training.recipe_check import load_recipe

SMALL = {
    "data": {"transform": "mild", "image_size": 32, "workers": 1},
    "encoder": {"backbone": "small", "dim": 16, "options": {"width": 8}},
    "objective": {"name": "proxy_anchor"},
    "training": {"epochs": 3, "batch_size": 8, "learning_rate": 1e-3, "device": "cpu", "schedule": "cosine"},
    "protocol": {"name": "conventional", "test_share": 0.34},
}


@pytest.fixture
def recipe_for(photos):
    return lambda *overrides: load_recipe(SMALL, [f"data.source={json.dumps(str(photos))}", *overrides])


@pytest.fixture
def state_for(recipe_for):
    def build(*overrides):
        recipe = recipe_for(*overrides)
        return build_state(recipe, open_data(recipe.data))

    return build


@pytest.fixture
def next_batch():
    def draw(state):
        loader = TrainingLoader(state.train_set, state.labels, state.transform, state.sampler, seed=0, workers=1)
        with loader:
            return next(iter(loader))

    return draw
