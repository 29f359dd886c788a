"""One key of a recipe over several values, everything else as it is: an ablation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe
from nearkin.studies.compare.row_study import RowStudy
from nearkin.studies.study import Row
from nearkin.training.recipes import load_recipe

__all__ = ["Vary"]


class Vary(RowStudy):
    """One key of a recipe over several values, each on several seeds.

    Args:
        base: the recipe that is varied; the row with its own value, if it is among them, is what others are held
            against.
        key: such as ``objective.alpha``.
        values: as they are written in a recipe.
        seeds: runs of each value.
        folder: where everything goes.

    Example:
        >>> study = Vary(load_recipe("glyphs/demo"), key="training.batch_size", values=("64", "128"), seeds=1)
        >>> [(row.title, row.base) for row in study.rows]
        [('training.batch_size=64', 'batch_size-128'), ('training.batch_size=128', None)]
    """

    def __init__(
        self, base: Recipe, *, key: str, values: tuple[str, ...], seeds: int = 3, folder: str | Path | None = None
    ) -> None:
        if len(set(values)) < 2:
            raise RecipeError(f"two values or more are compared, got {', '.join(values) or 'none'}: values=A,B,…")
        short = key.rpartition(".")[2]
        recipes = {f"{short}-{value}": load_recipe(base.as_mapping(), [f"{key}={value}"]) for value in values}
        own = next((name for name, recipe in recipes.items() if recipe == base), None)
        self._rows = [
            Row(name, f"{key}={value}", recipe, None if name == own else own)
            for value, (name, recipe) in zip(values, recipes.items(), strict=True)
        ]
        super().__init__(base, seeds=seeds, folder=folder)

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows
