"""Filters on items: ``{"label": ["tit"], "year": (2020, None)}`` as an SQL condition with parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nearkin.errors import RecipeError, did_you_mean

Where = Mapping[str, Any]
"""By field: a value, a list of alternatives, or a range (from, to) with None for an open end."""

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_TERM = re.compile(r"(?P<field>.+?)\s*(?P<sign><=|>=|==|!=|=|<|>)\s*(?P<value>.*)", flags=re.S)


@dataclass(frozen=True)
class Field:
    """A field to filter by: its column in the table, and whether it holds numbers."""

    column: str
    is_number: bool


def as_number(text: str) -> int | float | None:
    """The number that a text spells, or None; ``007`` is a name.

    >>> as_number("2020"), as_number("-1.5"), as_number("007"), as_number("1e999")
    (2020, -1.5, None, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    return float(text) if np.isfinite(float(text)) else None


def condition(where: Where, fields: Mapping[str, Field]) -> tuple[str, list[Any]]:
    """A condition in SQL and its parameters.

    >>> condition({"label": "tit", "year": (2020, None)}, {"label": Field("label", False), "year": Field("c0", True)})
    ('label = ? AND c0 >= ?', ['tit', 2020])
    """
    parts: list[str] = []
    parameters: list[Any] = []
    for name, wanted in where.items():
        if name not in fields:
            raise RecipeError(f"cannot filter by {name!r}: {did_you_mean(str(name), fields)}")
        column = fields[name].column
        if isinstance(wanted, tuple):
            if len(wanted) != 2:
                raise RecipeError(f"a range of {name!r} is a pair (from, to), got {wanted!r}; give a list for several")
            for sign, end in zip((">=", "<="), wanted, strict=True):
                if end is not None:
                    parts.append(f"{column} {sign} ?")
                    parameters.append(_value(name, end, fields[name]))
        elif isinstance(wanted, (list, set, frozenset)):
            parts.append(f"{column} IN (SELECT value FROM json_each(?))")
            parameters.append(json.dumps([_value(name, value, fields[name]) for value in wanted]))
        elif wanted is None:
            parts.append(f"{column} IS NULL")
        else:
            parts.append(f"{column} = ?")
            parameters.append(_value(name, wanted, fields[name]))
    return " AND ".join(parts) or "1", parameters


def parse_where(terms: Sequence[str]) -> Where:
    """The filters of a command line: ``label=tit`` (twice: either), ``year>=2020``, ``year<=2022``.

    >>> parse_where(["label=tit", "label=robin", "year>=2020"])
    {'label': ['tit', 'robin'], 'year': ('2020', None)}
    """
    where: dict[str, Any] = {}
    for term in terms:
        match = _TERM.fullmatch(term.strip())
        if match is None or match["sign"] in ("<", ">", "!="):
            raise RecipeError(f"cannot read the filter {term!r}: write FIELD=VALUE, 'FIELD>=VALUE' or 'FIELD<=VALUE'")
        field, sign, value = match["field"].strip(), match["sign"], match["value"]
        before, is_range = where.get(field), sign in ("<=", ">=")
        if before is not None and isinstance(before, tuple) != is_range:
            raise RecipeError(f"the filters on {field!r} ask for a range and for a value: give one of them")
        if not is_range:
            where[field] = [*(before or []), value]
        else:
            low, high = before or (None, None)
            where[field] = (value, high) if sign == ">=" else (low, value)
    return where


def _value(name: str, value: Any, field: Field) -> Any:
    if hasattr(value, "item"):  # a number of NumPy's
        value = value.item()
    if not field.is_number:
        if not isinstance(value, str):
            raise RecipeError(f"{name!r} holds text, got {value!r}: give it in quotes")
        return value
    number = as_number(value.strip()) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or number != number:
        raise RecipeError(f"{name!r} holds numbers, got {value!r}")
    return number
