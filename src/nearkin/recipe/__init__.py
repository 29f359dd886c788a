"""Recipes: their sections, how they are read, what makes two of them the same, and those that come with nearkin."""

from nearkin.recipe.recipe import Recipe
from nearkin.recipe.sections import DataSection, EncoderSection, PartSection, ProtocolSection, TrainingSection
from nearkin.recipe.shipped import find_recipe, recipes_folder, shipped_recipes

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
