from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from nearkin.cli._recipe import changes_from, recipe_from, split_arguments
from nearkin.errors import RecipeError
from nearkin.training.recipes import load_recipe

SILENT = Console(file=io.StringIO())


def test_options_come_behind_the_changes_that_were_given():
    assert changes_from(["a=1"]) == ["a=1"]
    changes = changes_from(
        ["training.epochs=3"], data="own photos", epochs=0, root=Path("/sets"), device="cpu", class_folders="top"
    )
    recipe = load_recipe("glyphs/demo", changes)
    assert (recipe.data.source, recipe.data.root, recipe.data.class_folders) == ("own photos", "/sets", "top")
    assert (recipe.training.epochs, recipe.training.device) == (0, "cpu")


def test_a_name_and_changes_are_told_apart_by_the_sign():
    assert split_arguments(["x.y=1", "glyphs/demo", "a=b=c"], what="recipe") == ("glyphs/demo", ["x.y=1", "a=b=c"])
    assert split_arguments(None, what="recipe") == (None, [])
    with pytest.raises(RecipeError, match="one recipe at a time, got a, b; changes to it are written key=value"):
        split_arguments(["a", "k=1", "b"], what="recipe")


def test_a_named_recipe_takes_the_data_and_without_a_name_the_data_choose_one():
    named = recipe_from(["glyphs/demo", "training.seed=4"], "photos", SILENT, device="cpu")
    assert named == load_recipe("glyphs/demo", ["training.seed=4", "training.device=cpu", "data.source=photos"])
    own = recipe_from(["training.seed=4"], "photos", SILENT, epochs=2)
    assert (own.data.source, own.training.seed, own.training.epochs) == ("photos", 4, 2)
    with pytest.raises(RecipeError, match="what to train"):
        recipe_from(["training.seed=4"], None, SILENT)
