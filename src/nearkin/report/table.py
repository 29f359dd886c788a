"""A table with its conditions and notes, independent of its format (:mod:`nearkin.report.formats`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

NOTHING = "–"
"""Shown for a missing value."""


@dataclass(frozen=True)
class Line:
    """Cells from left to right, one for each column."""

    cells: tuple[str, ...]
    style: str = ""
    """How it is set off from others: ``published``, ``difference`` or ``last``."""
    begins_group: bool = False
    """Whether it is the first of lines that belong together."""
    fractions: tuple[float | None, ...] = ()
    """Lengths of bars that a page draws behind the cells; one for each cell, or none."""


@dataclass(frozen=True)
class Part:
    """Columns and lines under one heading."""

    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    title: str = ""
    texts: int = 1
    """The number of columns of words at the left."""
    numbers: int | None = None
    """The number of columns of numbers after them; None for all."""

    @classmethod
    def of(cls, columns: Sequence[str], cells: Iterable[Sequence[str]], **options: Any) -> Part:
        """A part with plain lines."""
        return cls(tuple(columns), tuple(Line(tuple(line)) for line in cells), **options)

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
    """Warnings: runs that are missing, settings that make lines hard to compare."""
    records: tuple[Mapping[str, Any], ...] = ()
    """The same for programs: numbers with all their digits, and a key for every condition."""
