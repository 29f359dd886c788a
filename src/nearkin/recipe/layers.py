"""A recipe file on top of the recipe that it names as its base, so that a file says only what differs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from nearkin.errors import RecipeError
from nearkin.recipe.shipped import find_recipe
from nearkin.suggest import did_you_mean

PARTS = ("objective", "method", "pair_loss", "weighting")
"""Keys with a name and its options: under another name the options of the base would not fit."""


def read_layers(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What a recipe file says, on top of its base, which may have one in turn.

    Args:
        file: may hold ``base:``, a path beside it or the name of a recipe that comes with nearkin.
        above: the files that it is the base of.
    """
    content = read_yaml(file)
    base = content.pop("base", None)
    if base is None:
        return content
    if not isinstance(base, str):
        raise RecipeError(f"{file}: 'base' must name one recipe, got {base!r}")
    try:
        found = find_recipe(base, beside=file.parent)
    except RecipeError as error:
        raise RecipeError(f"{file} has no base to stand on: {error}") from error
    chain = (*above, file)
    if any(found.samefile(each) for each in chain):
        raise RecipeError(f"recipes are bases of each other: {' → '.join(str(each) for each in (*chain, found))}")
    return layered(read_layers(found, chain), content)


def layered(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values with others on top.

    >>> layered({"training": {"epochs": 5, "batch_size": 8}}, {"training": {"epochs": 6}})
    {'training': {'epochs': 6, 'batch_size': 8}}
    >>> layered({"objective": {"name": "mpa", "gamma": 0.1}}, {"objective": {"name": "vcpa"}})
    {'objective': {'name': 'vcpa'}}
    """
    result = dict(base)
    for key, value in over.items():
        before = base.get(key)
        if key in PARTS:
            before, value = ({"name": each} if isinstance(each, str) else each for each in (before, value))
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            renamed = key in PARTS and value.get("name", before.get("name")) != before.get("name")
            value = value if renamed else layered(before, value)
        result[key] = value
    return result


def read_yaml(file: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; none where it is empty."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{file} is not valid YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise RecipeError(f"{file} must hold keys and values, got {content!r}")
    return content


def check_keys(given: Any, known: Collection[str], what: str = "keys and values") -> None:
    """Refuse what is no mapping, and keys that nobody reads."""
    if not isinstance(given, Mapping):
        raise RecipeError(f"must hold {what}, got {given!r}")
    for key in given:
        if key not in known:
            raise RecipeError(f"unknown key {key!r}: {did_you_mean(str(key), known)}")
