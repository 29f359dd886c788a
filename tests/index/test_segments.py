"""Rows of numbers on disk."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.index.segments import Segments


def test_rows_over_several_segments_are_read_as_they_were_written(tmp_path):
    wanted = np.arange(46, dtype=np.float32).reshape(23, 2)
    rows = Segments(tmp_path, 2, np.float32, rows_per_segment=5)
    for first, last in ((0, 3), (3, 5), (5, 6), (6, 18), (18, 23)):
        rows.append(first, wanted[first:last])
        rows.show(last)
        assert np.array_equal(np.concatenate(rows.maps), wanted[:last])
    some = np.array([22, 0, 5, 4, 22])
    assert np.array_equal(rows.take(some), wanted[some])
    assert rows.available() == 23
    assert rows.take(np.empty(0, dtype=np.int64)).shape == (0, 2)


@pytest.mark.parametrize("left", [0, 3, 5, 7, 12])
def test_what_lies_behind_is_taken_away(left, tmp_path):
    rows = Segments(tmp_path, 1, np.int8, rows_per_segment=5)
    rows.append(0, np.arange(12)[:, None])
    rows.truncate(left)
    assert rows.available() == left
    rows.append(left, 100 + np.arange(4)[:, None])
    rows.show(left + 4)
    assert np.concatenate(rows.maps)[:, 0].tolist() == [*range(left), 100, 101, 102, 103]


def test_a_row_written_in_part_does_not_count(tmp_path):
    rows = Segments(tmp_path, 4, np.float32, rows_per_segment=5)
    rows.append(0, np.ones((3, 4)))
    with open(next(tmp_path.iterdir()), "ab") as file:
        file.write(b"12345")
    assert rows.available() == 3
    with pytest.raises(DataError, match="too short, so the index is damaged"):
        rows.show(4)
