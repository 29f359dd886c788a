"""A recipe on eight small kinds, two to test, two to validate and four to train: a trial takes a moment."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from nearkin.studies.tune import Plan, Search, Trial, Tuning, read_space
from nearkin.training.recipes import load_recipe

TINY = {
    "data": {"transform": "mild", "image_size": 8, "shorter_side": 10, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "objective": {"name": "proxy_anchor"},
    "training": {"epochs": 50, "max_steps": 8, "evaluate_every_steps": 2, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "validation", "test_share": 0.25},
}
PLANE = ("method.proximal_weight=1e-6..1:log", "method.proxies_per_class=1..7")


@pytest.fixture
def kinds(tmp_path):
    rng = np.random.default_rng(0)
    for kind in range(8):
        folder = tmp_path / "kinds" / f"kind {kind}"
        folder.mkdir(parents=True)
        centre = rng.normal(128, 50, (10, 10, 3))
        for number in range(6):
            pixels = (centre + rng.normal(0, 40, (10, 10, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "kinds"


@pytest.fixture
def make_plan(kinds):
    """Builds a plan: ``make_plan("objective.alpha=4..32", changes=["training.max_steps=4"], pruner="none")``."""

    def make(*space, changes=(), **settings):
        recipe = load_recipe(TINY, [f"data.source={json.dumps(str(kinds))}", *changes])
        return Plan(recipe, read_space(space or ["training.learning_rate=1e-4..1e-1:log"], recipe), **settings)

    return make


@pytest.fixture
def tune():
    """Carries a plan out, or goes on with it; returns what the folder holds then."""

    def call(plan, folder, *, trials=None, jobs=1):
        search = Search(plan, trials, folder)
        search.run(jobs=jobs)
        return search.tuning

    return call


@pytest.fixture
def made_up(tmp_path):
    """Builds a search from ``(status, score, *values)`` of its trials."""

    def build(trials, space=PLANE, **settings):
        recipe = load_recipe("glyphs/ccp")
        plan = Plan(recipe, read_space(space, recipe), **settings)
        made = []
        for number, (status, score, *values) in enumerate(trials):
            point = dict(zip((dimension.key for dimension in plan.space), values, strict=True))
            known = {"scores": [score], "epochs": [7.0]} if status == "finished" else {"reason": f"it {status}"}
            made.append(Trial(number, status, point, score, seconds=60.0, **known))
        conditions = {"data": "glyphs", "selection": "best MAP@R on the validation classes", "hardware": "CPU"}
        (tmp_path / "my search").mkdir(exist_ok=True)
        return Tuning(plan, tmp_path / "my search", made, conditions)

    return build


@pytest.fixture
def many(made_up):
    """Twelve points of the plane whose scores are a hill, and two that were given up."""
    rng = np.random.default_rng(0)
    points = [(10 ** rng.uniform(-6, 0), int(rng.integers(1, 8))) for _ in range(12)]
    trials = [
        ("finished", 0.5 - 0.01 * (np.log10(pull) + 3) ** 2 - 0.005 * (k - 4) ** 2, pull, k) for pull, k in points
    ]
    return made_up([*trials, ("pruned", 0.2, 0.5, 1), ("diverged", None, 0.9, 2)])
