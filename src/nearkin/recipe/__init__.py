"""Recipes: typed sections, how they are read from files and overridden, and what makes two of them the same."""

from nearkin.recipe.reading import find_recipe, recipes_folder, shipped_recipes
from nearkin.recipe.recipe import DataSection, EncoderSection, PartSection, ProtocolSection, Recipe, TrainingSection

__all__ = [
    "DataSection",
    "EncoderSection",
    "PartSection",
    "ProtocolSection",
    "Recipe",
    "TrainingSection",
    "find_recipe",
    "recipes_folder",
    "shipped_recipes",
]
