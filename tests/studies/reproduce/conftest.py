"""Rows of published tables whose recipes are small enough to be run, and lines as if they had been."""

from __future__ import annotations

import json

import pytest
from nearkin.studies.reproduce.runs import Line, column_of, columns_of

from nearkin.recipe import Recipe
from nearkin.studies.reproduce.papers import chosen_rows, find_item, tables_of
from nearkin.studies.reproduce.rows import PlannedRow, Settings, planned_rows

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 2, "max_steps": 4, "batch_size": 8, "device": "cpu", "learning_rate": 1e-3},
    "protocol": {"name": "conventional", "test_share": 0.5, "recall_at": [1, 2, 4, 8], "ndcg_at": [2, 4, 8]},
}


@pytest.fixture
def tiny_rows(photos):
    """Planned rows of a table with their published figures, but with recipes for tiny photos."""

    def make(name, only, *overrides, data="cub"):
        (table,) = tables_of(find_item(name))
        rows = planned_rows(table, chosen_rows(table.rows, only), [data], Settings(weights="none"))
        made = []
        for row in rows:
            recipe = None
            if row.recipe is not None:
                whole = row.recipe.as_mapping()
                tiny = {**TINY, "objective": whole["objective"], "method": whole["method"]}
                recipe = Recipe.from_mapping(tiny, [f"data.source={json.dumps(str(photos))}", *overrides])
            problem = row.definition.missing
            made.append(PlannedRow(row.definition, row.data, recipe, row.figures, problem, table.mlrc))
        return table, made

    return make


@pytest.fixture
def made_up():
    """A table with lines that hold figures as if they had been run: the published one plus ``shift``."""

    def make(name, *, shift=1.0, data=None, settings=None, spread=0.5):
        (table,) = tables_of(find_item(name))
        rows = planned_rows(table, table.rows, data or table.data, settings or Settings(weights="none"))
        columns = columns_of(table, rows)
        lines = []
        for row in rows:
            figures = {column_of(figure, table.mlrc): figure for figure in row.figures}
            line = Line(row, {column: each for column, each in figures.items() if column in columns[row.data]})
            if row.recipe is None:
                line.status, line.problem = "not in nearkin", row.problem
            else:
                line.seeds, line.repeats, line.status = [0, 1], 2, "finished"
                for column in columns[row.data]:
                    base = line.published[column].value if column in line.published else 60.0
                    line.ours[column] = {"mean": base + shift, "spread": spread, "interval": None}
                line.conditions = {
                    "protocol": ["conventional"],
                    "selection": ["best R@1 on the test classes"],
                    "hardware": ["a machine"],
                    "recipe": ["0a1b2c3d"],
                }
            lines.append(line)
        return table, lines

    return make
