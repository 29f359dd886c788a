"""What to expect of the recipes that come with nearkin: scores as published or measured."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from nearkin.recipe import Recipe, recipes_folder, shipped_recipes
from nearkin.report.formats import markdown_table
from nearkin.report.table import NOTHING
from nearkin.studies.paper_rows import Settings, recipe_of
from nearkin.studies.papers import PaperRow, PaperTable, items, paper_titles, papers, tables_of
from nearkin.training.recipes import load_recipe


def listed_recipes() -> list[dict[str, Any]]:
    """Every recipe that comes with nearkin, with its summary, command and expected scores in per cent.

    ``source`` says where the scores are from: ``published``, or ``measured`` with the number of runs and what they
    lack; ``row`` is the command that runs the recipe as a row of its paper's table.

    >>> (recipe,) = [recipe for recipe in listed_recipes() if recipe["name"] == "vcpa/vcpa"]
    >>> [(score["metric"], score["value"]) for score in recipe["scores"]][:2]
    [('R@1', 69.9), ('R@2', 79.0)]
    """
    measured = _by_recipe("measured.csv")
    listed = []
    for name, file in shipped_recipes().items():
        summary, command = (line.removeprefix("# ") for line in file.read_text(encoding="utf-8").splitlines()[:2])
        recipe, scores, source, row = load_recipe(file), [], None, None
        if lines := measured.get(name):
            for line in lines:
                spread = float(line["spread"]) if line["spread"] else None
                scores.append(_score(line["metric"], float(line["value"]), spread, recipe.encoder.dim or 0))
            runs = "one run" if lines[0]["runs"].startswith("1 ") else f"mean of {lines[0]['runs']}"
            source = ", ".join(filter(None, ("measured", runs, lines[0]["note"])))
        elif (place := _row_of(name, recipe)) is not None:
            table, published = place
            row = f"nearkin reproduce {table.item.id} --rows {published.name} --data {recipe.data.source}"
            values = table.published_values(published, recipe.data.source)
            scores = [_score(each.metric, each.value, each.spread, each.dim) for each in values]
            source = "published" if scores else None
        texts = {"name": name, "summary": summary, "command": command}
        listed.append({**texts, "scores": scores, "source": source, "row": row})
    return listed


def recipes_page(listed: Sequence[Mapping[str, Any]]) -> str:
    """The recipes as Markdown: what ``docs/recipes.md`` holds."""
    head = ["name", "what it is", "expected (%)", "as a row"]
    lines = [
        "# Recipes",
        "",
        "Read off the files in `recipes/` by `nearkin list recipes --markdown > docs/recipes.md`. `nearkin train NAME`",
        "trains one; the second line of its file is the whole command. Expected is what the paper prints for the row",
        "that is this recipe, or what we measured (`results/`). Training says how long it takes after its first steps.",
    ]
    titles = paper_titles()
    for folder, members in itertools.groupby(listed, key=lambda recipe: str(recipe["name"]).partition("/")[0]):
        rows = [head]
        for recipe in members:
            row = f"`{recipe['row']}`" if recipe["row"] else NOTHING
            rows.append([f"`{recipe['name']}`", recipe["summary"], _scores_text(recipe), row])
        title = f"{folder}: {titles[folder]}" if folder in titles else folder
        lines += ["", f"## {title}", "", markdown_table(rows)]
    return "\n".join(lines) + "\n"


def _score(metric: str, value: float, spread: float | None, dim: int) -> dict[str, Any]:
    return {"metric": metric, "value": value, "spread": spread, "dim": dim}


def _scores_text(recipe: Mapping[str, Any]) -> str:
    texts: dict[int, list[str]] = {}
    for score in sorted(recipe["scores"], key=lambda score: int(score["dim"])):
        spread = "" if score["spread"] is None else f" ± {_digits(score['spread'])}"
        texts.setdefault(score["dim"], []).append(f"{score['metric']} {_digits(score['value'])}{spread}")
    by_dim = [(f"{dim}-d " if len(texts) > 1 else "") + ", ".join(scores) for dim, scores in texts.items()]
    return f"{'; '.join(by_dim)} ({recipe['source']})" if recipe["source"] else NOTHING


def _digits(value: float) -> str:
    """As many digits as the value has, one at least."""
    return f"{value:.1f}" if round(value, 1) == value else f"{value:g}"


def _row_of(name: str, recipe: Recipe) -> tuple[PaperTable, PaperRow] | None:
    """The first row of its paper that is the recipe unchanged, if possible one with published values."""
    paper, source = name.partition("/")[0], recipe.data.source
    own = [item for item in items(paper) if not item.same_as] if paper in papers() else []
    tables = [table for item in own for table in tables_of(item) if source in table.data]
    rows = [(table, row) for table in tables for row in table.rows_on(source) if row.recipe == name]
    same = [(table, row) for table, row in rows if recipe_of(table, row, source, Settings()) == recipe]
    return min(same, key=lambda pair: not pair[0].published_values(pair[1], source), default=None)


def _by_recipe(file: str) -> dict[str, list[dict[str, str]]]:
    by_recipe: dict[str, list[dict[str, str]]] = {}
    for line in csv.DictReader((recipes_folder() / file).read_text(encoding="utf-8").splitlines()):
        by_recipe.setdefault(line["recipe"], []).append(line)
    return by_recipe
