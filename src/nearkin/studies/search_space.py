"""What a search over hyper-parameters may vary: ranges and choices for keys of a recipe, as Optuna's distributions."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from nearkin.errors import RecipeError, did_you_mean, mistakes_in, require
from nearkin.recipe import INDIFFERENT, Recipe, flat, recipes_folder
from nearkin.recipe.reading import read_yaml
from nearkin.training.recipe_check import load_recipe, validate

ENDING = ".space.yml"

FIXED = (*INDIFFERENT, "data.source", "data.unreadable_tolerance", "training.seed")
"""With all of ``protocol``: what is no hyper-parameter, or would make the trials' scores hard to compare."""

Space = dict[str, Any]
"""Optuna's distributions by the keys of a recipe; choices are YAML texts."""

_RANGE = re.compile(r"^\s*(?P<low>[^,\[\]:]+?)\s*\.\.\s*(?P<high>[^,\[\]:]+?)\s*(?P<log>:log)?$")


def read_space(texts: Iterable[str | Path], recipe: Recipe) -> Space:
    """The space that ``key=low..high[:log]``, ``key=a,b,c`` and files describe, typed as the recipe's keys are.

    A file holds the same in YAML: ``method: {proximal_weight: 1e-5..1e-2:log, proxies_per_class: 1..8}``; lists are
    choices. Files that come with nearkin are given by name, such as ``ccp``.

    >>> recipe = load_recipe({"objective": "contrastive", "method": "ccp"})
    >>> read_space(["method.proximal_weight=1e-5..1e-2:log"], recipe)
    {'method.proximal_weight': FloatDistribution(high=0.01, log=True, low=1e-05, step=None)}
    >>> read_space(["method.proximal=0..1"], recipe)
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: method.proximal=0..1: unknown key 'method.proximal' for ccp: ...
    """
    written: dict[str, Any] = {}
    parsed: dict[str, list[Any]] = {}
    for text in texts:
        for key, values in _entries(text).items():
            if key in written:
                raise RecipeError(f"{key} is in the space twice")
            with mistakes_in(f"{key}={values}"):
                written[key], parsed[key] = values, _written_values(key, values)
    if not written:
        raise RecipeError("the space is empty: give at least one key, such as training.learning_rate=1e-5..1e-2:log")
    firsts = {key: _yaml_text(values[0]) for key, values in parsed.items()}
    space = {}
    for key, values in parsed.items():
        with mistakes_in(f"{key}={written[key]}"):
            typed = [_typed(key, _yaml_text(value), recipe, firsts) for value in values]
            space[key] = _distribution(key, typed, _RANGE.match(str(written[key])))
    return space


def check_space(space: Space, recipe: Recipe) -> None:
    """Refuse a space in which an end of a range or a choice makes a recipe that cannot be trained."""
    ends = {key: listed_values(values) or [values.low, values.high] for key, values in space.items()}
    for key, values in ends.items():
        for value in values if len(values) <= 64 else (values[0], values[-1]):
            point = {other: value if other == key else ends[other][0] for other in space}
            try:
                validate(recipe_at(recipe, point))
            except ValueError as error:
                listing = " ".join(f"{name}={value_text(chosen)}" for name, chosen in point.items())
                raise RecipeError(f"the space holds {listing}, and that cannot be trained: {error}") from error


def recipe_at(recipe: Recipe, point: Mapping[str, Any]) -> Recipe:
    """``recipe`` with the values of a point of the space."""
    # Another loss or method clears the options that stand there, so names go first.
    ordered = sorted(point.items(), key=lambda item: not item[0].endswith(".name"))
    return load_recipe(recipe.as_mapping(), [f"{key}={value_text(value)}" for key, value in ordered])


def value_text(value: Any) -> str:
    """A value as a recipe gets it: fractions with four digits, which people can read and type.

    >>> value_text(0.000348712398), value_text(8), value_text("[0.2, 1]")
    ('0.0003487', '8', '[0.2, 1]')
    """
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def listed_values(distribution: Any) -> list[Any] | None:
    """Every value where they can be counted; None for a range of fractions."""
    if hasattr(distribution, "choices"):
        return list(distribution.choices)
    return list(range(distribution.low, distribution.high + 1)) if isinstance(distribution.low, int) else None


def grid(space: Space) -> list[dict[str, Any]]:
    """Every combination of values, the first key's changing slowest."""
    axes = []
    for key, distribution in space.items():
        axes.append(listed_values(distribution) or [])
        if not axes[-1]:
            raise RecipeError(f"a grid needs values, and {key} is a range of fractions: list them as {key}=a,b,c")
    return [dict(zip(space, point, strict=True)) for point in itertools.product(*axes)]


def _entries(text: str | Path) -> dict[str, Any]:
    """Keys and what is written for them, from one argument."""
    names = {file.name.removesuffix(ENDING): file for file in (recipes_folder() / "spaces").glob(f"*{ENDING}")}
    key, equals, written = str(text).partition("=")
    if Path(text).is_file() or str(text) in names:
        return flat(read_yaml(names.get(str(text), Path(text))))
    if equals:
        return {key.strip(): written}
    raise RecipeError(
        f"no space {str(text)!r}: write key=low..high, key=low..high:log or key=a,b,c, or name a file or one of "
        f"nearkin's; {did_you_mean(str(text), names)}"
    )


def _written_values(key: str, written: Any) -> list[Any]:
    """The two ends of a range or the values of a list."""
    if key in FIXED or key.startswith("protocol."):
        raise RecipeError(f"{key} is the same for all trials, or their scores could not be compared")
    if isinstance(written, str) and (match := _RANGE.match(written)):
        return [yaml.safe_load(match["low"]), yaml.safe_load(match["high"])]
    try:
        values = written if isinstance(written, list) else yaml.safe_load(f"[{written}]")
    except yaml.YAMLError:
        raise RecipeError("write a range as low..high or low..high:log, and choices as a,b,c") from None
    if len(values) < 2:
        raise RecipeError(f"one value is no search: give a range low..high or values a,b,c, or set {key} as a change")
    return list(values)


def _distribution(key: str, values: list[Any], is_range: re.Match[str] | None) -> Any:
    optuna = require("optuna.distributions", "tune")
    if is_range is None:
        texts = [_yaml_text(value) for value in values]
        if len(set(texts)) < len(texts):
            raise RecipeError("a value is listed twice")
        return optuna.CategoricalDistribution(texts)
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        raise RecipeError(f"a range is for numbers, and {key} takes no number there: list its values as a,b,c")
    (low, high), log = values, bool(is_range["log"])
    if not low < high or (log and not low > 0):
        raise RecipeError(f"a range goes from low to high, a logarithmic one from above 0, got {low:g}..{high:g}")
    whole = isinstance(low, int) and isinstance(high, int)
    return (optuna.IntDistribution if whole else optuna.FloatDistribution)(low, high, log=log)


def _typed(key: str, text: str, recipe: Recipe, firsts: Mapping[str, str]) -> Any:
    """A value as the recipe keeps it: ``1e-4`` as a float where the key is one."""
    try:
        made = recipe_at(recipe, {key: text})
    except RecipeError as alone:
        try:  # it may need another key of the space, as the option of a loss needs that loss
            made = recipe_at(recipe, {**firsts, key: text})
        except RecipeError:
            raise alone from None
    return functools.reduce(operator.getitem, key.split("."), made.as_mapping())


def _yaml_text(value: Any) -> str:
    """A value on one line, so that a recipe reads the same value back."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.removesuffix("...\n").strip()
