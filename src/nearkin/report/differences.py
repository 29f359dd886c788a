"""Rows held against another: how far apart they are, whether that is decided, and how many seeds would decide it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearkin.evaluation.scores import score_named
from nearkin.evaluation.statistics import MOST_SEEDS, Difference, Seed, difference_by_seed
from nearkin.report.formats import signed
from nearkin.report.table import NOTHING, Part

COMPARED = ("R@1", "MAP@R")
"""The scores by which a row is held against another, and that are said of a run when it ends."""
MARKS = {"above": "▲", "below": "▼", "undecided": "≈", None: ""}
FEW_SEEDS = 6
"""Below, a spread over seeds is itself uncertain by a third and more."""


@dataclass(frozen=True)
class Held:
    """A row against another, by the names of scores."""

    title: str
    base: str
    apart: Mapping[str, Difference]

    @classmethod
    def of(
        cls,
        title: str,
        scores: Callable[[str], Mapping[Seed, float]],
        base: str,
        base_scores: Callable[[str], Mapping[Seed, float]],
    ) -> Held | None:
        """By the scores of :data:`COMPARED`, each by seed; None where the two have none of them in common."""
        apart = {name: difference_by_seed(scores(name), base_scores(name)) for name in COMPARED}
        found = {name: each for name, each in apart.items() if each is not None}
        return cls(title, base, found) if found else None


def differences_part(rows: Sequence[Held]) -> Part:
    """A line for each row and score, in the score's unit.

    >>> part = differences_part([Held("C2-CCP", "C2", {"R@1": Difference(0.013, 0.004, (0.003, 0.023), (3, 3), True)})])
    >>> part.lines[0].cells
    ('C2-CCP', 'C2', 'R@1', '+1.3 ▲', '+0.3 to +2.3', '–')
    """
    cells = []
    for row in rows:
        for place, (name, apart) in enumerate(row.apart.items()):
            words = ["", ""] if place else [row.title, row.base]
            cells.append([*words, name, difference_text(name, apart), interval_text(name, apart), seeds_text(apart)])
    headings = ("", "held against", "score", "difference", "95\u00a0% interval", "more seeds")
    return Part.of(headings, cells, title="Against their base", texts=3)


def difference_text(name: str, apart: Difference) -> str:
    """With its sign, and a mark where there is an interval."""
    return f"{_in_unit(name, apart.value)} {MARKS[apart.verdict]}".strip()


def interval_text(name: str, apart: Difference) -> str:
    return NOTHING if apart.interval is None else " to ".join(_in_unit(name, end) for end in apart.interval)


def seeds_text(apart: Difference) -> str:
    """How many more on each side would decide it.

    >>> seeds_text(Difference(0.1, 0.2, (-0.1, 0.3), more_seeds=4)), seeds_text(Difference(0.1, None))
    ('4', '–')
    """
    if apart.more_seeds is None:
        return NOTHING
    return str(apart.more_seeds) if apart.more_seeds <= MOST_SEEDS else f"more than {MOST_SEEDS}"


def how_to_read(rows: Sequence[Held]) -> str:
    """What the marks and the numbers of :func:`differences_part` mean; empty where no row has an interval."""
    known = [apart for row in rows for apart in row.apart.values() if apart.interval is not None]
    if not known:
        return ""
    ways = {True: "seed by seed", False: "by Welch's test"}
    way = ways[known[0].paired]
    if len({apart.paired for apart in known}) > 1:
        way = "seed by seed, by Welch's test where the seeds are not the same"
    parts = [f"▲ above, ▼ below, ≈ undecided: the 95 % interval of the difference (Student's t, {way}) holds 0."]
    if any(apart.more_seeds for apart in known):
        parts.append("More seeds: so many on each side would decide four times out of five, if it is as it seems.")
    fewest = min(min(apart.runs) for apart in known)
    if fewest < FEW_SEEDS:
        parts.append(f"Of {fewest} seeds the spread is itself a rough guess.")
    return " ".join(parts)


def _in_unit(name: str, value: float) -> str:
    score = score_named(name)
    return signed((100 if score.in_percent else 1) * value, score.digits)
