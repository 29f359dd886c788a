"""Nearest neighbours of the same queries for several runs side by side, right and wrong ones marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.errors import NearkinError
from nearkin.evaluation.neighbours import nearest
from nearkin.report.neighbours import PLAIN, RIGHT, WRONG, choose_queries, findable, show_image
from nearkin.report.opened_run import CannotDrawError, OpenedRun
from nearkin.report.plots._page import Drawing, NotDrawn, Picture, class_name, head, run_title, shared_title

QUERIES = 6
_SHOWN = {1: 8, 2: 5, 3: 4}
_FEWEST = 3


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """``neighbours``: a row for each query, and in it a block of neighbours for each run (VCPA, figures 15 to 18)."""
    ready: list[OpenedRun] = []
    for run in runs:
        try:
            sample = run.test_sample
            if ready and not np.array_equal(sample.rows, ready[0].test_sample.rows):
                raise CannotDrawError(
                    f"its test classes are not those of {ready[0].name}: protocol.test_share or protocol.split_seed "
                    f"differs"
                )
            ready.append(run)
        except NearkinError as error:
            yield NotDrawn("neighbours", str(error), run)
    if ready:
        try:
            yield Picture("neighbours", _figure(ready))
        except CannotDrawError as error:
            yield NotDrawn("neighbours", str(error))


def _figure(runs: Sequence[OpenedRun]) -> Any:
    from matplotlib.figure import Figure

    sample = runs[0].test_sample
    places = choose_queries(sample.labels, QUERIES, runs[0].random())
    if not len(places):
        raise CannotDrawError("no test class has two images")
    shown = min(_SHOWN.get(len(runs), _FEWEST), findable(sample.labels, places))
    widths = [1.0] + len(runs) * [0.12, *shown * [1.0]]
    figure = Figure(figsize=(0.98 * sum(widths) + 1.3, 1.16 * len(places) + 1.1), layout="constrained")
    whole = run_title(runs[0]) if len(runs) == 1 else shared_title(runs)
    what = f"Nearest neighbours among {runs[0].protocol.test_classes}"
    head(figure, f"{what} (green: same class, red and ×: another)", whole)
    grid = figure.add_gridspec(len(places), len(widths), width_ratios=widths)
    for q, place in enumerate(places.tolist()):
        axis = figure.add_subplot(grid[q, 0])
        show_image(axis, runs[0].data.images[int(sample.rows[place])], PLAIN)
        name = class_name(runs[0], int(sample.labels[place]), 18)
        axis.set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8)
        if q == 0:
            axis.set_title("query", fontsize=9)
    for r, run in enumerate(runs):
        order = found_by(run, places, shown)
        first = 2 + r * (shown + 1)
        for q, place in enumerate(places.tolist()):
            for n, neighbour in enumerate(order[q].tolist()):
                axis = figure.add_subplot(grid[q, first + n])
                _show_neighbour(axis, run, place, neighbour)
                if q == 0 and n == 0:
                    header = run.label if len(runs) > 1 else "nearest first"
                    axis.set_title(header[: 14 * shown], fontsize=9, loc="left")
    return figure


def found_by(run: OpenedRun, places: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Places in the run's test sample of the ``count`` nearest to each query, ``[queries, count]``."""
    order, _ = nearest(run.test_sample.embeddings, k=count, distance=run.trained.encoder.distance)
    indices: NDArray[np.int64] = order.numpy()[places]
    return indices


def _show_neighbour(axis: Any, run: OpenedRun, place: int, neighbour: int) -> None:
    sample = run.test_sample
    same = sample.labels[neighbour] == sample.labels[place]
    show_image(axis, run.data.images[int(sample.rows[neighbour])], RIGHT if same else WRONG)
    if not same:
        # Not by colour alone: a cross in the corner, and the class it is of.
        axis.text(
            0.93, 0.93, "×", transform=axis.transAxes, ha="right", va="top", fontsize=9, color="white", weight="bold",
            bbox={"boxstyle": "square,pad=0.1", "facecolor": WRONG, "edgecolor": "none"},
        )  # fmt: skip
        axis.set_xlabel(class_name(run, int(sample.labels[neighbour]), 16), fontsize=6)
