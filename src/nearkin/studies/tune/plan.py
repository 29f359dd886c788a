"""What is searched and how: a recipe, a space around it, who suggests the next point and who gives one up."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from nearkin.disk import write_atomically
from nearkin.errors import DataError, RecipeError
from nearkin.recipe import Recipe
from nearkin.recipe.identity import deciding, differences, short_hash
from nearkin.runs.default_folders import RUNS, default_folder
from nearkin.runs.folder import RunFolder
from nearkin.studies.tune.space import Space, check_space, read_space
from nearkin.training.recipes import load_recipe, validate

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["median", "halving", "none"]

WITH_VALIDATION = ("validation", "mlrc")
"""Protocols that hold out training classes to choose by."""
TRIALS = 20


@dataclass(frozen=True)
class Plan:
    """A search before it is carried out; with one job the same plan always takes the same course."""

    recipe: Recipe
    """What every trial starts from."""
    space: Space
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"
    seed: int = 0
    """Of the sampler. The models have the recipe's own."""
    seeds: int = 1
    """Models per trial, with the recipe's seed and those after it; their mean is the trial's score."""

    @classmethod
    def of(cls, recipe: Recipe, space: Space, sampler: Sampler, pruner: Pruner | None, seed: int, seeds: int) -> Plan:
        """Without a pruner named, a grid is gone through whole, and others give up trials below the median."""
        return cls(recipe, space, sampler, pruner or ("none" if sampler == "grid" else "median"), seed, seeds)

    def definition(self) -> dict[str, Any]:
        """The plan in plain values, the form that is saved with the search."""
        settings = {key: getattr(self, key) for key in ("sampler", "pruner", "seed", "seeds")}
        return {"recipe": self.recipe.as_mapping(), "space": [str(each) for each in self.space], **settings}

    @classmethod
    def read(cls, folder: str | Path) -> Plan:
        """The plan of a folder that a search was begun in."""
        file = plan_file(folder)
        if not file.is_file():
            raise DataError(f"{folder} holds no search, as it has no {file.name}: begin one with nearkin tune RECIPE")
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            recipe = load_recipe(content.pop("recipe"))
            return cls(recipe, read_space(content.pop("space"), recipe), **content)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{file} cannot be read ({error}): put it back from a copy, or search anew in another folder with -o"
            ) from error

    def grid(self) -> list[dict[str, Any]]:
        """Every combination of values, the first key's changing slowest.

        >>> recipe = load_recipe({})
        >>> Plan(recipe, read_space(["training.batch_size=8,16"], recipe)).grid()
        [{'training.batch_size': 8}, {'training.batch_size': 16}]
        """
        for dimension in self.space:
            if dimension.values is None:
                raise RecipeError(f"a grid goes through values and {dimension} has no end of them: list them as a,b,c")
        keys = [dimension.key for dimension in self.space]
        listed = itertools.product(*(dimension.values or () for dimension in self.space))
        return [dict(zip(keys, values, strict=True)) for values in listed]

    def trials(self, asked: int | None) -> int:
        """How many trials there are in all: as asked, 20 if not; a grid has no more than it has points."""
        if self.sampler == "grid":
            points = len(self.grid())
            return points if asked is None else min(asked, points)
        return TRIALS if asked is None else asked

    def values_of(self, suggested: Mapping[str, Any]) -> dict[str, Any]:
        """What Optuna suggests, as values for the recipe."""
        return {each.key: each.value_of(suggested[each.key]) for each in self.space}


def check_plan(plan: Plan) -> None:
    """Refuse, before any data are read, what cannot or must not be searched."""
    name = plan.recipe.protocol.name
    if name not in WITH_VALIDATION:
        why = "has no validation classes" if name == "in-distribution" else "chooses by the test images"
        raise RecipeError(
            f"a search scores validation classes only, and protocol.name={name} {why}: set protocol.name=validation, "
            f"or protocol.name=mlrc to hold out the class fold protocol.fold"
        )
    for key, kinds in (("sampler", Sampler), ("pruner", Pruner)):
        if getattr(plan, key) not in get_args(kinds):
            raise RecipeError(f"{key} must be one of {', '.join(get_args(kinds))}, got {getattr(plan, key)!r}")
    if plan.seeds < 1 or plan.seed < 0:
        raise RecipeError(f"seeds must be at least 1 and seed at least 0, got {plan.seeds} and {plan.seed}")
    if plan.sampler == "grid":
        plan.grid()
    validate(plan.recipe)
    check_space(plan.space, plan.recipe)


def default_tuning_folder(plan: Plan) -> Path:
    """``runs/tune-<data>-<objective>-<hash>``: the same plan always has the same folder.

    >>> recipe = load_recipe({})
    >>> default_tuning_folder(Plan(recipe, read_space(["training.batch_size=8,16"], recipe))).name[:25]
    'tune-glyphs-proxy_anchor-'
    """
    stem = default_folder(plan.recipe).name.rpartition("-")[0]
    return RUNS / f"tune-{stem}-{short_hash(_decisive(plan))}"


def check_folder(plan: Plan, folder: Path) -> None:
    """A folder is only gone on with by the plan it was begun with."""
    if plan_file(folder).exists():
        if changed := differences(_decisive(Plan.read(folder)), _decisive(plan)):
            raise RecipeError(
                f"{folder} holds another search ({'; '.join(changed.values())}): go on with the same command, in which "
                f"only --trials and --jobs may change, or give another folder with -o"
            )
    elif RunFolder(folder).is_begun:
        raise RecipeError(f"{folder} holds a run: give another folder for the search with -o")


def validate_plan(plan: Plan, folder: Path) -> None:
    """Write the plan into its folder."""
    check_folder(plan, folder)
    write_atomically(plan_file(folder), json.dumps(plan.definition(), indent=2, ensure_ascii=False).encode())


def plan_file(folder: str | Path) -> Path:
    return Path(folder) / "plan.json"


def _decisive(plan: Plan) -> dict[str, Any]:
    """What decides the course of a search, key by key: a recipe's device, for one, does not."""
    definition = plan.definition()
    return {**definition, "space": " ".join(definition["space"]), "recipe": None, **deciding(plan.recipe)}
