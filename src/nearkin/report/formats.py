"""Cells and records as text: the one Markdown table, the one CSV and the one way to escape for LaTeX."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def markdown_table(rows: Iterable[Sequence[str]], *, is_number: Callable[[int], bool] = lambda column: False) -> str:
    """Rows of cells as Markdown, the first of them the headings; columns of numbers are aligned at the right.

    >>> print(markdown_table([["loss", "R@1"], ["a|b", "65.7"]], is_number=lambda column: column > 0))
    | loss | R@1 |
    |---|---:|
    | a\\|b | 65.7 |
    """
    heading, *others = [[_markdown_escape(cell) for cell in row] for row in rows]
    aligned = "|" + "".join("---:|" if is_number(column) else "---|" for column in range(len(heading)))
    lines = [f"| {' | '.join(row)} |" for row in (heading, *others)]
    return "\n".join([lines[0], aligned, *lines[1:]])


def csv_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Records as CSV; a column for every key that one of them has, several values in one cell behind semicolons.

    >>> csv_text([{"a": 1}, {"a": 2, "b": ["x", "y"]}]).splitlines()
    ['a,b', '1,', '2,x; y']
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(key for record in records for key in record)))
    writer.writeheader()
    for record in records:
        writer.writerow({key: "; ".join(value) if isinstance(value, list) else value for key, value in record.items()})
    return text.getvalue()


def latex_escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> latex_escape("mpa_ap & 5 % of {x} ± 1")
    'mpa\\_ap \\& 5 \\% of \\{x\\} $\\pm$ 1'
    """
    return re.sub(r"[\\{}$&#_%~^<>\[\]±–−×…≈τλσ]", lambda found: _LATEX[found.group()], one_line(text))


def one_line(text: str) -> str:
    return " ".join(text.split())


def _markdown_escape(text: str) -> str:
    return one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


_LATEX = {character: f"\\{character}" for character in "{}$&#_%"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",  # after a line's end a bare one would begin an option
    "]": "{]}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "…": r"\dots{}",
    "≈": r"$\approx$",
    "τ": r"$\tau$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
}
