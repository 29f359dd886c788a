"""What decides a run: one notion for a recipe's hash, for its usual folder and for whether a run may be resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from nearkin.recipe.recipe import Recipe

INDIFFERENT = (
    "training.device",
    "training.checkpoint_minutes",
    "training.tensorboard",
    "training.micro_batch",
    "training.cuda_graphs",
    "data.root",
    "data.workers",
    "data.cache",
)
"""Keys that may differ when a run is resumed: they do not decide what is computed, but for rounding."""

LOCATIONS = ("data.source", "encoder.weights")
"""Keys that say where something lies. It may have moved since a run began, which its content then has to show."""


def deciding(recipe: Recipe, *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """What decides a run, as ``section.key: value``; ``besides`` leaves out further keys."""
    ignored = {*INDIFFERENT, *besides}
    return {key: value for key, value in flat(recipe.as_mapping()).items() if key not in ignored}


def fingerprint(recipe: Recipe, *, besides: Iterable[str] = ()) -> str:
    """A short hash of what decides a run.

    >>> fingerprint(Recipe()) == fingerprint(Recipe().with_changes({"training.device": "cpu"}))
    True
    """
    return short_hash(deciding(recipe, besides=besides))


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """By key, what each of two recipes, as :func:`deciding` gives them, has otherwise.

    >>> differences({"training.seed": 0, "encoder.dim": 8}, {"training.seed": 1, "encoder.dim": 8})
    {'training.seed': 'training.seed was 0, is 1'}
    """
    changed = sorted(key for key in before.keys() | now.keys() if before.get(key) != now.get(key))
    # Without data.class_folders folders cannot lie inside each other, and then any value of it means the same.
    changed = [key for key in changed if key != "data.class_folders" or None not in (before.get(key), now.get(key))]
    return {key: f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in changed}


def flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots.

    >>> flat({"training": {"seed": 0}, "encoder": {"options": {}}})
    {'training.seed': 0, 'encoder.options': {}}
    """
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def short_hash(content: Any) -> str:
    """Eight hexadecimal digits for plain values."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]
