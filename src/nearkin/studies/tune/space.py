"""What a search over hyper-parameters may vary: ranges and choices for keys of a recipe, checked before it starts."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nearkin.errors import RecipeError, did_you_mean, mistakes_in, require
from nearkin.recipe import Recipe, recipes_folder
from nearkin.recipe.identity import INDIFFERENT, flat
from nearkin.recipe.reading import read_yaml
from nearkin.training.recipes import load_recipe, validate

ENDING = ".space.yml"
"""Unlike a recipe, which ends in ``.yaml`` and can be trained."""

FIXED = (*INDIFFERENT, "data.source", "data.unreadable_tolerance", "training.seed", "protocol.validation_seed")
"""With all of ``protocol``: what is no hyper-parameter, or would make the trials' scores hard to compare."""

_RANGE = re.compile(r"^\s*(?P<low>[^,\[\]:]+?)\s*\.\.\s*(?P<high>[^,\[\]:]+?)\s*(?::(?P<scale>[^:]*))?$")
_DIGITS = 4
_MOST_VALUES, _MOST_CHECKS = 64, 256


@dataclass(frozen=True)
class Dimension:
    """A key of a recipe and the values it may take: a range from ``low`` to ``high``, or one of ``choices``."""

    key: str
    low: int | float = 0
    high: int | float = 0
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def is_numeric(self) -> bool:
        return not self.choices or all(_is_number(choice) for choice in self.choices)

    @property
    def values(self) -> list[Any] | None:
        """Every value where they can be counted; None for a range of fractions."""
        if self.choices:
            return list(self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return list(range(self.low, self.high + 1))
        return None

    def distribution(self) -> Any:
        """The same for Optuna. Choices are named by their YAML text, as Optuna keeps numbers and texts only."""
        distributions = require("optuna.distributions", "tune")
        if self.choices:
            return distributions.CategoricalDistribution([yaml_text(choice) for choice in self.choices])
        kind = distributions.IntDistribution if isinstance(self.low, int) else distributions.FloatDistribution
        return kind(self.low, self.high, log=self.log)

    def value_of(self, suggested: Any) -> Any:
        """What a recipe gets for a value that Optuna suggests: fractions with digits that people can read and type.

        >>> Dimension("training.learning_rate", 1e-5, 1e-2, log=True).value_of(0.000348712398)
        0.0003487
        """
        if self.choices:
            return next(choice for choice in self.choices if yaml_text(choice) == suggested)
        if isinstance(self.low, float):
            return min(max(float(f"{suggested:.{_DIGITS}g}"), self.low), self.high)
        return suggested

    def suggestion(self, value: Any) -> Any:
        """What Optuna calls one of :attr:`values`."""
        return yaml_text(value) if self.choices else value

    def __str__(self) -> str:
        if self.choices:
            return f"{self.key}={','.join(yaml_text(choice) for choice in self.choices)}"
        return f"{self.key}={self.low!r}..{self.high!r}{':log' if self.log else ''}"


Space = tuple[Dimension, ...]


def read_space(texts: Iterable[str | Path], recipe: Recipe) -> Space:
    """The space that ``key=low..high[:log]``, ``key=a,b,c`` and files describe, typed as the recipe's keys are.

    A file holds the same in YAML: ``method: {proximal_weight: 1e-5..1e-2:log, proxies_per_class: 1..8}``; lists are
    choices. Files that come with nearkin are given by name, such as ``ccp``.

    >>> recipe = load_recipe({"objective": "contrastive", "method": "ccp"})
    >>> [str(key) for key in read_space(["method.proximal_weight=1e-5..1e-2:log", "training.epochs=1,2"], recipe)]
    ['method.proximal_weight=1e-05..0.01:log', 'training.epochs=1,2']
    >>> read_space(["method.proximal=0..1"], recipe)
    Traceback (most recent call last):
    ...
    nearkin.errors.RecipeError: method.proximal=0..1: unknown key 'method.proximal' for ccp: ...
    """
    written: dict[str, Any] = {}
    for text in texts:
        for key, values in _entries(text).items():
            if key in written:
                raise RecipeError(f"{key} is in the space twice")
            written[key] = values
    if not written:
        raise RecipeError("the space is empty: give at least one key, such as training.learning_rate=1e-5..1e-2:log")
    raw: dict[str, list[Any]] = {}
    for key, values in written.items():
        with mistakes_in(_as_written(key, values)):
            raw[key] = _raw(key, values)
    first, found = {key: values[0] for key, values in raw.items()}, []
    for key, values in written.items():
        with mistakes_in(_as_written(key, values)):
            found.append(_dimension(key, values, [_typed(key, value, recipe, first) for value in raw[key]]))
    return tuple(found)


def check_space(space: Space, recipe: Recipe) -> None:
    """Refuse a space in which some value, or some pair of values, makes a recipe that cannot be followed."""
    ends = [dimension.values or [dimension.low, dimension.high] for dimension in space]
    ends = [values if len(values) <= _MOST_VALUES else [values[0], values[-1]] for values in ends]
    for chosen in _to_check(ends):
        values = dict(zip((dimension.key for dimension in space), chosen, strict=True))
        try:
            validate(with_values(recipe, values))
        except ValueError as error:
            listing = " ".join(f"{key}={shown(value)}" for key, value in values.items())
            raise RecipeError(f"the space holds {listing}, and that cannot be trained: {error}") from error


def with_values(recipe: Recipe, values: Mapping[str, Any]) -> Recipe:
    """``recipe`` with keys changed.

    >>> with_values(Recipe(), {"training.learning_rate": 1e-5}).training.learning_rate
    1e-05
    """
    # Another loss or method clears the options that stand there, so names go first.
    ordered = sorted(values.items(), key=lambda item: not item[0].endswith(".name"))
    return load_recipe(recipe.as_mapping(), [f"{key}={yaml_text(value)}" for key, value in ordered])


def yaml_text(value: Any) -> str:
    """A value on one line, so that a recipe reads the same value back.

    >>> yaml_text(1e-5), yaml_text([0.2, 1]), yaml_text(None)
    ('1.0e-05', '[0.2, 1]', 'null')
    """
    text: str = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def shown(value: Any) -> str:
    """A value as people write it.

    >>> shown(1e-5), shown(1.0), shown(8), shown([0.2, 1]), shown(None)
    ('1e-05', '1', '8', '[0.2, 1]', 'null')
    """
    return f"{value:g}" if isinstance(value, float) else yaml_text(value)


def _entries(text: str | Path) -> dict[str, Any]:
    """Keys and what is written for them, from one argument."""
    names = {file.name.removesuffix(ENDING): file for file in (recipes_folder() / "spaces").glob(f"*{ENDING}")}
    key, equals, written = str(text).partition("=")
    if Path(text).is_file() or str(text) in names:
        return flat(read_yaml(names.get(str(text), Path(text))))
    if equals:
        return {key.strip(): written}
    raise RecipeError(
        f"no space {str(text)!r}: write key=low..high, key=low..high:log or key=a,b,c, or name a file or one of those "
        f"that come with nearkin; {did_you_mean(str(text), names)}"
    )


def _as_written(key: str, written: Any) -> str:
    return f"{key}={written if isinstance(written, str) else yaml_text(written)}"


def _raw(key: str, written: Any) -> list[Any]:
    """The ends of a range or the values of a list, as YAML reads them."""
    if key in FIXED or key.startswith("protocol."):
        raise RecipeError(f"{key} is the same for all trials, or their scores could not be compared")
    if match := _as_range(written):
        return [yaml.safe_load(match["low"]), yaml.safe_load(match["high"])]
    try:
        values = written if isinstance(written, list) else yaml.safe_load(f"[{written}]")
    except yaml.YAMLError:
        values = None
    if not isinstance(values, list):
        raise RecipeError("write a range as low..high or low..high:log, and choices as a,b,c")
    if len(values) < 2:
        raise RecipeError(f"one value is no search: give a range low..high or values a,b,c, or set {key} as a change")
    return values


def _as_range(written: Any) -> re.Match[str] | None:
    return _RANGE.match(written) if isinstance(written, str) else None


def _dimension(key: str, written: Any, values: Sequence[Any]) -> Dimension:
    match = _as_range(written)
    if match is None:
        if len({yaml_text(value) for value in values}) < len(values):
            raise RecipeError("a value is listed twice")
        return Dimension(key, choices=tuple(values))
    if match["scale"] not in (None, "log"):
        raise RecipeError(f"a range ends in :log or in nothing, got :{match['scale']}")
    low, high = (_number(value, key) for value in values)
    if not low < high:
        raise RecipeError(f"a range goes from low to high, got {low:g}..{high:g}")
    if match["scale"] and not low > 0:
        raise RecipeError(f"a logarithmic range begins above 0, got {low:g}")
    if isinstance(low, float) or isinstance(high, float):
        low, high = float(low), float(high)
    return Dimension(key, low, high, bool(match["scale"]))


def _typed(key: str, value: Any, recipe: Recipe, first: Mapping[str, Any]) -> Any:
    """``value`` as the recipe keeps it: ``"1e-4"`` as a float where the key is one."""
    try:
        made = with_values(recipe, {key: value})
    except RecipeError as alone:
        try:  # it may need another key of the space, as the option of a loss needs that loss
            made = with_values(recipe, {**first, key: value})
        except RecipeError:
            raise alone from None
    return functools.reduce(operator.getitem, key.split("."), made.as_mapping())


def _number(value: Any, key: str) -> int | float:
    if isinstance(value, str) and key.startswith("encoder.options."):  # has no type, and to YAML 1e-4 is text
        with contextlib.suppress(ValueError):
            value = float(value)
    if not _is_number(value) or not math.isfinite(value):
        raise RecipeError(f"a range is for numbers, and {key} takes no number there: list its values as a,b,c")
    number: int | float = value
    return number


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _to_check(ends: Sequence[Sequence[Any]]) -> Iterator[tuple[Any, ...]]:
    """All combinations; where these are too many, every value beside the first of the others."""
    if math.prod(len(values) for values in ends) <= _MOST_CHECKS:
        yield from itertools.product(*ends)
        return
    first = [values[0] for values in ends]
    for place, values in enumerate(ends):
        for value in values:
            yield (*first[:place], value, *first[place + 1 :])
