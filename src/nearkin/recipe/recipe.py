"""A whole run as one frozen value.

Everything stands on this class, so it imports nothing that does: how a recipe is read and what makes two of them the
same is looked up when it is asked for.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nearkin.errors import RecipeError
from nearkin.recipe.coerce import coerce_fields
from nearkin.recipe.sections import DataSection, EncoderSection, PartSection, ProtocolSection, TrainingSection


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
        from nearkin.recipe.reading import read_mapping

        return read_mapping(mapping, overrides)

    @classmethod
    def load(cls, path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
        """Read a recipe file, or one of the recipes that come with nearkin by its name (``glyphs/demo``)."""
        from nearkin.recipe.reading import read_file

        return read_file(path, overrides)

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
        from nearkin.recipe.identity import fingerprint

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


def _flatten_part(part: dict[str, Any]) -> dict[str, Any]:
    options = {
        key: _flatten_part(value) if isinstance(value, dict) and set(value) == {"name", "options"} else value
        for key, value in part["options"].items()
    }
    return {"name": part["name"], **options}
