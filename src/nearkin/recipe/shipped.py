"""Recipes that come with nearkin, found by their names."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from nearkin.errors import RecipeError
from nearkin.suggest import did_you_mean

PAPERS = "papers"
"""The folder of the papers' recipes, whose names do without it: ``ccp/c2`` is ``papers/ccp/c2.yaml``."""


def find_recipe(path: str | Path, *, beside: Path | None = None) -> Path:
    """The file of a recipe given by path or by name.

    Args:
        path: of a file, or the name of a recipe that comes with nearkin, such as ``ccp/c2``.
        beside: a folder in which it is looked for first, also without its ending.
    """
    shipped = recipes_folder()
    names = (str(path), f"{path}.yaml")
    own = [Path(path)] if beside is None else [beside / name for name in names]
    for candidate in (*own, *(folder / name for folder in (shipped, shipped / PAPERS) for name in names)):
        if candidate.is_file():
            return candidate
    if Path(path).is_dir():
        raise RecipeError(f"{str(path)!r} is a folder and no recipe: images are given with --data {path}")
    near = did_you_mean(str(path), shipped_recipes())
    raise RecipeError(f"no recipe {str(path)!r}, neither as a file nor by name (nearkin recipes lists them): {near}")


def shipped_recipes() -> dict[str, Path]:
    """Every recipe by its name. Files whose names begin with an underscore are only bases of others, and left out."""
    folder = recipes_folder()
    files = (file for file in folder.rglob("*.yaml") if not file.name.startswith("_"))
    named = {file.relative_to(folder).with_suffix("").as_posix().removeprefix(f"{PAPERS}/"): file for file in files}
    return dict(sorted(named.items()))


def recipes_folder() -> Path:
    """Where the recipes lie: inside the installed package, or at the top of the source tree."""
    packaged = Path(str(importlib.resources.files("nearkin"))) / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "recipes"
