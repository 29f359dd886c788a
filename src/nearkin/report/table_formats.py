"""A table of scores as text: Markdown, LaTeX, CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from typing import Any

from nearkin.report.score_tables import ScoreTable, sentence


def table_markdown(table: ScoreTable) -> str:
    """The table as Markdown, its caption below."""
    rows = [table.headings(), *(cells for _, cells in table.rows())]
    text = [[_markdown_escape(cell) for cell in row] for row in rows]
    first, *others = [f"| {' | '.join(row)} |" for row in text]
    aligned = "|" + "".join("---:|" if table.is_number(column) else "---|" for column in range(len(rows[0])))
    lines = [first, aligned, *others, "", table.caption, *(f"\n{sentence(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def table_latex(table: ScoreTable) -> str:
    """The table for LaTeX with the package booktabs."""
    columns = "".join("r" if table.is_number(column) else "l" for column in range(len(table.headings())))
    body: list[str] = []
    before = None
    for line, cells in table.rows():
        body += ["\\midrule"] if before is None or (line.group != before and table.kinds) else []
        body.append(" & ".join(latex_escape(cell) for cell in cells) + r" \\")
        before = line.group
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            *(f"% {_one_line(note)}" for note in table.notes),
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{latex_escape(table.caption)}}}",
            f"\\begin{{tabular}}{{{columns}}}",
            "\\toprule",
            " & ".join(latex_escape(cell) for cell in table.headings()) + r" \\",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
            "\\end{table}",
            "",
        ]
    )


def table_csv(table: ScoreTable) -> str:
    """One line each, all conditions in columns, figures as fractions with all their digits."""
    records = []
    for line in table.lines:
        record: dict[str, Any] = {"title": line.title, "figures": line.what, "n": line.runs or None}
        for name in table.metrics:
            value = line.figures.get(name)
            record[name] = None if value is None else value["mean"]
            record[f"{name} spread"] = None if value is None else value["spread"]
        records.append(record | dict(line.conditions) | {"recipes": " ".join(line.recipes)})
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(records[0]))
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


RENDERERS: dict[str, Callable[[ScoreTable], str]] = {"md": table_markdown, "latex": table_latex, "csv": table_csv}
"""The formats of ``nearkin table``."""


def latex_escape(text: str) -> str:
    r"""Text that LaTeX prints as it stands.

    >>> latex_escape("mpa_ap & 5 % of {x} ± 1")
    'mpa\\_ap \\& 5 \\% of \\{x\\} $\\pm$ 1'
    """
    return re.sub(r"[\\{}$&#_%~^<>\[\]±–−×…≈τλσ]", lambda found: _LATEX[found.group()], _one_line(text))


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


def _markdown_escape(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def _one_line(text: str) -> str:
    return " ".join(text.split())
