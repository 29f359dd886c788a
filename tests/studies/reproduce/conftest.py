"""Rows of published tables whose recipes are small enough to be run, and lines as if they had been."""

from __future__ import annotations

import dataclasses
import json

import pytest

from nearkin.evaluation.statistics import Statistic
from nearkin.studies.reproduce import Reproduction, Settings
from nearkin.studies.reproduce.papers import find_item, tables_of
from nearkin.studies.reproduce.results import Column, Reproduced, columns_of
from nearkin.studies.reproduce.rows import planned_rows
from nearkin.training.recipes import load_recipe

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "max_steps": 4, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3},
    "protocol": {"name": "conventional", "test_share": 0.5, "recall_at": [1, 2, 4, 8], "ndcg_at": [2, 4, 8]},
}


@pytest.fixture
def tiny(photos, tmp_path):
    """A published table whose rows have recipes for tiny photos; ``lost`` names those whose photos are not there."""

    def make(name, rows, *overrides, seeds=1, lost=()):
        study = Reproduction(
            name, data=["cub"], rows=rows, seeds=seeds, settings=Settings(weights="none"), folder=tmp_path / "out"
        )

        def shrink(row):
            recipe = None
            if row.recipe is not None:
                whole = row.recipe.as_mapping()
                small = {**TINY, "objective": whole["objective"], "method": whole["method"]}
                source = "./nowhere" if row.row.name in lost else str(photos)
                recipe = load_recipe(small, [f"data.source={json.dumps(source)}", *overrides])
            return dataclasses.replace(row, recipe=recipe, problem=row.row.missing)

        study.asked = [
            dataclasses.replace(part, rows=[*map(shrink, part.rows)], every=[*map(shrink, part.every)])
            for part in study.asked
        ]
        return study

    return make


@pytest.fixture
def results_of():
    """What came of the rows of a study's only table."""

    def results(study):
        (part,) = study.asked
        return study.results(part)

    return results


@pytest.fixture
def made_up():
    """A table with lines that hold figures as if they had been run: the published one plus ``shift``."""

    def make(name, *, shift=1.0, data=None, settings=None, spread=0.5):
        (table,) = tables_of(find_item(name))
        rows = planned_rows(table, table.rows, data or table.data, settings or Settings(weights="none"))
        columns = columns_of(table, rows)
        lines = []
        for row in rows:
            figures = {Column.of(each, table.mlrc): each for each in row.published}
            line = Reproduced(row, {column: each for column, each in figures.items() if column in columns[row.data]})
            if row.recipe is None:
                line.status, line.problem = "not in nearkin", row.problem
            else:
                line.seeds, line.repeats, line.status = [0, 1], 2, "finished"
                for column in columns[row.data]:
                    base = line.published[column].value if column in line.published else 60.0
                    line.ours[column] = Statistic(base + shift, spread)
                line.conditions = {
                    "protocol": ["conventional"],
                    "selection": ["best R@1 on the test classes"],
                    "hardware": ["a machine"],
                    "recipe": ["0a1b2c3d"],
                }
            lines.append(line)
        return table, lines

    return make
