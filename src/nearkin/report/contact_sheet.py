"""Contact sheets of an index: a row for each query with its hits, or for each group of items."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nearkin.data.images import decode
from nearkin.index import Hit, Index
from nearkin.report.figure_style import PLAIN, Cell, class_caption, new_figure, save_figure, shorten, show_row

_COLUMNS, _MOST, _MOST_GROUPS = 10, 60, 40
_SIDE = 192


def draw_sheet(file: Path, index: Index, results: Sequence[tuple[str, Sequence[Hit]]]) -> None:
    """Write a contact sheet of queries, given by path or ``""``, with up to sixty hits of each."""
    rows: list[tuple[str, list[Cell]]] = []
    for query, hits in results:
        cells = [(decode(query, shorter_side=_SIDE), PLAIN, shorten(Path(query).name, 18))] if query else []
        for hit in hits[:_MOST]:
            text = f"{hit.score:.3f}" if hit.confidence is None else f"{hit.confidence:.0%}"
            cells.append(_cell(index, hit.id, f"{hit.id}: {text}", hit.label))
        rows.append(("query" if query else "", cells))
    _draw(file, rows)


def draw_groups(file: Path, index: Index, groups: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Write a contact sheet of up to forty named groups of items, with up to sixty items of each."""
    shown = ((name, index.items(ids[:_MOST])) for name, ids in groups[:_MOST_GROUPS])
    _draw(file, [(name, [_cell(index, item.id, str(item.id), item.label) for item in items]) for name, items in shown])


def _cell(index: Index, id: int, title: str, label: str | None) -> Cell:
    with Image.open(io.BytesIO(index.thumbnail(id))) as image:
        return np.array(image.convert("RGB")), PLAIN, f"{title}\n{class_caption(label or '', 18)}"


def _draw(file: Path, rows: Sequence[tuple[str, list[Cell]]]) -> None:
    lines: list[tuple[str, list[Cell]]] = []
    for name, cells in rows or [("", [])]:
        starts = range(0, len(cells) or 1, _COLUMNS)
        lines += [("" if start else name, cells[start : start + _COLUMNS]) for start in starts]
    figure = new_figure(1.25 * _COLUMNS + 1, 1.6 * len(lines) + 0.2)
    for axis, (name, cells) in zip(figure.subplots(len(lines), 1, squeeze=False)[:, 0], lines, strict=True):
        show_row(axis, cells, name=shorten(name, 18), columns=_COLUMNS)
    save_figure(figure, file, dpi=110)
