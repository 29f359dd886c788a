"""Filters: what may be asked, and what is said of the rest."""

from __future__ import annotations

import sqlite3

import pytest

from nearkin.errors import RecipeError
from nearkin.index.where import Field, condition, parse_where

FIELDS = {"label": Field("label", False), "year": Field("c0", True), "a = 1; --": Field("c1", False)}


def test_no_value_and_no_name_becomes_sql():
    hostile = "x' OR 1; DROP TABLE items; --"
    text, parameters = condition({"label": hostile, "a = 1; --": [hostile], "year": ("1", 2.5)}, FIELDS)
    assert hostile not in text
    assert "DROP" not in text
    assert parameters[0] == hostile
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE items(label, c0, c1)")
    table.execute("INSERT INTO items VALUES (?, 2, ?)", [hostile, hostile])
    assert table.execute(f"SELECT count(*) FROM items WHERE {text}", parameters).fetchone() == (1,)


def test_terms_of_a_command_line():
    assert parse_where(["year <= 2022", "year>=2020", "label = a = b"]) == {
        "year": ("2020", "2022"),
        "label": ["a = b"],
    }
    assert parse_where([]) == {}
    for wrong in ("year", "year>2020", "year<3", "label!=tit", "=tit"):
        with pytest.raises(RecipeError, match="write FIELD=VALUE, 'FIELD>=VALUE'"):
            parse_where([wrong])
    for both in (["year=2020", "year>=2019"], ["year>=2019", "year=2020"]):
        with pytest.raises(RecipeError, match="ask for a range and for a value"):
            parse_where(both)


def test_what_a_field_does_not_hold():
    for where in ({"year": "soon"}, {"year": float("nan")}, {"year": True}, {"year": [[]]}):
        with pytest.raises(RecipeError, match="'year' holds numbers"):
            condition(where, FIELDS)
    with pytest.raises(RecipeError, match=r"a range of 'year' is a pair \(from, to\), got \(1, 2, 3\); give a list"):
        condition({"year": (1, 2, 3)}, FIELDS)
    with pytest.raises(RecipeError, match=r"'label' holds text, got 7: give it in quotes"):
        condition({"label": 7}, FIELDS)
    with pytest.raises(RecipeError, match=r"cannot filter by 'yaer': did you mean 'year'"):
        condition({"yaer": 1}, FIELDS)
