"""Rows compared with a base: the difference, its interval, and how many more seeds would decide it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nearkin.evaluation.scores import score_named
from nearkin.evaluation.statistics import MOST_SEEDS, Difference, difference_by_seed
from nearkin.recipe import Recipe
from nearkin.report.table import NOTHING, Part, signed
from nearkin.runs.scores import Scores, collapse_mark

COMPARED = ("R@1", "MAP@R")
"""The scores by which rows are compared, and which are printed at the end of a run."""
MARKS = {"above": "▲", "below": "▼", "undecided": "≈", None: ""}
FEW_SEEDS = 6
"""With fewer seeds, the spread itself is uncertain by a third or more."""


class ScoredRuns:
    """A line of a table: runs of one recipe with different seeds, each with its ``recipe`` and ``folder``."""

    title: str
    runs: tuple[Any, ...]

    @cached_property
    def finished(self) -> tuple[Any, ...]:
        return tuple(run for run in self.runs if run.folder.is_finished)

    @cached_property
    def scores(self) -> tuple[Scores, ...]:
        return tuple(run.folder.scores() for run in self.finished)

    @property
    def marked_title(self) -> str:
        """The title, with a mark where the network collapsed in some run."""
        return f"{self.title}{collapse_mark(self.scores)}"

    def test_by_run(self, name: str) -> dict[Any, float]:
        """A score on the test classes, by seed and class fold."""
        tests = zip(self.finished, (scores.test or {} for scores in self.scores), strict=True)
        return {seed_and_fold(run.recipe): float(test[name]) for run, test in tests if test.get(name) is not None}


def seed_and_fold(recipe: Recipe) -> tuple[int, int]:
    """What distinguishes the runs of a line."""
    return recipe.training.seed, recipe.protocol.fold


@dataclass(frozen=True)
class Comparison:
    """A row's differences from its base, by the names of scores."""

    title: str
    base: str
    differences: Mapping[str, Difference]

    @classmethod
    def of(cls, row: ScoredRuns, base: ScoredRuns) -> Comparison | None:
        """By the scores of :data:`COMPARED`; None where the two have none of them in common.

        Where a network of one of the two collapsed, the difference decides nothing and has no interval.
        """
        pairs = {name: difference_by_seed(row.test_by_run(name), base.test_by_run(name)) for name in COMPARED}
        differences = {name: difference for name, difference in pairs.items() if difference is not None}
        if collapse_mark([*row.scores, *base.scores]):
            differences = {name: replace(it, interval=None, more_seeds=None) for name, it in differences.items()}
        return cls(row.marked_title, base.marked_title, differences) if differences else None


def differences_part(rows: Sequence[Comparison]) -> Part:
    """A line for each row and score, in the score's unit.

    >>> difference = Difference(0.013, 0.004, (0.003, 0.023), (3, 3), True)
    >>> differences_part([Comparison("C2-CCP", "C2", {"R@1": difference})]).lines[0].cells
    ('C2-CCP', 'C2', 'R@1', '+1.3 ▲', '+0.3 to +2.3', '–')
    """
    cells = []
    for row in rows:
        for index, (name, difference) in enumerate(row.differences.items()):
            words = ["", ""] if index else [row.title, row.base]
            ends = difference.interval
            interval = NOTHING if ends is None else " to ".join(_in_unit(name, end) for end in ends)
            value = f"{_in_unit(name, difference.value)} {MARKS[difference.verdict]}".strip()
            more = NOTHING if difference.more_seeds is None else str(difference.more_seeds)
            if (difference.more_seeds or 0) > MOST_SEEDS:
                more = f"more than {MOST_SEEDS}"
            cells.append([*words, name, value, interval, more])
    headings = ("", "compared with", "score", "difference", "95\u00a0% interval", "more seeds")
    return Part.of(headings, cells, title="Differences from the base", texts=3)


def how_to_read(rows: Sequence[Comparison]) -> str:
    """The meaning of the marks and numbers of :func:`differences_part`; empty where no row has an interval."""
    known = [difference for row in rows for difference in row.differences.values() if difference.interval is not None]
    if not known:
        return ""
    test = "paired by seed, or Welch's test where the seeds differ"
    if len({difference.paired for difference in known}) == 1:
        test = "paired by seed" if known[0].paired else "Welch's test"
    parts = [f"▲ above, ▼ below, ≈ undecided: the 95 % interval of the difference (Student's t, {test}) contains 0."]
    if any(difference.more_seeds for difference in known):
        parts.append("More seeds: so many for both rows would decide a real difference four times out of five.")
    fewest = min(min(difference.runs) for difference in known)
    if fewest < FEW_SEEDS:
        parts.append(f"With {fewest} seeds the spread itself is a rough estimate.")
    return " ".join(parts)


def _in_unit(name: str, value: float) -> str:
    score = score_named(name)
    return signed((100 if score.in_percent else 1) * value, score.digits)
