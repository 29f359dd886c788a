"""Rows of a comparison whose runs were not trained but written down."""

from __future__ import annotations

import math

import pytest

from nearkin.runs.outcome import Outcome
from nearkin.studies.results import RowResult, results_of
from nearkin.studies.study import Row, planned_runs
from nearkin.training.recipes import load_recipe


@pytest.fixture
def write_row(tmp_path):
    """A row with a finished run for each of ``tests``, its scores, and an unfinished one for each of ``problems``.

    What else the runs say is given once for all of them, or as a list with one value for each.
    """

    def write(name, tests, *, base=None, overrides=(), problems=(), side_by_side=1, **said) -> RowResult:
        changes = ["training.epochs=10", "protocol.name=validation", "training.optimiser=adamw", *overrides]
        row = Row(name, name.replace("_", "-"), load_recipe({"training": {"batch_size": 128}}, changes), base)
        runs = planned_runs([row], tmp_path / "study", range(len(tests) + len(problems)))
        for planned, test in zip(runs, tests, strict=False):
            known = {
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
            own = {key: value[planned.seed] if isinstance(value, list) else value for key, value in said.items()}
            planned.folder.begin(planned.recipe).write_scores(known | own)
            Outcome(name, planned.seed, "finished", side_by_side=side_by_side).write(planned.folder)
        for planned, (status, reason) in zip(runs[len(tests) :], problems, strict=True):
            Outcome(name, planned.seed, status, reason, 5).write(planned.folder)
        (result,) = results_of(runs)
        return result

    return write


@pytest.fixture
def write_scored(write_row):
    """A row with this R@1, half of it as MAP@R, and a covering radius; two seeds where it has a spread, else one."""

    def write(name, recall, spread, **options):
        # Two values have the sample standard deviation s where each is s/√2 away from their mean.
        away = (0.0,) if spread is None else (-spread / math.sqrt(2), spread / math.sqrt(2))
        tests = [{"R@1": recall + d, "MAP@R": recall / 2 + d, "covering_radius": 0.5 + d} for d in away]
        options.setdefault("cost", [{"step_ms": 12.34 + 100 * d} for d in away])
        return write_row(name, tests, **options)

    return write


@pytest.fixture
def results(write_scored):
    return [
        write_scored("C2_CCP", 0.70, 0.004, base="C2"),
        write_scored("triplet", 0.60, None),
        write_scored("C2", 0.65, 0.012),
        write_scored("C2_XBM", 0.649, 0.012, base="C2"),
        write_scored("VCPA", 0.3, 0.01, base="not_shown"),
    ]
