"""Images of the classes that VCPA is most and least certain of."""

from __future__ import annotations

from typing import Any

import numpy as np

from nearkin.report.figure_style import RUN_COLOURS, class_name, new_figure, run_title, set_title, show_row
from nearkin.report.opened_run import OpenedRun

CLASSES_SHOWN = 3
IMAGES_SHOWN = 8


def draw_run(run: OpenedRun) -> Any:
    """The classes with the smallest and the largest σ̄, the most extreme first."""
    sigma = run.uncertainty.mean(1).numpy()
    order = np.argsort(sigma, kind="stable")
    shown = min(CLASSES_SHOWN, max(1, len(order) // 2))
    figure = new_figure(1.05 * IMAGES_SHOWN + 2.2, 1.12 * 2 * shown + 1.4)
    set_title(figure, f"Most and least certain of {len(sigma):,} training classes", run_title(run))
    panels = zip(figure.subplots(2 * shown, 1), [*order[:shown], *order[: -shown - 1 : -1]], strict=True)
    for row, (axis, index) in enumerate(panels):
        heading, colour = ("most certain", RUN_COLOURS[0]) if row < shown else ("least certain", RUN_COLOURS[1])
        label = int(run.training_classes[index])
        name = f"{class_name(run, label)}\nσ̄ = {sigma[index]:.3g}"
        rows = run.protocol.train_rows[run.data.table.labels[run.protocol.train_rows] == label]
        images = run.random().permutation(rows)[:IMAGES_SHOWN].tolist()
        show_row(axis, [(run.data.images[image], colour, "") for image in images], name=name, columns=IMAGES_SHOWN)
        if row % shown == 0:
            axis.set_title(heading, loc="left", color=colour, fontsize=9)
    return figure
