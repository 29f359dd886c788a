"""From a file, a mapping and a command line to a recipe, checked before any work starts.

A recipe is a YAML file with the sections ``data``, ``encoder``, ``objective``, ``method``, ``training`` and
``protocol``. This is where both are known: what a recipe says, and which losses and methods there are.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from nearkin import losses, methods
from nearkin.catalogue import keyword_options
from nearkin.errors import RecipeError
from nearkin.recipe.coerce import coerce, coerce_fields, parse_override
from nearkin.recipe.layers import read_layers
from nearkin.recipe.recipe import Recipe
from nearkin.recipe.rules import check_values
from nearkin.recipe.sections import DataSection, EncoderSection, PartSection, ProtocolSection, TrainingSection
from nearkin.recipe.shipped import find_recipe
from nearkin.suggest import did_you_mean

Section = TypeVar("Section")


def read_mapping(mapping: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from nested mappings and ``section.key=value`` overrides."""
    merged = _merge(mapping, overrides)
    sections = {f.name for f in dataclasses.fields(Recipe)}
    for name in merged:
        if name not in sections:
            raise RecipeError(f"unknown section {name!r}: {did_you_mean(name, sections)}")
    recipe = Recipe(
        data=_section(DataSection, merged.get("data"), "data"),
        encoder=_section(EncoderSection, merged.get("encoder"), "encoder"),
        objective=_objective(merged.get("objective", {"name": "proxy_anchor"}), "objective"),
        method=_part(merged.get("method", {"name": "plain"}), "method", methods.catalogue()),
        training=_section(TrainingSection, merged.get("training"), "training"),
        protocol=_section(ProtocolSection, merged.get("protocol"), "protocol"),
    )
    check_values(recipe)
    return recipe


def read_file(path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from a file, or by the name of one that comes with nearkin."""
    file = find_recipe(path)
    content = read_layers(file)
    try:
        return read_mapping(content, overrides)
    except RecipeError as error:
        raise RecipeError(f"{file.name}: {error}") from error


def _merge(mapping: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    merged: dict[str, Any] = json.loads(json.dumps(mapping))
    for text in overrides:
        path, value = parse_override(text)
        if len(path) < 2:
            raise RecipeError(f"an override names a section and a key, such as training.epochs=5; got {text!r}")
        if path[0] in ("objective", "method") and path[1:] == ["name"] and merged.get(path[0], {}).get("name") != value:
            merged[path[0]] = {}  # options of another part would not fit this one
        here = merged
        for step in path[:-1]:
            if here.get(step) is None:
                here[step] = {}
            here = here[step]
            if not isinstance(here, dict):
                raise RecipeError(f"{text!r}: {step!r} holds a value, not further keys")
        here[path[-1]] = value
    return merged


def _section(cls: type[Section], content: Any, where: str) -> Section:
    if content is None:
        return cls()
    if not isinstance(content, Mapping):
        raise RecipeError(f"section {where!r} must hold keys and values, got {content!r}")
    return cls(**coerce_fields(content, cls, where))


def _part(content: Any, where: str, parts: Mapping[str, type]) -> PartSection:
    if isinstance(content, str):
        content = {"name": content}
    if not isinstance(content, Mapping) or "name" not in content:
        raise RecipeError(f"section {where!r} needs a name: {did_you_mean('', parts)}")
    name = str(content["name"])
    if name not in parts:
        raise RecipeError(f"unknown {where} {name!r}: {did_you_mean(name, parts)}")
    known = keyword_options(parts[name])
    values = {}
    for key, value in content.items():
        if key == "name":
            continue
        if key not in known:
            raise RecipeError(f"unknown key '{where}.{key}' for {name}: {did_you_mean(str(key), ['name', *known])}")
        values[key] = coerce(value, known[key].annotation, f"{where}.{key}")
    lacking = [key for key, p in known.items() if p.default is inspect.Parameter.empty and key not in values]
    if lacking:
        raise RecipeError(f"{where} {name!r} needs {', '.join(f'{where}.{key}' for key in lacking)}")
    return PartSection(name, values)


def _objective(content: Any, where: str) -> PartSection:
    """A loss with its options; a wrapper's ``pair_loss`` and a loss's ``weighting`` are parts inside the part."""
    if isinstance(content, Mapping):
        nested = {key: content[key] for key in ("pair_loss", "weighting") if key in content}
        content = {key: value for key, value in content.items() if key not in nested}
    else:
        nested = {}
    section = _part(content, where, losses.catalogue())
    loss = losses.catalogue()[section.name]
    if losses.kind(loss) == "wrapper":
        inner = _objective(nested.pop("pair_loss", {"name": "contrastive"}), f"{where}.pair_loss")
        if losses.kind(losses.catalogue()[inner.name]) != "pair":
            raise RecipeError(f"{where}.pair_loss must be a pair loss, got {inner.name!r}")
        section = PartSection(section.name, {**section.options, "pair_loss": inner})
    if "weighting" in nested and "weighting" in losses.options(loss):
        weighting = nested.pop("weighting")
        if weighting is not None:
            content = {"name": "isa", **weighting} if isinstance(weighting, Mapping) else weighting
            part = _part(content, f"{where}.weighting", losses.weightings())
            section = PartSection(section.name, {**section.options, "weighting": part})
    if nested:
        raise RecipeError(f"{section.name} takes no {' or '.join(nested)}")
    return section
