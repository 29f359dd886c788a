"""Ours beside what is published: a part for each data set, with what both hold for."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nearkin.data.benchmarks import benchmarks
from nearkin.report.formats import signed
from nearkin.report.table import NOTHING, Line, Part, Table
from nearkin.studies.reproduce.papers import PaperTable
from nearkin.studies.reproduce.results import CONDITIONS, Column, Reproduced, columns_of
from nearkin.studies.reproduce.rows import NO_WEIGHTS, Settings

BACKBONES = {"bninception": "BN-Inception", "resnet50": "ResNet-50", "googlenet": "GoogLeNet"}


def reproduction_table(table: PaperTable, rows: Sequence[Reproduced], settings: Settings) -> Table:
    """For every row ours, the last epoch's, the published one and the difference."""
    parts = []
    for data, columns in columns_of(table, [each.planned for each in rows]).items():
        lines = [line for each in rows if each.planned.data == data for line in _lines(each, columns, _numbered(rows))]
        headings = ("", "", *(column.label for column in columns))
        parts.append(Part(headings, tuple(lines), title=data_title(data, settings), texts=2))
    return Table(
        heading(table),
        tuple(parts),
        tuple(caption(table, rows, settings)),
        tuple(notes(rows)),
        tuple(_records(table, rows)),
    )


def reproduction_record(table: PaperTable, rows: Sequence[Reproduced], settings: Settings) -> dict[str, Any]:
    """Everything that is known, for programs."""
    return {
        "table": table.item.id,
        "title": heading(table),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "caption": caption(table, rows, settings),
        "notes": notes(rows),
        "figures": _records(table, rows),
        "rows": [
            {
                **{key: value for key, value in each.planned.as_record().items() if key != "published"},
                "status": each.status,
                "problem": each.problem,
                "folders": [str(path) for path in each.folders],
            }
            for each in rows
        ],
    }


def heading(table: PaperTable) -> str:
    place = table.item.key.replace("-", " ", 1)
    return f"{table.item.paper.upper()}, {place}: {table.item.title}"


def data_title(data: str, settings: Settings) -> str:
    """What a data set is called; a stand-in says that it is one."""
    title = benchmarks()[data].title if data in benchmarks() else data
    return f"{Path(settings.stand_ins[data]).name} in the place of {title}" if data in settings.stand_ins else title


def caption(table: PaperTable, lines: Sequence[Reproduced], settings: Settings) -> list[str]:
    """What the scores hold for: protocol, selection, seeds, hardware and backbone, ours and the published ones."""
    done = [line for line in lines if line.finished]
    texts = ["Ours: no run has finished."]
    if done:
        protocol = f"{' and '.join(_said(done, 'protocol'))} protocol, {' or '.join(_said(done, 'selection'))}"
        parts = [protocol, _seeds_text(table, done), " and ".join(_said(done, "hardware"))]
        texts = [f"Ours: {'; '.join(part for part in parts if part)}."]
    published = [each for line in lines for each in line.published.values()]
    theirs = " and ".join(sorted({BACKBONES.get(each.backbone, each.backbone) for each in published}))
    if published:
        texts.append(f"Published: {theirs}, {' and '.join(sorted({each.protocol for each in published}))} protocol.")
    if settings.backbone is not None:
        theirs = theirs or "the paper's"
        texts.append(f"Another backbone: {settings.backbone} instead of {theirs} (--backbone).")
    if settings.weights == NO_WEIGHTS:
        texts.append("From scratch: no pretrained weights (--weights none).")
    other = sorted({line.planned.data for line in lines} - set(table.data))
    if other:
        texts.append(f"Other data than the paper's, trained with a recipe that suits them: {', '.join(other)}.")
    if settings.overrides:
        texts.append(f"Changed in every row: {', '.join(settings.overrides)}.")
    if any(value.spread is not None for line in done for value in line.ours.values()):
        texts.append("± is the sample standard deviation over the runs; published, it is what the paper gives.")
    elif done:
        texts.append(f"One {'repeat' if table.mlrc else 'seed'}, so no spread of ours.")
    return texts


def notes(lines: Sequence[Reproduced]) -> list[str]:
    """Why rows were skipped or failed, each reason once, under the number that the table has for it."""
    texts = []
    for reason, number in _numbered(lines).items():
        rows = [line for line in lines if line.problem == reason]
        named = ", ".join(f"{line.planned.row.title} on {line.planned.data}" for line in rows[:4])
        more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
        texts.append(f"({number}) {named}{more}: {rows[0].status}: {reason}")
    return texts


def _lines(each: Reproduced, columns: Sequence[Column], reasons: dict[str, int]) -> list[Line]:
    number = f" ({reasons[each.problem]})" if each.problem is not None else ""
    ours, last = ({column: value.text() for column, value in those.items()} for those in (each.ours, each.last))
    entries = [(f"{'ours' if each.finished else each.status}{number}", "", ours)]
    if last:
        entries.append(("last epoch", "last", last))
    if each.published:
        entries.append(("published", "published", {column: value.text for column, value in each.published.items()}))
        if each.finished:
            both = {column: signed(apart) for column in columns if (apart := each.difference(column)) is not None}
            entries.append(("difference", "difference", both))
    return [
        Line(
            ("" if place else each.planned.row.title, what, *(texts.get(column, NOTHING) for column in columns)),
            kind,
            begins_group=not place,
        )
        for place, (what, kind, texts) in enumerate(entries)
    ]


def _records(table: PaperTable, rows: Sequence[Reproduced]) -> list[dict[str, Any]]:
    """One for every row, data set and score, with all digits."""
    columns = columns_of(table, [each.planned for each in rows])
    records = []
    for each in rows:
        for column in columns[each.planned.data]:
            ours, last, published = each.ours.get(column), each.last.get(column), each.published.get(column)
            interval = ours.interval if ours else None
            records.append(
                {
                    "table": table.item.id,
                    "data": each.planned.data,
                    "row": each.planned.row.name,
                    "title": each.planned.row.title,
                    **{f"at {symbol}": value for symbol, value in each.planned.row.at.items()},
                    "metric": column.metric,
                    "part": column.part or None,
                    "dim": column.dim,
                    "ours": ours.mean if ours else None,
                    "ours spread": ours.spread if ours else None,
                    "interval": None if interval is None else [f"{value:g}" for value in interval],
                    "last epoch": last.mean if last else None,
                    "published": published.value if published else None,
                    "published spread": published.spread if published else None,
                    "difference": each.difference(column),
                    "status": each.status,
                    "problem": each.problem,
                    "seeds": [str(seed) for seed in each.seeds],
                    **{key: each.conditions.get(key, []) for key in CONDITIONS},
                    "published backbone": published.backbone if published else None,
                    "published protocol": published.protocol if published else None,
                }
            )
    return records


def _seeds_text(table: PaperTable, done: Sequence[Reproduced]) -> str:
    if table.mlrc:
        counts = sorted({line.repeats for line in done})
        return f"{' or '.join(map(str, counts))} {'repeat' if counts == [1] else 'repeats'} of all folds"
    seeds = sorted({seed for line in done for seed in line.seeds})
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"


def _numbered(lines: Sequence[Reproduced]) -> dict[str, int]:
    reasons = dict.fromkeys(line.problem for line in lines if line.problem is not None)
    return {reason: number for number, reason in enumerate(reasons, 1)}


def _said(lines: Sequence[Reproduced], key: str) -> list[str]:
    return sorted({value for line in lines for value in line.conditions.get(key, [])})
