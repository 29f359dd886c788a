"""Ours beside the published figures, for the terminal, as Markdown, CSV and JSON, each with its conditions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from nearkin.data.benchmarks import benchmarks
from nearkin.published.figures import Published
from nearkin.report.formats import csv_text, markdown_table
from nearkin.runs.folder import write_atomically
from nearkin.studies.reproduce.papers import PaperTable
from nearkin.studies.reproduce.rows import NO_WEIGHTS, Settings
from nearkin.studies.reproduce.runs import Column, Line, columns_of

BACKBONES = {"bninception": "BN-Inception", "resnet50": "ResNet-50", "googlenet": "GoogLeNet"}


def reproduction_table(table: PaperTable, lines: Sequence[Line], settings: Settings) -> Group:
    """The table for a terminal, narrow enough for eighty columns where there are few scores."""
    parts: list[Any] = [Text(heading(table), style="bold")]
    for data, (head, *rows) in cells(table, lines).items():
        shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=data_title(data, settings))
        shown.title_justify, shown.title_style = "left", "bold"
        for number, name in enumerate(head):
            shown.add_column(name.replace(" ", "\n"), justify="right" if number > 1 else "left", overflow="fold")
        for row in rows:
            style = {"published": "cyan", "difference": "bold"}.get(row[1], "dim" if row[1] == "last epoch" else "")
            shown.add_row(*(Text(cell, style=style if number else "") for number, cell in enumerate(row)))
        parts.append(shown)
    parts += [Text(text, style="dim") for text in caption(table, lines, settings)]
    parts += [Text(text, style="yellow") for text in notes(lines)]
    return Group(*parts)


def reproduction_markdown(table: PaperTable, lines: Sequence[Line], settings: Settings) -> str:
    """The table as Markdown."""
    text = [f"# {heading(table)}", "", *caption(table, lines, settings)]
    for data, rows in cells(table, lines).items():
        text += ["", f"## {data_title(data, settings)}", "", markdown_table(rows)]
    if said := notes(lines):
        text += ["", "## Mind", "", *(f"- {line}" for line in said)]
    return "\n".join(text) + "\n"


def reproduction_csv(table: PaperTable, lines: Sequence[Line]) -> str:
    """One line per row, data set and score, figures with all their digits."""
    return csv_text(_records(table, lines))


def reproduction_json(table: PaperTable, lines: Sequence[Line], settings: Settings) -> dict[str, Any]:
    """Everything that is known, for programs."""
    return {
        "table": table.item.id,
        "title": heading(table),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "caption": caption(table, lines, settings),
        "notes": notes(lines),
        "figures": list(_records(table, lines)),
        "rows": [
            {
                "name": line.row.definition.name,
                "title": line.row.definition.title,
                "data": line.row.data,
                "status": line.status,
                "problem": line.problem,
                "command": None if line.row.recipe is None else line.row.command,
                "recipe": None if line.row.recipe is None else line.row.recipe.as_mapping(),
                "folders": [str(path) for path in line.folders],
            }
            for line in lines
        ],
    }


def write_tables(table: PaperTable, lines: Sequence[Line], settings: Settings, folder: str | Path) -> list[Path]:
    """Write ``<table>.md``, ``.csv`` and ``.json`` into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    whole = json.dumps(reproduction_json(table, lines, settings), indent=2, ensure_ascii=False) + "\n"
    contents = {
        f"{table.item.key}.md": reproduction_markdown(table, lines, settings),
        f"{table.item.key}.csv": reproduction_csv(table, lines),
        f"{table.item.key}.json": whole,
    }
    for name, text in contents.items():
        write_atomically(folder / name, text.encode())
    return [folder / name for name in contents]


def cells(table: PaperTable, lines: Sequence[Line]) -> dict[str, list[list[str]]]:
    """For every data set a heading and rows of cells: ours, the last epoch's, the published one and the difference."""
    columns = columns_of(table, [line.row for line in lines])
    reasons = _numbered(lines)
    found = {data: [["", "", *(column.label for column in shown)]] for data, shown in columns.items()}
    for line in lines:
        shown, rows = columns[line.row.data], found[line.row.data]
        marks = f" ({reasons[line.problem]})" if line.problem is not None else ""
        entries: list[tuple[str, list[str]]] = []
        if line.finished:
            entries.append((f"ours{marks}", [_ours(line.ours.get(column)) for column in shown]))
            if line.last:
                entries.append(("last epoch", [_ours(line.last.get(column)) for column in shown]))
        else:
            entries.append((f"{line.status}{marks}", ["–"] * len(shown)))
        if line.published:
            entries.append(("published", [_published(line.published.get(column)) for column in shown]))
            if line.finished:
                entries.append(("difference", [_signed(line.difference(column)) for column in shown]))
        for number, (what, texts) in enumerate(entries):
            rows.append(["" if number else line.row.definition.title, what, *texts])
    return found


def heading(table: PaperTable) -> str:
    kind, _, number = table.item.key.partition("-")
    place = f"{kind} {number}".strip()
    return f"{table.item.paper.upper()}, {place}: {table.item.title}"


def data_title(data: str, settings: Settings) -> str:
    """What a data set is called; a stand-in says that it is one."""
    title = benchmarks()[data].title if data in benchmarks() else data
    return f"{Path(settings.stand_ins[data]).name} in the place of {title}" if data in settings.stand_ins else title


