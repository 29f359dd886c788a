"""What a planner gets that only says which rows there are."""

from __future__ import annotations

import json

import pytest

from nearkin.errors import RecipeError
from nearkin.studies.compare.row_study import RowStudy
from nearkin.studies.study import Row
from nearkin.training.recipes import load_recipe


class Rates(RowStudy):
    files = "rates"
    values = (0.001, 0.01)

    @property
    def rows(self):
        recipes = [self.base.with_changes({"training.learning_rate": value}) for value in self.values]
        return [Row(f"r{n}", f"rate {n}", recipe, "r0" if n else None) for n, recipe in enumerate(recipes)]


@pytest.fixture
def base():
    return load_recipe("glyphs/demo", ["training.seed=4"])


def test_rows_and_seeds_become_runs_and_a_plan(base, tmp_path):
    study = Rates(base, seeds=2, folder=tmp_path)
    assert [(run.row.name, run.seed, run.recipe.training.learning_rate) for run in study.runs()] == [
        ("r0", 4, 0.001),
        ("r1", 4, 0.01),
        ("r0", 5, 0.001),
        ("r1", 5, 0.01),
    ]
    study.runs()[0].folder.begin(study.runs()[0].recipe).write_scores({"test": {"R@1": 0.5}})
    with pytest.raises(RecipeError, match="jobs must be at least 1, got 0"):
        study.run(jobs=0)
    assert study.plan() == [f"Plan: 2 rows × 2 seeds = 4 runs, 1 of them finished already, into {tmp_path}"]


def test_the_usual_folder_depends_on_the_rows_and_not_on_the_seed(base):
    class Others(Rates):
        values = (0.001, 0.1)

    assert Rates(base).folder.name.startswith("rates-glyphs-")
    assert Rates(base).folder == Rates(base.with_changes({"training.seed": 5})).folder
    assert Rates(base).folder.name[-6:] != Others(base).folder.name[-6:]
    assert Rates(base).folder != Rates(base.with_changes({"training.epochs": 3})).folder


def test_what_is_written_listed_and_said_to_be_next(base, tmp_path):
    study = Rates(base, seeds=1, folder=tmp_path)
    for run, recall in zip(study.runs(), (0.5, 0.6), strict=True):
        said = {"data": "glyphs", "test": {"R@1": recall}, "last": {"R@1": recall}}
        run.folder.begin(run.recipe).write_scores(said)
    assert [file.name for file in study.write()] == [f"comparison.{ending}" for ending in ("md", "csv", "json", "png")]
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert rows[1]["against"]["R@1"]["difference"] == pytest.approx(0.1)
    assert study.next_steps() == [f"nearkin plot {tmp_path / 'r0' / 'seed-4'}"]
    assert study.listing().records[1]["recipe"]["training"]["learning_rate"] == 0.01
