"""The folder of a run or study that is given none, named after what decides it."""

from __future__ import annotations

from pathlib import Path

from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint

RUNS = Path("runs")


def default_folder(recipe: Recipe) -> Path:
    """``runs/<data>-<objective>-<hash>``: recipes that decide the same run have the same folder.

    >>> default_folder(Recipe()) == default_folder(Recipe().with_changes({"training.device": "cpu"}))
    True
    """
    method = [] if recipe.method.name == "plain" else [recipe.method.name]
    return RUNS / "-".join([data_name(recipe), recipe.objective.name, *method, fingerprint(recipe)])


def data_name(recipe: Recipe) -> str:
    """The name of a recipe's data in the name of a folder."""
    return Path(recipe.data.source).stem or "data"
