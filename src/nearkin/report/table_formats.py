"""A table of scores as text: Markdown, LaTeX, CSV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nearkin.report.formats import csv_text, latex_escape, markdown_table, one_line
from nearkin.report.score_tables import ScoreTable, sentence


def table_markdown(table: ScoreTable) -> str:
    """The table as Markdown, its caption below."""
    rows = [table.headings(), *(cells for _, cells in table.rows())]
    lines = [markdown_table(rows, is_number=table.is_number), "", table.caption]
    return "\n".join([*lines, *(f"\n{sentence(note)}" for note in table.notes)]) + "\n"


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
            *(f"% {one_line(note)}" for note in table.notes),
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
    return csv_text(records)


RENDERERS: dict[str, Callable[[ScoreTable], str]] = {"md": table_markdown, "latex": table_latex, "csv": table_csv}
"""The formats of ``nearkin table``."""
