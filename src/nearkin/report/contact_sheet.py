"""Pictures of what is in an index: a row for each query with its hits beside it, or for each group of items."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearkin.data.images import decode
from nearkin.index import Hit, Index
from nearkin.report.figure_style import PLAIN, STYLE, new_figure, save_figure, shorten, show_image

_COLUMNS, _MOST, _MOST_GROUPS = 10, 60, 40
_SIDE = 192


def draw_sheet(file: Path, index: Index, found: Sequence[tuple[str, Sequence[Hit]]]) -> None:
    """Write a picture of queries, which are paths or ``""`` for none, and of what they found, sixty hits of each."""
    import matplotlib

    rows: list[tuple[str, list[Hit]]] = []
    for query, hits in found:
        shown = list(hits[:_MOST])
        rows += [
            ("" if start else query, shown[start : start + _COLUMNS]) for start in range(0, len(shown) or 1, _COLUMNS)
        ]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(1.25 * (_COLUMNS + 1) + 0.3, 1.6 * len(rows) + 0.2)
        grid = figure.add_gridspec(len(rows), _COLUMNS + 1)
        for place, (query, hits) in enumerate(rows):
            if query:
                axis = figure.add_subplot(grid[place, 0])
                show_image(axis, decode(query, shorter_side=_SIDE), PLAIN)
                axis.set_title("query", fontsize=8)
                axis.set_xlabel(shorten(Path(query).name, 18), fontsize=7)
            for column, hit in enumerate(hits, start=1):
                _show_hit(figure.add_subplot(grid[place, column]), index, hit)
        save_figure(figure, file, dpi=110)


def draw_groups(file: Path, index: Index, groups: Sequence[tuple[str, Sequence[int]]]) -> None:
    """Write a picture of named groups of items, sixty of each, and of forty groups at most."""
    import matplotlib

    rows: list[tuple[str, Sequence[int]]] = []
    for name, ids in groups[:_MOST_GROUPS]:
        shown = ids[:_MOST]
        rows += [("" if start else name, shown[start : start + _COLUMNS]) for start in range(0, len(shown), _COLUMNS)]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(1.25 * _COLUMNS + 0.3, 1.6 * max(len(rows), 1) + 0.2)
        grid = figure.add_gridspec(max(len(rows), 1), _COLUMNS)
        for place, (name, ids) in enumerate(rows):
            for column, item in enumerate(index.items(ids)):
                axis = figure.add_subplot(grid[place, column])
                title = f"{name}\n{item.id}" if name and not column else str(item.id)
                _show(axis, index, item.id, title, item.label)
        save_figure(figure, file, dpi=110)


def _show_hit(axis: Any, index: Index, hit: Hit) -> None:
    sure = f"{hit.score:.3f}" if hit.confidence is None else f"{hit.confidence:.0%}"
    _show(axis, index, hit.id, f"{hit.id}: {sure}", hit.label)


def _show(axis: Any, index: Index, id: int, title: str, label: str | None) -> None:
    with Image.open(io.BytesIO(index.thumbnail(id))) as image:
        show_image(axis, np.array(image), PLAIN)
    axis.set_title(title, fontsize=8)
    axis.set_xlabel(shorten(label or "", 18), fontsize=7)
