"""Recipes: typed sections, how they are read from files and overridden, and what makes two of them the same."""

from nearkin.recipe.reading import find_recipe as find_recipe
from nearkin.recipe.reading import recipes_folder as recipes_folder
from nearkin.recipe.reading import shipped_recipes as shipped_recipes
from nearkin.recipe.recipe import INDIFFERENT as INDIFFERENT
from nearkin.recipe.recipe import LENGTH as LENGTH
from nearkin.recipe.recipe import LOCATIONS as LOCATIONS
from nearkin.recipe.recipe import DataSection as DataSection
from nearkin.recipe.recipe import EncoderSection as EncoderSection
from nearkin.recipe.recipe import PartSection as PartSection
from nearkin.recipe.recipe import ProtocolSection as ProtocolSection
from nearkin.recipe.recipe import Recipe as Recipe
from nearkin.recipe.recipe import TrainingSection as TrainingSection
from nearkin.recipe.recipe import coerce as coerce
from nearkin.recipe.recipe import coerce_fields as coerce_fields
from nearkin.recipe.recipe import deciding as deciding
from nearkin.recipe.recipe import differences as differences
from nearkin.recipe.recipe import fingerprint as fingerprint
from nearkin.recipe.recipe import flat as flat
from nearkin.recipe.recipe import short_hash as short_hash
