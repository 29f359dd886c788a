from collections.abc import Mapping
from typing import Any, Literal

import pytest

from nearkin.errors import RecipeError
from nearkin.recipe import coerce
from nearkin.recipe.reading import parse_override


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ("1e-4", float, 1e-4),
        (3, float, 3.0),
        ("7", int, 7),
        (2.0, int, 2),
        (2**60 + 1, int, 2**60 + 1),
        (True, bool, True),
        (5, str, "5"),
        (None, int | None, None),
        ("2", int | None, 2),
        ([1, 2], tuple[int, ...], (1, 2)),
        (4, tuple[int, ...], (4,)),
        ([0.1, "1"], tuple[float, float], (0.1, 1.0)),
        ("adam", Literal["adam", "sgd"], "adam"),
        ({"a": 1}, Mapping[str, Any], {"a": 1}),
    ],
)
def test_values_become_the_declared_type(value, kind, expected):
    result = coerce(value, kind, "x")
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        ("abc", float, "must be a number"),
        (1.5, int, "whole number"),
        (True, int, "must be a number"),
        ("yes", bool, "true or false"),
        (1, bool, "true or false"),
        ("rms", Literal["adam", "sgd"], "one of adam, sgd"),
        ([1], tuple[float, float], "list of 2"),
        ("x", dict[str, Any], "mapping"),
        (True, str, "must be text"),
        (10**400, float, "must be a number"),
        (float("nan"), int, "whole number"),
        (float("inf"), int, "whole number"),
        (float("nan"), float, "finite number, got nan"),
        (".inf", float, "must be a number"),
        ("-inf", float, "finite number, got '-inf'"),
        ([0.1, float("inf")], tuple[float, float], "finite number"),
        (float("nan"), float | None, "finite number"),
        ({"width": float("inf")}, Mapping[str, Any], r"field\.width must be a finite number"),
    ],
)
def test_a_wrong_value_names_the_field_and_the_rule(value, kind, said):
    with pytest.raises(RecipeError, match=said) as caught:
        coerce(value, kind, "training.field")
    assert "training.field" in str(caught.value)


def test_overrides():
    assert parse_override("a.b=[1, 2]") == (["a", "b"], [1, 2])
    assert parse_override("data.source=C:=x") == (["data", "source"], "C:=x")
    assert parse_override("a.b=") == (["a", "b"], "")
    for wrong in ("epochs", "=3"):
        with pytest.raises(RecipeError, match=r"section\.key=value"):
            parse_override(wrong)
    with pytest.raises(RecipeError, match=r"cannot read the value of 'a\.b'"):
        parse_override("a.b=[1,")
