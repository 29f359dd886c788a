"""Contact sheets of an index: a row for each query with its hits, or for each group of items."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nearkin.data.images import decode
from nearkin.index import Hit, Index
from nearkin.report.figure_style import PLAIN, STYLE, new_figure, save_figure, shorten, show_image

_COLUMNS, _MOST, _MOST_GROUPS = 10, 60, 40
_SIDE = 192


def draw_sheet(file: Path, index: Index, results: Sequence[tuple[str, Sequence[Hit]]]) -> None:
    """Write a contact sheet of queries, given by path or ``""``, with up to sixty hits of each."""
    rows = []
    for query, hits in results:
        confidences = [f"{hit.score:.3f}" if hit.confidence is None else f"{hit.confidence:.0%}" for hit in hits]
        cells = [(hit.id, f"{hit.id}: {text}", hit.label) for hit, text in zip(hits, confidences, strict=True)]
        rows.append((query, cells))
    _draw(file, index, rows, queries=True)


def draw_groups(file: Path, index: Index, groups: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Write a contact sheet of up to forty named groups of items, with up to sixty items of each."""
    rows = []
    for name, ids in groups[:_MOST_GROUPS]:
        items = index.items(ids[:_MOST])
        titles = [f"{name}\n{item.id}" if item is items[0] else str(item.id) for item in items]
        rows.append(("", [(item.id, title, item.label) for item, title in zip(items, titles, strict=True)]))
    _draw(file, index, rows, queries=False)


def _draw(
    file: Path, index: Index, rows: Sequence[tuple[str, list[tuple[int, str, str | None]]]], *, queries: bool
) -> None:
    """Rows of a query's path and of cells: id, title and label of an item."""
    import matplotlib

    lines = [
        ("" if start else query, cells[start : start + _COLUMNS])
        for query, cells in rows
        for start in range(0, min(len(cells), _MOST) or 1, _COLUMNS)
    ]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(1.25 * (_COLUMNS + queries) + 0.3, 1.6 * max(len(lines), 1) + 0.2)
        grid = figure.add_gridspec(max(len(lines), 1), _COLUMNS + queries)
        for row, (query, cells) in enumerate(lines):
            if query:
                axis = figure.add_subplot(grid[row, 0])
                show_image(axis, decode(query, shorter_side=_SIDE), PLAIN)
                axis.set_title("query", fontsize=8)
                axis.set_xlabel(shorten(Path(query).name, 18), fontsize=7)
            for column, (id, title, label) in enumerate(cells, start=int(queries)):
                axis = figure.add_subplot(grid[row, column])
                with Image.open(io.BytesIO(index.thumbnail(id))) as image:
                    show_image(axis, np.array(image), PLAIN)
                axis.set_title(title, fontsize=8)
                axis.set_xlabel(shorten(label or "", 18), fontsize=7)
        save_figure(figure, file, dpi=110)
