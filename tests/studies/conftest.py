"""Rows whose recipes are trained in a moment, and rows whose runs were not trained but written down."""

from __future__ import annotations

import json
import math

import pytest

from nearkin.runs.folder import Outcome
from nearkin.studies.study import Row, planned_runs
from nearkin.studies.tables import RowResult, results_of
from nearkin.training.recipe_check import load_recipe

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "max_steps": 4, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3},
    "objective": {"name": "proxy_anchor"},
    "protocol": {"name": "conventional", "test_share": 0.35, "folds": 2},
}


@pytest.fixture
def tiny(photos):
    """The smallest recipe with changes."""
    return lambda *changes: load_recipe(TINY, [f"data.source={json.dumps(str(photos))}", *changes])


@pytest.fixture
def make_row(tiny):
    return lambda name, *changes, base=None: Row(name, name.upper(), tiny(*changes), base)


@pytest.fixture
def write_row(tmp_path):
    """A row with a finished run for each of ``tests``, its scores, and an unfinished one for each of ``problems``.

    What else the runs hold is given once for all of them, or as a list with one value for each.
    """

    def write(name, tests, *, base=None, overrides=(), problems=(), at_once=1, row=None, **known) -> RowResult:
        changes = ["training.epochs=10", "protocol.name=validation", "training.optimiser=adamw", *overrides]
        recipe = load_recipe({"training": {"batch_size": 128}}, changes)
        row = row or Row(name, name.replace("_", "-"), recipe, base)
        runs = planned_runs([row], tmp_path / "study", range(len(tests) + len(problems)))
        for planned, test in zip(runs, tests, strict=False):
            usual = {
                "data": "toy",
                "protocol": planned.recipe.protocol.name,
                "selection": "best MAP@R on the validation classes",
                "test_classes": "classes never seen in training",
                "hardware": "CPU",
                "seed": planned.seed,
                "recipe": "abc",
                "cost": {"step_ms": 12.34},
                "test": test,
            }
            own = {key: value[planned.seed] if isinstance(value, list) else value for key, value in known.items()}
            planned.folder.begin(planned.recipe).write_scores(usual | own)
            Outcome(name, planned.seed, "finished", parallel_runs=at_once).write(planned.folder)
        for planned, (status, reason) in zip(runs[len(tests) :], problems, strict=True):
            Outcome(name, planned.seed, status, reason, 5).write(planned.folder)
        (result,) = results_of(runs)
        return result

    return write


@pytest.fixture
def results(write_row):
    """Rows with an R@1, half of it as MAP@R, and a covering radius; two seeds where there is a spread, else one."""

    def scored(name, recall, spread, **options):
        # Two values have the sample standard deviation s where each is s/√2 away from their mean.
        away = (0.0,) if spread is None else (-spread / math.sqrt(2), spread / math.sqrt(2))
        tests = [{"R@1": recall + d, "MAP@R": recall / 2 + d, "covering_radius": 0.5 + d} for d in away]
        return write_row(name, tests, **options)

    return [
        scored("C2_CCP", 0.70, 0.004, base="C2"),
        scored("triplet", 0.60, None),
        scored("C2", 0.65, 0.012),
        scored("C2_XBM", 0.649, 0.012, base="C2"),
        scored("VCPA", 0.3, 0.01, base="not_shown"),
    ]
