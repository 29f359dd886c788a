"""The reality check on photographs that take a second to learn, with two folds of two classes."""

from __future__ import annotations

import json

import pytest

from nearkin.runs.trained_run import TrainedRun
from nearkin.studies import study
from nearkin.training.recipes import load_recipe

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "max_steps": 3, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3, "seed": 5},
    "objective": {"name": "proxy_anchor"},
    "protocol": {"name": "conventional", "folds": 2, "test_share": 0.35},
}


@pytest.fixture
def make_recipe(photos):
    """The recipe with changes."""
    return lambda *changes: load_recipe(TINY, [f"data.source={json.dumps(str(photos))}", *changes])


@pytest.fixture
def recipe(make_recipe):
    return make_recipe()


@pytest.fixture
def trained(monkeypatch):
    """Fold and seed of every model that was trained."""
    models, genuine = [], study.run

    def run(recipe, *arguments, **options):
        genuine(recipe, *arguments, **options)
        models.append((recipe.protocol.fold, recipe.training.seed))

    monkeypatch.setattr(study, "run", run)
    return models


@pytest.fixture
def embedded(monkeypatch):
    """How many images were embedded for the reality check, each time."""
    calls, genuine = [], TrainedRun.embed

    def embed(trained, images, rows):
        calls.append(len(rows))
        return genuine(trained, images, rows)

    monkeypatch.setattr(TrainedRun, "embed", embed)
    return calls
