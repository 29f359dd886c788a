"""The recipes that come with nearkin and what to expect of them: scores as published, or as we measured them."""

from __future__ import annotations

import csv

from nearkin.recipe import Recipe, recipes_folder, shipped_recipes
from nearkin.report.listings import Listing
from nearkin.studies.papers import PaperRow, PaperTable, Settings, items, papers, recipe_of, table_of
from nearkin.training.recipe_check import load_recipe

Score = tuple[str, float, float | None, int]
"""Metric, value in per cent, spread, dimensions."""


def list_recipes(*, expected: bool = True) -> Listing:
    """Every recipe with its summary; ``expected`` adds columns for its scores and for its row of a paper's table.

    >>> (record,) = [record for record in list_recipes().records if record["name"] == "vcpa/vcpa"]
    >>> record["expected"], record["row"]
    ('R@1 69.9, R@2 79.0, R@4 86.9, R@8 92.2 (published)', 'nearkin reproduce vcpa/table-1 --rows vcpa --data cub')
    """
    intro = (
        "The files of `recipes/`. `nearkin train NAME` trains one; the second line of its file is the whole command. "
        "Expected, in per cent, is what the paper prints for the row that is this recipe, or what we measured "
        "(`results/`)."
    )
    measured: dict[str, list[dict[str, str]]] = {}
    for line in csv.DictReader((recipes_folder() / "measured.csv").read_text(encoding="utf-8").splitlines()):
        measured.setdefault(line["recipe"], []).append(line)
    records = []
    for name, file in shipped_recipes().items():
        summary, command = (line.removeprefix("# ") for line in file.read_text(encoding="utf-8").splitlines()[:2])
        recipe, row, scores, source = load_recipe(file), None, list[Score](), ""
        if lines := measured.get(name):
            for line in lines:
                spread = float(line["spread"]) if line["spread"] else None
                scores.append((line["metric"], float(line["value"]), spread, recipe.encoder.dim or 0))
            runs = "one run" if lines[0]["runs"].startswith("1 ") else f"mean of {lines[0]['runs']}"
            source = ", ".join(filter(None, ("measured", runs, lines[0]["note"])))
        elif (pair := _row_of(name, recipe)) is not None:
            table, paper_row = pair
            row = f"nearkin reproduce {table.item.id} --rows {paper_row.name} --data {recipe.data.source}"
            values = table.published_values(paper_row, recipe.data.source)
            scores, source = [(v.metric, v.value, v.spread, v.dim) for v in values], "published"
        record = {"name": name, "summary": summary, "command": command, "row": row, "scores": scores}
        records.append(record | {"expected": f"{_scores_text(scores)} ({source})" if scores else None})
    shown = ("name", "summary", "expected", "row") if expected else ("name", "summary")
    return Listing("Recipes", intro, shown, tuple(records))


def _scores_text(scores: list[Score]) -> str:
    texts: dict[int, list[str]] = {}
    for metric, *numbers, dim in sorted(scores, key=lambda score: score[3]):
        # As many digits as a value has, one at least.
        digits = [f"{x:.1f}" if round(x, 1) == x else f"{x:g}" for x in numbers if x is not None]
        texts.setdefault(dim, []).append(f"{metric} {' ± '.join(digits)}")
    return "; ".join((f"{dim}-d " if len(texts) > 1 else "") + ", ".join(members) for dim, members in texts.items())


def _row_of(name: str, recipe: Recipe) -> tuple[PaperTable, PaperRow] | None:
    """The first row of its paper that is the recipe unchanged, if possible one with published values."""
    paper, source = name.partition("/")[0], recipe.data.source
    original = [item for item in items(paper) if not item.same_as and not item.instead] if paper in papers() else []
    tables = [table for table in map(table_of, original) if source in table.data]
    rows = [(table, row) for table in tables for row in table.rows_on(source) if row.recipe == name]
    same = [(table, row) for table, row in rows if recipe_of(table, row, source, Settings()) == recipe]
    return min(same, key=lambda pair: not pair[0].published_values(pair[1], source), default=None)
