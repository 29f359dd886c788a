from __future__ import annotations

from nearkin.evaluation.statistics import MOST_SEEDS, Difference
from nearkin.report.differences import Comparison, differences_part, how_to_read

DECIDED = Difference(0.013, 0.004, (0.003, 0.023), (8, 8), True)
OPEN = Difference(-0.004, 0.01, (-0.029, 0.021), (3, 4), False, 40)
ONE = Difference(0.02, None, None, (1, 3))


def test_every_row_and_score_is_a_line_in_the_unit_of_the_score():
    part = differences_part(
        [Comparison("A", "B", {"R@1": DECIDED, "covering_radius": OPEN}), Comparison("C", "B", {"R@1": ONE})]
    )
    assert [line.cells for line in part.lines] == [
        ("A", "B", "R@1", "+1.3 ▲", "+0.3 to +2.3", "–"),
        ("", "", "covering_radius", "−0.004 ≈", "−0.029 to +0.021", "40"),
        ("C", "B", "R@1", "+2.0", "–", "–"),
    ]


def test_numbers_of_seeds_beyond_reason_are_not_said():
    many = Difference(0.0, 0.1, (-0.1, 0.1), more_seeds=MOST_SEEDS + 1)
    assert differences_part([Comparison("A", "B", {"R@1": many})]).lines[0].cells[-1] == "more than 50"


def test_the_reading_mentions_only_what_the_rows_have():
    assert how_to_read([Comparison("C", "B", {"R@1": ONE})]) == ""
    decided = how_to_read([Comparison("A", "B", {"R@1": DECIDED})])
    assert "Welch" not in decided
    assert "More seeds" not in decided
    both = how_to_read([Comparison("A", "B", {"R@1": DECIDED, "MAP@R": OPEN})])
    assert "Welch" in both
    assert "More seeds" in both
    assert "3 seeds" in both
