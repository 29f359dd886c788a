from __future__ import annotations

import pytest

from nearkin.data.benchmarks.benchmark import malformed, read_rows, whole_number
from nearkin.errors import DataError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "images.txt"


def test_blank_lines_count_and_only_the_last_field_may_have_spaces(file):
    file.write_bytes("\ufeff1 a.jpg\r\n\n  2\tb c.jpg \n".encode())
    assert read_rows(file, ["id", "path"]) == [(1, ["1", "a.jpg"]), (3, ["2", "b c.jpg"])]


def test_a_line_that_is_too_short_is_named(file):
    file.write_text("1 a.jpg\n2\n")
    with pytest.raises(DataError, match=r"images\.txt line 2: expected 'id path', got '2'"):
        read_rows(file, ["id", "path"])


def test_a_file_that_is_missing_or_no_text_is_named(file):
    with pytest.raises(DataError, match=r"cannot read images\.txt"):
        read_rows(file, ["id"])
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match=r"cannot read images\.txt"):
        read_rows(file, ["id"])


@pytest.mark.parametrize("text", ["-1", "1.0", "", "²", "x"])
def test_numbers_are_whole(file, text):
    assert whole_number("012", file, 4, "id") == 12
    with pytest.raises(DataError, match=r"images\.txt line 4: id must be a whole number, got "):
        whole_number(text, file, 4, "id")
    assert str(malformed(file, 7, "so it is")) == "images.txt line 7: so it is"
