"""Images of the classes that VCPA is most and least certain of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nearkin.report.figure_style import RUN_COLOURS, head, new_figure
from nearkin.report.figures._runs import Drawing, class_name, one_by_one, run_title, show_examples
from nearkin.report.opened_run import OpenedRun

CLASSES_SHOWN = 3
IMAGES_SHOWN = 8


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """The classes with the smallest and with the largest σ̄."""
    return one_by_one(runs, _figure)


def extremes(sigma: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the smallest and of the largest values of ``sigma [C]``, the most extreme first.

    >>> extremes(np.array([0.2, 0.1, 0.3]))
    (array([1]), array([2]))
    """
    order = np.argsort(sigma, kind="stable")
    shown = min(CLASSES_SHOWN, max(1, len(order) // 2))
    return order[:shown], order[: -shown - 1 : -1]


def _figure(run: OpenedRun) -> Any:
    sigma = run.uncertainty.mean(1).numpy()
    certain, uncertain = extremes(sigma)
    shown = len(certain)
    figure = new_figure(1.05 * IMAGES_SHOWN + 2.2, 1.12 * 2 * shown + 1.4)
    head(figure, f"Most and least certain of {len(sigma):,} training classes", run_title(run))
    grid = figure.subplots(2 * shown, IMAGES_SHOWN, squeeze=False)
    for row, (axes, place) in enumerate(zip(grid, [*certain, *uncertain], strict=True)):
        heading, colour = ("most certain", RUN_COLOURS[0]) if row < shown else ("least certain", RUN_COLOURS[1])
        label = int(run.training_classes[place])
        show_examples(axes, run, label, colour)
        name = f"{class_name(run, label)}\nσ̄ = {sigma[place]:.3g}"
        axes[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=8, labelpad=6)
        if row % shown == 0:
            axes[0].set_title(heading, loc="left", color=colour, fontsize=9)
    return figure
