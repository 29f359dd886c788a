"""The table of a soup and its runs, and the word on a soup that is worse than all of them."""

from __future__ import annotations

import pytest

from nearkin.report.soup_table import soup_table, soup_verdict
from nearkin.runs.scores import Conditions, Scores, Soup, SoupPart

HELD = Conditions(
    data="birds",
    objective="soup of proxy_anchor, vcpa",
    protocol="conventional",
    selection="each run at its best R@1 on the test classes",
    test_classes="classes never seen in training",
    weights="mean of the weights of 2 runs",
    hardware="one abacus",
)


def made(own, *others, **more):
    """A soup by R@1 and MAP@R of itself and of its runs."""
    names = zip(("runs/a", "runs/b"), ("proxy_anchor", "vcpa"), others, strict=True)
    parts = [
        SoupPart(run, loss, "plain", 0, "x", None if test is None else dict(zip(("R@1", "MAP@R"), test, strict=True)))
        for run, loss, test in names
    ]
    test = None if own is None else dict(zip(("R@1", "MAP@R"), own, strict=True))
    return Soup("best", parts, batch_norm="frozen, so its statistics stay", test=test, **more)


def test_runs_and_soup_stand_below_each_other_with_what_they_hold_for():
    table = soup_table(made((0.723, 0.292), (0.721, 0.289), (0.71, 0.28)), Scores(HELD))
    assert table.title == "birds: soup of proxy_anchor, vcpa, classes never seen in training"
    (part,) = table.parts
    assert part.columns == ("", "loss", "R@1", "MAP@R")
    assert [line.cells for line in part.lines] == [
        ("runs/a", "proxy_anchor", "72.1", "28.9"),
        ("runs/b", "vcpa", "71.0", "28.0"),
        ("soup", "", "72.3", "29.2"),
    ]
    assert [part.is_number(column) for column in range(4)] == [False, False, True, True]
    assert table.conditions[0] == (
        "conventional protocol, each run at its best R@1 on the test classes; mean of the weights of 2 runs; "
        "batch-norm: frozen, so its statistics stay; one abacus."
    )


@pytest.mark.parametrize(
    "own", [(0.72, 0.285), (0.71, 0.28), (0.70996, 0.28), (0.9, 0.9)], ids=["between", "level", "shown alike", "above"]
)
def test_nothing_is_said_of_a_soup_that_is_no_worse_than_one_of_its_runs(own):
    assert soup_verdict(made(own, (0.721, 0.289), (0.71, 0.28))) is None


def test_a_soup_below_all_of_its_runs_says_so_and_why():
    said = soup_verdict(made((0.3, 0.1), (0.721, 0.289), (0.71, 0.29)))
    assert said.startswith(
        "The soup is below the worst of its runs: R@1 30.0, where runs/b has 71.0; MAP@R 10.0, where runs/a has 28.9. "
        "They began alike, but training has carried them too far apart"
    )
    assert said.endswith("nearkin evaluate runs/a --with runs/b")
    apart = soup_verdict(made((0.3, 0.1), (0.721, 0.289), (0.71, 0.28), different_starts=["runs/b began elsewhere"]))
    assert "They did not begin from the same weights" in apart
    one = soup_verdict(made((0.715, 0.2), (0.721, 0.289), (0.71, 0.28)))
    assert "R@1" not in one.partition(". They")[0]
    assert "MAP@R 20.0, where runs/b has 28.0" in one


def test_without_scores_there_is_nothing_to_say():
    assert soup_verdict(made(None, None, None)) is None
