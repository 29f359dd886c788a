"""What searches found, as one picture: a row for each query, its hits beside it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from nearkin.data.images import decode
from nearkin.index import Hit, Index
from nearkin.report.plots._style import PLAIN, STYLE, new_figure, save_figure, shorten, show_image

_COLUMNS, _MOST = 10, 60
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


def _show_hit(axis: Any, index: Index, hit: Hit) -> None:
    with Image.open(io.BytesIO(index.thumbnail(hit.id))) as image:
        show_image(axis, np.array(image), PLAIN)
    sure = f"{hit.score:.3f}" if hit.confidence is None else f"{hit.confidence:.0%}"
    axis.set_title(f"{hit.id}: {sure}", fontsize=8)
    axis.set_xlabel(shorten(hit.label or "", 18), fontsize=7)
