"""Rows whose recipes are trained in a moment, and runs that were not trained but written down."""

from __future__ import annotations

import json

import pytest

from nearkin.recipe.identity import fingerprint
from nearkin.studies.study import Row, planned_runs
from nearkin.training.recipes import load_recipe

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "max_steps": 4, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3},
    "objective": {"name": "proxy_anchor"},
    "protocol": {"name": "conventional", "test_share": 0.5},
}


@pytest.fixture
def make_row(photos):
    def make(name, *overrides, base=None):
        recipe = load_recipe(TINY, [f"data.source={json.dumps(str(photos))}", *overrides])
        return Row(name, name.upper(), recipe, base)

    return make


@pytest.fixture
def write_run(tmp_path):
    """Write a finished run of a row with scores of one's own."""

    def write(row, seed, *, recall, last=None, step_ms=10.0, hardware="CPU"):
        (planned,) = planned_runs([row], tmp_path, [seed])
        planned.folder.begin(planned.recipe)
        test = {"R@1": recall, "MAP@R": recall / 2, "nDCG@8": recall / 4, "covering_radius": 10 * recall}
        planned.folder.write_scores(
            {
                "data": "toy",
                "protocol": planned.recipe.protocol.name,
                "selection": "best R@1 on the test classes",
                "test_classes": "classes never seen in training",
                "seed": seed,
                "hardware": hardware,
                "recipe": fingerprint(planned.recipe),
                "epochs": 2.0,
                "cost": {"step_ms": step_ms},
                "untrained": {"R@1": 0.1, "MAP@R": 0.05},
                "test": test,
                "best": {"epoch": 1.0, "R@1": recall, "MAP@R": 1 - recall},
                "last": {"epoch": 2.0, "R@1": last or recall, "MAP@R": 0.2},
            }
        )

    return write
