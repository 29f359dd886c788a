"""From what a YAML file or a command line holds to the type that a field declares, or an error that names both."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from nearkin.errors import RecipeError, did_you_mean


def coerce(value: Any, kind: Any, where: str) -> Any:
    """``value`` as ``kind``; ``where`` names the field in the error message.

    YAML reads ``1e-4`` as a string and a command line gives nothing but strings, so numbers are accepted in any
    spelling; a fraction is never cut to fit an integer.

    >>> coerce("1e-4", float, "training.learning_rate")
    0.0001
    >>> coerce([0.16, 1], tuple[float, float], "data.crop_scale")
    (0.16, 1.0)
    >>> coerce(1.5, int, "training.epochs")
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: training.epochs must be a whole number, got 1.5
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Literal:
        if value in arguments:
            return value
        raise RecipeError(f"{where} must be one of {', '.join(map(str, arguments))}, got {value!r}")
    if origin in (Union, types.UnionType):
        return _coerce_union(value, arguments, where)
    if origin is tuple:
        return _coerce_tuple(value, arguments, where)
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        if isinstance(value, Mapping):
            for key, item in value.items():
                if isinstance(item, float):
                    coerce(item, float, f"{where}.{key}")
            return dict(value)
        raise RecipeError(f"{where} must be a mapping of names to values, got {value!r}")
    return _coerce_scalar(value, kind, where)


def coerce_fields(values: Mapping[str, Any], section: type, where: str) -> dict[str, Any]:
    """``values`` in the types that the fields of ``section`` declare; a key that is none of them is refused."""
    types_of = get_type_hints(section)
    for key in values:
        if key not in types_of:
            raise RecipeError(f"unknown key '{where}.{key}': {did_you_mean(str(key), types_of)}")
    return {key: coerce(value, types_of[key], f"{where}.{key}") for key, value in values.items()}


def _coerce_union(value: Any, arguments: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in arguments:
        return None
    problems = []
    for option in arguments:
        if option is type(None):
            continue
        try:
            return coerce(value, option, where)
        except RecipeError as error:
            problems.append(str(error))
    raise RecipeError(problems[0])


def _coerce_tuple(value: Any, arguments: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if isinstance(value, (str, int, float)) and len(arguments) == 2 and arguments[1] is Ellipsis:
        value = [value]
    if not isinstance(value, (list, tuple)):
        raise RecipeError(f"{where} must be a list, got {value!r}")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(coerce(item, arguments[0], where) for item in value)
    if len(value) != len(arguments):
        raise RecipeError(f"{where} must be a list of {len(arguments)} values, got {value!r}")
    return tuple(coerce(item, kind, where) for item, kind in zip(value, arguments, strict=True))


def _coerce_scalar(value: Any, kind: Any, where: str) -> Any:
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise RecipeError(f"{where} must be true or false, got {value!r}")
    if kind in (int, float):
        try:
            number = float(value) if not isinstance(value, bool) else None
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise RecipeError(f"{where} must be a number, got {value!r}")
        if kind is float:
            if not math.isfinite(number):
                raise RecipeError(f"{where} must be a finite number, got {value!r}")
            return number
        if not math.isfinite(number) or number != int(number):
            raise RecipeError(f"{where} must be a whole number, got {value!r}")
        return int(value) if isinstance(value, int) else int(number)
    if kind is str:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
        raise RecipeError(f"{where} must be text, got {value!r}")
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise RecipeError(f"{where} cannot be set from a recipe")
