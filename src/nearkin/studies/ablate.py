"""A recipe, and the same recipe with one change at a time: what each of its parts is worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nearkin.errors import RecipeError
from nearkin.recipe import Recipe
from nearkin.studies.compare.row_study import RowStudy
from nearkin.studies.study import Row
from nearkin.training.recipes import load_recipe

__all__ = ["Ablate"]


class Ablate(RowStudy):
    """A recipe and several changes to it, one at a time, each held against the recipe itself.

    Args:
        base: the recipe.
        changes: such as ``data.random_erasing=0``; those that belong together are joined by an ampersand.
        seeds: runs of the recipe and of each change.
        folder: where everything goes.

    Example:
        >>> changes = ("training.max_grad_norm=10", "training.batch_size=64&training.learning_rate=5e-5")
        >>> study = Ablate(load_recipe("glyphs/demo"), changes=changes, seeds=1)
        >>> [(row.name, row.base) for row in study.rows]
        [('as_it_is', None), ('max_grad_norm-10', 'as_it_is'), ('batch_size-64-learning_rate-5e-5', 'as_it_is')]
    """

    def __init__(
        self, base: Recipe, *, changes: tuple[str, ...], seeds: int = 3, folder: str | Path | None = None
    ) -> None:
        own = Row("as_it_is", "As it is", base, None)
        self._rows = [own]
        for text in changes:
            parts = text.split("&")
            recipe = load_recipe(base.as_mapping(), parts)
            if recipe == base:
                raise RecipeError(f"{text} changes nothing: the recipe has it already")
            name = "-".join(part.partition("=")[0].rpartition(".")[2] + "-" + part.partition("=")[2] for part in parts)
            self._rows.append(Row(name, ", ".join(parts), recipe, own.name))
        if len({row.name for row in self._rows}) < len(self._rows):
            raise RecipeError(f"the changes {', '.join(changes)} are not all different")
        super().__init__(base, seeds=seeds, folder=folder)

    @property
    def rows(self) -> Sequence[Row]:
        return self._rows
