from __future__ import annotations

import pytest

from nearkin.report.table import Line, Part


@pytest.mark.parametrize(
    ("texts", "numbers", "expected"),
    [(1, None, [False, True, True, True]), (2, 1, [False, False, True, False]), (0, None, [True] * 4)],
)
def test_which_columns_are_numbers(texts, numbers, expected):
    part = Part(("a", "b", "c", "d"), (), texts=texts, numbers=numbers)
    assert [part.is_number(column) for column in range(4)] == expected


def test_plain_lines_have_no_style():
    part = Part.of(["a", "b"], [["x", "1"]], title="Heading", texts=2)
    assert part == Part(("a", "b"), (Line(("x", "1")),), title="Heading", texts=2)
    assert (part.lines[0].style, part.lines[0].begins_group) == ("", False)
