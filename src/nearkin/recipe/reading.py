"""Recipes: everything that decides how a run goes, checked before any work starts.

A recipe is a YAML file with the sections ``data``, ``encoder``, ``objective``, ``method``, ``training`` and
``protocol``. The resolved recipe is saved with the run.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from nearkin import losses, methods
from nearkin.errors import RecipeError
from nearkin.recipe.coerce import coerce, coerce_fields, parse_override
from nearkin.recipe.identity import fingerprint
from nearkin.recipe.rules import check_values
from nearkin.recipe.sections import DataSection, EncoderSection, PartSection, ProtocolSection, TrainingSection
from nearkin.recipe.shipped import find_recipe
from nearkin.suggest import did_you_mean

Section = TypeVar("Section")


@dataclass(frozen=True)
class Recipe:
    """A whole run.

    >>> recipe = Recipe.from_mapping({"objective": {"name": "proxy_anchor", "alpha": 16}}, ["training.epochs=5"])
    >>> recipe.objective.options, recipe.training.epochs
    ({'alpha': 16.0}, 5)
    >>> Recipe.from_mapping({}, ["training.epoch=5"])
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: unknown key 'training.epoch': did you mean 'epochs'? Valid: ...
    """

    data: DataSection = field(default_factory=DataSection)
    encoder: EncoderSection = field(default_factory=EncoderSection)
    objective: PartSection = field(default_factory=lambda: PartSection("proxy_anchor"))
    method: PartSection = field(default_factory=lambda: PartSection("plain"))
    training: TrainingSection = field(default_factory=TrainingSection)
    protocol: ProtocolSection = field(default_factory=ProtocolSection)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
        """Build and check a recipe from nested mappings and ``section.key=value`` overrides."""
        merged = _merge(mapping, overrides)
        sections = {f.name for f in dataclasses.fields(cls)}
        for name in merged:
            if name not in sections:
                raise RecipeError(f"unknown section {name!r}: {did_you_mean(name, sections)}")
        recipe = cls(
            data=_section(DataSection, merged.get("data"), "data"),
            encoder=_section(EncoderSection, merged.get("encoder"), "encoder"),
            objective=_objective(merged.get("objective", {"name": "proxy_anchor"}), "objective"),
            method=_part(merged.get("method", {"name": "plain"}), "method", methods.catalogue(), methods.options),
            training=_section(TrainingSection, merged.get("training"), "training"),
            protocol=_section(ProtocolSection, merged.get("protocol"), "protocol"),
        )
        check_values(recipe)
        return recipe

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
        """Read a recipe file, or one of the recipes that come with nearkin by its name (``glyphs/proxy_anchor``)."""
        file = find_recipe(path)
        try:
            content = yaml.safe_load(file.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise RecipeError(f"{file} is not valid YAML: {error}") from error
        if content is not None and not isinstance(content, dict):
            raise RecipeError(f"{file} must hold sections (data, encoder, …), got {type(content).__name__}")
        try:
            return cls.from_mapping(content or {}, overrides)
        except RecipeError as error:
            raise RecipeError(f"{file.name}: {error}") from error

    def as_mapping(self) -> dict[str, Any]:
        """Nested plain values, the form that is saved as YAML."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in ("objective", "method"):
            plain[name] = _flatten_part(plain[name])
        return plain

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.as_mapping(), sort_keys=False, allow_unicode=True)

    def fingerprint(self) -> str:
        """A short hash of everything that decides a run: the device, for one, does not."""
        return fingerprint(self)

    def replace(self, **sections: Any) -> Recipe:
        return dataclasses.replace(self, **sections)

    def but(self, changes: Mapping[str, Any]) -> Recipe:
        """The same recipe with single keys of its data, encoder, training or protocol changed.

        >>> Recipe().but({"training.seed": 3, "encoder.dim": 64}).training.seed
        3
        """
        kinds = {name: type(getattr(self, name)) for name in ("data", "encoder", "training", "protocol")}
        values: dict[str, dict[str, Any]] = {}
        for path, value in changes.items():
            name, _, key = path.partition(".")
            if name not in kinds:
                raise RecipeError(f"unknown key {path!r}: it is not in {', '.join(kinds)}")
            values.setdefault(name, {})[key] = value
        return self.replace(
            **{
                name: dataclasses.replace(getattr(self, name), **coerce_fields(keys, kinds[name], name))
                for name, keys in values.items()
            }
        )


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


def _part(content: Any, where: str, parts: Mapping[str, type], options_of: Any) -> PartSection:
    if isinstance(content, str):
        content = {"name": content}
    if not isinstance(content, Mapping) or "name" not in content:
        raise RecipeError(f"section {where!r} needs a name: {did_you_mean('', parts)}")
    name = str(content["name"])
    if name not in parts:
        raise RecipeError(f"unknown {where} {name!r}: {did_you_mean(name, parts)}")
    known: Mapping[str, inspect.Parameter] = options_of(parts[name])
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
    section = _part(content, where, losses.catalogue(), losses.options)
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
            part = _part(content, f"{where}.weighting", losses.weightings(), losses.options)
            section = PartSection(section.name, {**section.options, "weighting": part})
    if nested:
        raise RecipeError(f"{section.name} takes no {' or '.join(nested)}")
    return section


def _flatten_part(part: dict[str, Any]) -> dict[str, Any]:
    options = {
        key: _flatten_part(value) if isinstance(value, dict) and set(value) == {"name", "options"} else value
        for key, value in part["options"].items()
    }
    return {"name": part["name"], **options}
