"""Filters: what may be asked, and what is said of the rest."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from nearkin.errors import RecipeError
from nearkin.index.filters import Field, as_number, condition, parse_where

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


def test_conditions_are_what_a_plain_look_at_every_row_finds():
    rows = [("tit", 2019, None), ("tit", 2020, "a"), ("wren", 2021.5, "b"), (None, None, "a"), ("", -3, "007")]
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE items(label, c0, c1)")
    table.executemany("INSERT INTO items VALUES (?, ?, ?)", rows)

    def found(**where):
        text, parameters = condition(where, {"label": Field("label", False), "year": Field("c0", True)})
        return [row - 1 for (row,) in table.execute(f"SELECT rowid FROM items WHERE {text} ORDER BY 1", parameters)]

    assert found() == [0, 1, 2, 3, 4]
    assert (
        found(label="tit") == found(label=["tit"]) == found(label={"tit"}) == found(label=frozenset(["tit"])) == [0, 1]
    )
    assert found(label=["wren", ""]) == [2, 4]
    assert found(label=[]) == []
    assert found(label=None) == found(year=None) == [3]
    assert found(label=("tit", "uu")) == [0, 1], "texts have an order too"
    assert found(year=(2020, None)) == found(year=("2020", None)) == [1, 2]
    assert found(year=(None, 2020)) == found(year=(None, np.int64(2020))) == [0, 1, 4]
    assert found(year=(2020, 2020)) == found(year=2020) == found(year=" 2020 ") == found(year=np.float32(2020)) == [1]
    assert found(year=(None, None)) == [0, 1, 2, 3, 4]
    assert found(year=["-3", 2021.5], label=None) == []
    assert found(year=["-3", 2021.5]) == [2, 4]


def test_what_is_a_number():
    whole = "9" * 18
    assert (as_number(whole), type(as_number(whole))) == (int(whole), int)
    assert type(as_number("-" + whole)) is int
    assert type(as_number(whole + "9")) is float, "more than SQLite's whole numbers are sure to hold"
    assert (as_number("0"), as_number("-0.25"), as_number("1e3"), as_number("2.5E-1")) == (0, -0.25, 1000.0, 0.25)
    for text in ("", "-", "1.", ".5", "+1", "01", "1e", "1 2", "nan", "inf", "-1e999", "0x1", "1_0"):
        assert as_number(text) is None, text


def test_the_first_sign_divides_a_term_and_blanks_around_it_are_nothing():
    assert parse_where([" label == tit "]) == {"label": ["tit"]}
    assert parse_where(["year>=2020", "year>=2021"]) == {"year": ("2021", None)}
    assert parse_where(["year<=2020"]) == {"year": (None, "2020")}
    assert parse_where(["label=", "label=a\nb"]) == {"label": ["", "a\nb"]}
    assert parse_where(["label=a>=b"]) == {"label": ["a>=b"]}
