"""Reading recipes: from a file, a mapping and overrides to typed values that lie in their ranges.

A recipe is a YAML file with the sections ``data``, ``encoder``, ``objective``, ``method``, ``training`` and
``protocol``. It may name another recipe as its ``base`` and then holds only what differs. The options of losses and
methods are checked later, by :func:`nearkin.training.recipe_check.load_recipe`.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from nearkin.errors import RecipeError, did_you_mean
from nearkin.recipe.recipe import PartSection, Recipe, coerce_fields, keys_named

PARTS = ("objective", "method", "pair_loss", "weighting")
"""Keys that hold a name and its options; with another name, the options of the base no longer apply."""
PAPERS = "papers"
"""The folder of the papers' recipes. Their names leave it out: ``ccp/c2`` is ``papers/ccp/c2.yaml``."""


def read_recipe(mapping: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from nested mappings; overrides are ``section.key=value``.

    >>> read_recipe({"training": {"batch_size": 32}}, ["training.epochs=5"]).training.epochs
    5
    >>> read_recipe({}, ["training.epoch=5"])
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: unknown key 'training.epoch': did you mean 'epochs'? Valid: ...
    """
    merged = _with_overrides(mapping, overrides)
    sections = get_type_hints(Recipe)
    for name in merged:
        if name not in sections:
            raise RecipeError(f"unknown section {name!r}: {did_you_mean(name, sections)}")
    recipe = Recipe(**{name: _section(sections[name], content, name) for name, content in merged.items()})
    training, protocol = recipe.training, recipe.protocol
    if protocol.fold >= protocol.folds:
        raise RecipeError(f"protocol.fold must be below protocol.folds ({protocol.folds}), got {protocol.fold}")
    if training.sampler == "balanced" and training.batch_size % training.images_per_class:
        raise RecipeError(
            f"a balanced batch needs training.batch_size ({training.batch_size}) to be a multiple of "
            f"training.images_per_class ({training.images_per_class})"
        )
    return recipe


def read_part(content: Any, where: str) -> PartSection:
    """A part from its name, or from a mapping of its name and options."""
    if isinstance(content, PartSection):
        return content
    if isinstance(content, str):
        return PartSection(content)
    if not isinstance(content, Mapping) or "name" not in content:
        raise RecipeError(f"section {where!r} needs a name, got {content!r}")
    return PartSection(str(content["name"]), {key: value for key, value in content.items() if key != "name"})


def parse_override(text: str) -> tuple[list[str], Any]:
    """``"training.epochs=5"`` as the path ``["training", "epochs"]`` and the value 5.

    >>> parse_override("training.epochs=5")
    (['training', 'epochs'], 5)
    """
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise RecipeError(f"an override is written section.key=value, for instance training.epochs=5; got {text!r}")
    try:
        parsed = yaml.safe_load(value) if value.strip() else value
    except yaml.YAMLError as error:
        raise RecipeError(f"cannot read the value of {key!r}: {value!r} ({error})") from error
    return key.strip().split("."), parsed


def _with_overrides(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    merged = dict(mapping)
    for text in overrides:
        path, value = parse_override(text)
        if len(path) < 2:
            meant = " or ".join(f"{key}={text.partition('=')[2]}" for key in keys_named(path[0])) or "training.epochs=5"
            raise RecipeError(f"an override names a section and a key, such as {meant}; got {text!r}")
        # A mapping replaces the one that is there, so that encoder.options={} clears the options.
        for change in (None, value) if isinstance(value, Mapping) else (value,):
            merged = layered(merged, _nested(path, change))
    return merged


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


def _section(cls: type[Any], content: Any, where: str) -> Any:
    if cls is PartSection:
        return read_part(content, where)
    if content is None:
        return cls()
    if not isinstance(content, Mapping):
        raise RecipeError(f"section {where!r} must hold keys and values, got {content!r}")
    return cls(**coerce_fields(content, cls, where))


def read_layers(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a recipe file, merged over its base, which may have a base in turn.

    Args:
        file: may hold ``base:``, a path next to it or the name of a shipped recipe.
        above: the files that build on this one, to detect a cycle.
    """
    content = read_yaml(file)
    base = content.pop("base", None)
    if base is None:
        return content
    if not isinstance(base, str):
        raise RecipeError(f"{file}: 'base' must name one recipe, got {base!r}")
    try:
        base_file = find_recipe(base, near=file.parent)
    except RecipeError as error:
        raise RecipeError(f"the base of {file} is missing: {error}") from error
    chain = (*above, file)
    if any(base_file.samefile(path) for path in chain):
        raise RecipeError(f"recipes are bases of each other: {' → '.join(str(path) for path in (*chain, base_file))}")
    return layered(read_layers(base_file, chain), content)


def layered(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values, with those of ``over`` replacing those of ``base``.

    >>> layered({"training": {"epochs": 5, "batch_size": 8}}, {"training": {"epochs": 6}})
    {'training': {'epochs': 6, 'batch_size': 8}}
    >>> layered({"objective": {"name": "mpa", "gamma": 0.1}}, {"objective": {"name": "vcpa"}})
    {'objective': {'name': 'vcpa'}}
    """
    result = dict(base)
    for key, value in over.items():
        before = base.get(key)
        if key in PARTS:
            before, value = ({"name": part} if isinstance(part, str) else part for part in (before, value))
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            renamed = key in PARTS and value.get("name", before.get("name")) != before.get("name")
            value = value if renamed else layered(before, value)
        result[key] = value
    return result


def read_yaml(file: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; an empty file has none."""
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
    """Refuse anything but a mapping, and unknown keys."""
    if not isinstance(given, Mapping):
        raise RecipeError(f"must hold {what}, got {given!r}")
    for key in given:
        if key not in known:
            raise RecipeError(f"unknown key {key!r}: {did_you_mean(str(key), known)}")


def find_recipe(path: str | Path, *, near: Path | None = None) -> Path:
    """The file of a recipe given by path or by name.

    Args:
        path: of a file, or the name of a shipped recipe, such as ``ccp/c2``.
        near: a folder that is searched first, with and without the suffix ``.yaml``.
    """
    shipped, parent = recipes_folder(), Path(path).parent
    names = (str(path), f"{path}.yaml")
    first = [Path(path)] if near is None else [near / name for name in names]
    for candidate in (*first, *(folder / name for folder in (shipped, shipped / PAPERS) for name in names)):
        if candidate.is_file():
            return candidate
    if Path(path).is_dir():
        raise RecipeError(f"{str(path)!r} is a folder, not a recipe: images are given with --data, a run with --resume")
    valid = [str(file.parent) for file in parent.glob("*/recipe.yaml")] + [str(file) for file in parent.glob("*.yaml")]
    valid += shipped_recipes() if parent == Path() or not valid else ()
    raise RecipeError(
        f"no recipe {str(path)!r}, neither as a file nor by name (nearkin list recipes shows them): "
        f"{did_you_mean(str(path), valid)}"
    )


def shipped_recipes() -> dict[str, Path]:
    """Every recipe by its name. Files whose names begin with an underscore only serve as bases and are left out."""
    folder = recipes_folder()
    files = (file for file in folder.rglob("*.yaml") if not file.name.startswith("_"))
    named = {file.relative_to(folder).with_suffix("").as_posix().removeprefix(f"{PAPERS}/"): file for file in files}
    return dict(sorted(named.items()))


def recipes_folder() -> Path:
    """The folder of the shipped recipes: inside the installed package, or at the top of the source tree."""
    packaged = Path(str(importlib.resources.files("nearkin"))) / "recipes"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "recipes"
