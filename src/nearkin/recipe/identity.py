"""What decides a run: the same notion for a recipe's hash, for its usual folder and for whether a run may go on."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nearkin.data.source import is_benchmark
from nearkin.recipe.recipe import Recipe

INDIFFERENT = (
    "training.device",
    "training.checkpoint_minutes",
    "training.tensorboard",
    "training.memory_check",
    "training.micro_batch",
    "training.compile",
    "data.root",
    "data.workers",
    "data.cache",
)
"""Keys that may differ when a run is resumed: they do not decide what is computed, but for rounding."""

LATER: Mapping[str, Any] = {
    "data.class_folders": None,
    "data.random_erasing": 0.0,
    "encoder.last_stride": None,
    "encoder.freeze_scale_and_shift": False,
    "encoder.head_init": "default",
    "encoder.head_bias": True,
    "training.stop_at_epoch": None,
    "training.weight_average": None,
    "training.pull_to_start": 0.0,
    "training.milestones": [],
    "training.beta2": 0.999,
    "training.min_learning_rate": 0.0,
    "training.stop_after": None,
    "protocol.validation_seed": None,
    "protocol.monitor_test": False,
    "protocol.flip": False,
    "protocol.test_size": None,
    "protocol.test_scale": 1.0,
    "protocol.scores": [],
}
"""Keys that came after recipes had names by their hash, with the defaults that leave it as it was."""

BEFORE: Mapping[str, Any] = {"training.evaluation_batch_size": 256}
"""Keys whose default is None by now, with the number that it was: the same to a hash and to a run that goes on."""

LOCATIONS = ("data.source", "encoder.weights")
"""Keys that say where something lies. It may have moved since a run began, which its content then has to show."""


def located(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths, so that it means the same from another working directory.

    >>> located(Recipe()).data.source
    'glyphs'
    >>> located(Recipe.from_mapping({"data": {"source": "."}})).data.source == os.getcwd()
    True
    """
    data, encoder = recipe.data, recipe.encoder
    source, root = _absolute(data.source), data.root and _absolute(data.root)
    if is_benchmark(data.source):
        source = data.source
        if root is None and not os.environ.get("NEARKIN_DATA") and Path("data").is_dir():
            root = _absolute("data")  # what nearkin.data.source.data_root takes from here
    family, colon, model = encoder.backbone.partition(":")
    backbone = f"{family}:{_absolute(model)}" if colon else encoder.backbone
    weights = encoder.weights and (encoder.weights if encoder.weights == "imagenet" else _absolute(encoder.weights))
    return recipe.but(
        {"data.source": source, "data.root": root, "encoder.backbone": backbone, "encoder.weights": weights}
    )


def deciding(recipe: Recipe, *, besides: Iterable[str] = ()) -> dict[str, Any]:
    """What decides a run, as ``section.key: value`` with absolute paths; ``besides`` leaves out further keys."""
    ignored = {*INDIFFERENT, *besides}
    known = flat(located(recipe).as_mapping())
    known |= {key: value for key, value in BEFORE.items() if known[key] is None}
    return {key: value for key, value in known.items() if key not in ignored}


def fingerprint(recipe: Recipe, *, besides: Iterable[str] = ()) -> str:
    """A short hash of what decides a run.

    >>> fingerprint(Recipe()) == fingerprint(Recipe.from_mapping({"training": {"device": "cpu"}}))
    True
    """
    known = deciding(recipe, besides=besides)
    return short_hash({key: value for key, value in known.items() if key not in LATER or value != LATER[key]})


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


def _absolute(path: str) -> str:
    """Only what is there becomes absolute: what is not was perhaps never meant as a path."""
    given = Path(path).expanduser()
    return os.path.abspath(given) if given.exists() else path
