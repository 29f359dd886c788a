"""Published tables and figures, row by row: which there are, how each row is run here, and ours beside theirs."""

from __future__ import annotations

from nearkin.studies.reproduce.papers import find_item, items, papers, tables_of
from nearkin.studies.reproduce.rows import PlannedRow, Settings, planned_rows
from nearkin.studies.reproduce.runs import Line, carry_out, lines_of, runs_of
from nearkin.studies.reproduce.survey import Standing, standing_of

__all__ = [
    "Line",
    "PlannedRow",
    "Settings",
    "Standing",
    "carry_out",
    "find_item",
    "items",
    "lines_of",
    "papers",
    "planned_rows",
    "runs_of",
    "standing_of",
    "tables_of",
]
