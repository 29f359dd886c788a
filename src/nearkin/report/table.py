"""Tables with their conditions and notes, and as text: for a terminal, in Markdown, LaTeX, CSV and HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table as RichTable
from rich.text import Text

NOTHING = "–"
"""Shown for a missing value."""
_STYLES = {"published": "cyan", "difference": "bold", "last": "dim"}


@dataclass(frozen=True)
class Line:
    """Cells from left to right, one for each column."""

    cells: tuple[str, ...]
    style: str = ""
    """``published``, ``difference`` or ``last``: how it is set off from others."""
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


def terminal(table: Table) -> Group:
    """For a terminal: narrow, with headings of numbers broken at their spaces, and notes in yellow."""
    shown: list[Any] = [Text(table.title, style="bold")] if table.title else []
    for part in table.parts:
        shown += [Text(part.title, style="bold"), _rich(part)] if part.title else [_rich(part)]
    shown += [Text(line, style="dim") for line in table.conditions]
    return Group(*shown, *(Text(line, style="yellow") for line in table.notes))


def markdown(table: Table) -> str:
    """The parts, then the conditions, then the notes."""
    blocks = [f"# {one_line(table.title)}"] if table.title else []
    for part in table.parts:
        blocks += [f"## {one_line(part.title)}"] if part.title else []
        cells = [part.columns, *(line.cells for line in part.lines)]
        blocks.append(markdown_table(cells, is_number=part.is_number))
    blocks += table.conditions
    if table.notes:
        blocks += ["## Notes", "\n".join(f"- {one_line(note)}" for note in table.notes)]
    return "\n\n".join(blocks) + "\n"


def latex(table: Table) -> str:
    """For LaTeX with the package booktabs, a ``table`` for each part."""
    blocks = ["% needs \\usepackage{booktabs}", *(f"% {one_line(note)}" for note in table.notes)]
    for part in table.parts:
        columns = "".join("r" if part.is_number(column) else "l" for column in range(len(part.columns)))
        body: list[str] = []
        for line in part.lines:
            body += ["\\midrule"] if line is part.lines[0] or line.begins_group else []
            body.append(" & ".join(latex_escape(cell) for cell in line.cells) + r" \\")
        texts = filter(None, (table.title, part.title, *table.conditions))
        caption = latex_escape(" ".join(text if text.endswith(".") else f"{text}." for text in texts))
        heading = " & ".join(latex_escape(cell) for cell in part.columns) + r" \\"
        blocks += ["\\begin{table}", "\\centering", f"\\caption{{{caption}}}", f"\\begin{{tabular}}{{{columns}}}"]
        blocks += ["\\toprule", heading, *body, "\\bottomrule", "\\end{tabular}", "\\end{table}"]
    return "\n".join(blocks) + "\n"


def csv_text(table: Table) -> str:
    """The records, with a column for every key; lists are joined by semicolons."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(key for record in table.records for key in record)))
    writer.writeheader()
    for record in table.records:
        writer.writerow({key: "; ".join(map(str, v)) if isinstance(v, list) else v for key, v in record.items()})
    return text.getvalue()


def html_table(part: Part, *, caption: str = "", css: str = "") -> str:
    """A part for a page, with CSS classes, in a frame that scrolls sideways on a narrow screen."""
    columns = enumerate(part.columns)
    head = "".join(f'<th scope="col"{_attributes(part, at)}>{escape(name)}</th>' for at, name in columns)
    rows = []
    for line in part.lines:
        first, *others = (escape(cell) for cell in line.cells)
        bars = line.fractions or (None,) * len(line.cells)
        cells = "".join(f"<td{_attributes(part, at, bars[at])}>{cell}</td>" for at, cell in enumerate(others, 1))
        classes = " ".join([line.style] * bool(line.style) + ["first"] * line.begins_group)
        rows.append(f'<tr{f" class={classes!r}" if classes else ""}><th scope="row">{first}</th>{cells}</tr>')
    shown_caption = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll" tabindex="0"><table class="{css}">{shown_caption}<thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


FORMATS: dict[str, Callable[[Table], str]] = {"md": markdown, "latex": latex, "csv": csv_text}
"""The values of ``--format``, besides that of the terminal."""


def markdown_table(rows: Iterable[Sequence[str]], *, is_number: Callable[[int], bool] = lambda column: False) -> str:
    """Rows of cells as Markdown, headings first; columns of numbers are aligned at the right.

    >>> print(markdown_table([["loss", "R@1"], ["a|b", "65.7"]], is_number=lambda column: column > 0))
    | loss | R@1 |
    |---|---:|
    | a\\|b | 65.7 |
    """
    heading, *others = [[_markdown_escape(cell) for cell in row] for row in rows]
    aligned = "|" + "".join("---:|" if is_number(column) else "---|" for column in range(len(heading)))
    lines = [f"| {' | '.join(row)} |" for row in (heading, *others)]
    return "\n".join([lines[0], aligned, *lines[1:]])


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def one_line(text: str) -> str:
    return " ".join(text.split())


def counted(number: int, noun: str) -> str:
    """A number with its noun.

    >>> counted(1, "class"), counted(2, "class"), counted(1200, "image")
    ('1 class', '2 classes', '1,200 images')
    """
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def signed(value: float, digits: int = 1) -> str:
    """A difference with its sign."""
    return f"{value:+.{digits}f}".replace("-", "−")


def _rich(part: Part) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column, name in enumerate(part.columns):
        number = part.is_number(column)
        heading = name.replace(" ", "\n") if number else name
        shown.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=number)
    for line in part.lines:
        marks = ("green" if "▲" in cell else "red" if "▼" in cell else "" for cell in line.cells)
        texts = [Text(cell.replace(" ± ", "±"), style) for cell, style in zip(line.cells, marks, strict=True)]
        shown.add_row(*texts, style=_STYLES.get(line.style))
    return shown


def _attributes(part: Part, column: int, bar: float | None = None) -> str:
    if bar is not None:
        return f' class="number bar" data-value="{bar:.6f}" style="--share:{100 * bar:.1f}%"'
    return " class=number" if part.is_number(column) else ""


def _markdown_escape(text: str) -> str:
    code_or_bracket = r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)|<"  # within backticks Markdown shows brackets as they stand
    shown = re.sub(code_or_bracket, lambda match: "&lt;" if match[0] == "<" else match[0], one_line(text))
    return shown.replace("\\", "\\\\").replace("|", "\\|")


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
    "▲": r"$\blacktriangle$",
    "▼": r"$\blacktriangledown$",
    "→": r"$\rightarrow$",
    "τ": r"$\tau$",
    "λ": r"$\lambda$",
    "σ": r"$\sigma$",
}
