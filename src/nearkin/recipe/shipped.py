"""Recipes that come with nearkin, found by their names."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from nearkin.errors import RecipeError
from nearkin.suggest import did_you_mean


def find_recipe(path: str | Path) -> Path:
    """The file of a recipe given by path or by name."""
    given = Path(path)
    if given.is_file():
        return given
    shipped = recipes_folder()
    for candidate in (shipped / given, shipped / f"{given}.yaml"):
        if candidate.is_file():
            return candidate
    names = [str(file.relative_to(shipped).with_suffix("")) for file in shipped.rglob("*.yaml")]
    raise RecipeError(f"no recipe {str(path)!r}, neither as a file nor by name: {did_you_mean(str(path), names)}")


def recipes_folder() -> Path:
    """Where the recipes lie: inside the installed package, or at the top of the source tree."""
    packaged = Path(str(importlib.resources.files("nearkin"))) / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "recipes"
