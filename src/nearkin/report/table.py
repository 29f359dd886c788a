"""A table: what it shows, what that holds for and what to mind, whoever prints it (:mod:`nearkin.report.formats`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "–"
"""In the place of a value that is not there."""


@dataclass(frozen=True)
class Line:
    """Cells from left to right, one for each column."""

    cells: tuple[str, ...]
    kind: str = ""
    """What sets it off from others: ``published``, ``difference`` or ``last``."""
    begins_group: bool = False
    """Whether it is the first of lines that belong together."""
    fractions: tuple[float | None, ...] = ()
    """What cells stand for, where a page is to draw bars behind them; one for each cell, or none."""


@dataclass(frozen=True)
class Part:
    """Columns and lines under one heading."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    title: str = ""
    texts: int = 1
    """So many columns at the left are words."""
    numbers: int | None = None
    """So many after them are numbers; None for all."""

    @classmethod
    def of(cls, columns: Sequence[str], cells: Iterable[Sequence[str]], **options: Any) -> Part:
        """Of plain lines."""
        return cls(tuple(columns), tuple(Line(tuple(each)) for each in cells), **options)

    def is_number(self, column: int) -> bool:
        return column >= self.texts and (self.numbers is None or column < self.texts + self.numbers)


@dataclass(frozen=True)
class Table:
    """One part or several, such as one for each data set, all under the same conditions."""

    title: str
    parts: tuple[Part, ...]
    conditions: tuple[str, ...] = ()
    """Sentences: protocol, selection, seeds, hardware, and how to read the numbers."""
    notes: tuple[str, ...] = ()
    """What to mind: runs that are missing, settings that make lines hard to compare."""
    records: tuple[Mapping[str, Any], ...] = ()
    """The same for programs: numbers with all their digits, every condition under a key of its own."""
