"""Recipes: typed sections, how they are read from files and overridden, and what makes two of them the same."""

from nearkin.recipe.reading import find_recipe, recipes_folder, shipped_recipes
from nearkin.recipe.recipe import (
    INDIFFERENT,
    LENGTH,
    LOCATIONS,
    DataSection,
    EncoderSection,
    PartSection,
    ProtocolSection,
    Recipe,
    TrainingSection,
    coerce,
    coerce_fields,
    deciding,
    differences,
    fingerprint,
    flat,
    short_hash,
)

__all__ = [
    "INDIFFERENT",
    "LENGTH",
    "LOCATIONS",
    "DataSection",
    "EncoderSection",
    "PartSection",
    "ProtocolSection",
    "Recipe",
    "TrainingSection",
    "coerce",
    "coerce_fields",
    "deciding",
    "differences",
    "find_recipe",
    "fingerprint",
    "flat",
    "recipes_folder",
    "shipped_recipes",
    "short_hash",
]