def caption(table: PaperTable, lines: Sequence[Line], settings: Settings) -> list[str]:
    """What the figures hold for: protocol, selection, seeds, hardware and backbone, ours and the published ones."""
    done = [line for line in lines if line.finished]
    texts = []
    if done:
        parts = [
            f"{' and '.join(_said(done, 'protocol'))} protocol, {' or '.join(_said(done, 'selection'))}",
            _seeds_text(table, done),
            " and ".join(_said(done, "hardware")),
        ]
        texts.append(f"Ours: {'; '.join(part for part in parts if part)}.")
    else:
        texts.append("Ours: no run has finished.")
    figures = {figure for line in lines for figure in line.published.values()}
    theirs = sorted({BACKBONES.get(figure.backbone, figure.backbone) for figure in figures})
    if figures:
        protocols = " and ".join(sorted({figure.protocol for figure in figures}))
        texts.append(f"Published: {' and '.join(theirs)}, {protocols} protocol.")
    if settings.backbone is not None:
        usual = " and ".join(theirs) or "the paper's"
        texts.append(f"Another backbone: {settings.backbone} instead of {usual} (--backbone).")
    if settings.weights == NO_WEIGHTS:
        texts.append("From scratch: no pretrained weights (--weights none).")
    other = sorted({line.row.data for line in lines} - set(table.data))
    if other:
        texts.append(f"Other data than the paper's, trained with a recipe that suits them: {', '.join(other)}.")
    if settings.overrides:
        texts.append(f"Changed in every row: {', '.join(settings.overrides)}.")
    if any(value.get("spread") is not None for line in done for value in line.ours.values()):
        texts.append("± is the sample standard deviation over the runs; published, it is what the paper gives.")
    elif done:
        texts.append(f"One {'repeat' if table.mlrc else 'seed'}, so no spread of ours.")
    return texts


def notes(lines: Sequence[Line]) -> list[str]:
    """Why rows were skipped or failed, each reason once, under the number that the table has for it."""
    texts = []
    for reason, number in _numbered(lines).items():
        rows = [line for line in lines if line.problem == reason]
        named = ", ".join(f"{line.row.definition.title} on {line.row.data}" for line in rows[:4])
        more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
        texts.append(f"({number}) {named}{more}: {rows[0].status}: {reason}")
    return texts


def _records(table: PaperTable, lines: Sequence[Line]) -> list[dict[str, Any]]:
    columns = columns_of(table, [line.row for line in lines])
    records = []
    for line in lines:
        for column in columns[line.row.data]:
            ours, last, published = line.ours.get(column, {}), line.last.get(column, {}), line.published.get(column)
            interval = ours.get("interval")
            records.append(
                {
                    "table": table.item.id,
                    "data": line.row.data,
                    "row": line.row.definition.name,
                    "title": line.row.definition.title,
                    **{f"at {symbol}": value for symbol, value in line.row.definition.at.items()},
                    "metric": column.metric,
                    "part": column.part or None,
                    "dim": column.dim,
                    "ours": ours.get("mean"),
                    "ours spread": ours.get("spread"),
                    "interval": None if interval is None else [f"{value:g}" for value in interval],
                    "last epoch": last.get("mean"),
                    "published": None if published is None else published.value,
                    "published spread": None if published is None else published.spread,
                    "difference": line.difference(column),
                    "status": line.status,
                    "problem": line.problem,
                    "seeds": [str(seed) for seed in line.seeds],
                    **{key: line.conditions.get(key, []) for key in ("protocol", "selection", "hardware", "recipe")},
                    "published backbone": None if published is None else published.backbone,
                    "published protocol": None if published is None else published.protocol,
                }
            )
    return records


def _seeds_text(table: PaperTable, done: Sequence[Line]) -> str:
    counts = sorted({line.repeats for line in done})
    if table.mlrc:
        return f"{' or '.join(map(str, counts))} {'repeat' if counts == [1] else 'repeats'} of all folds"
    seeds = sorted({seed for line in done for seed in line.seeds})
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _numbered(lines: Sequence[Line]) -> dict[str, int]:
    reasons = dict.fromkeys(line.problem for line in lines if line.problem is not None)
    return {reason: number for number, reason in enumerate(reasons, 1)}


def _said(lines: Sequence[Line], key: str) -> list[str]:
    return sorted({value for line in lines for value in line.conditions.get(key, [])})


def _ours(value: Mapping[str, Any] | None) -> str:
    if value is None:
        return "–"
    spread = value.get("spread")
    return f"{value['mean']:.1f}" + ("" if spread is None else f" ± {spread:.1f}")


def _published(figure: Published | None) -> str:
    if figure is None:
        return "–"
    return printed(figure.value) + ("" if figure.spread is None else f" ± {figure.spread:g}")


def printed(value: float) -> str:
    """A published figure with the digits that papers print: one, or two where it has two.

    >>> printed(78.0), printed(71.04)
    ('78.0', '71.04')
    """
    return f"{value:.1f}" if round(value, 1) == value else f"{value:.2f}"


def _signed(difference: float | None) -> str:
    return "–" if difference is None else f"{difference:+.1f}".replace("-", "−")


def column_named(columns: Sequence[Column], metric: str) -> Column | None:
    """The column of a score, of the reality check that of the models one by one; without that score, the first."""
    return next((column for column in columns if column.metric == metric), next(iter(columns), None))
