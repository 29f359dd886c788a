"""How often hits of each confidence are of the query's class, with the Brier score."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from nearkin.report.figure_style import GREY, head, new_figure
from nearkin.report.figures._runs import Drawing, one_by_one, run_colour, run_title
from nearkin.report.opened_run import OpenedRun
from nearkin.report.reliability import draw_curve, reliability_of_run


def draw(runs: Sequence[OpenedRun]) -> Drawing:
    """The curve of an index's confidences, as the run's own classes give it."""
    return one_by_one(runs, _figure)


def _figure(run: OpenedRun) -> Any:
    found = reliability_of_run(run)
    figure = new_figure(5.2, 6.2)
    head(figure, "How far confidences can be believed", run_title(run))
    draw_curve(figure, found, run_colour(run))
    figure.supxlabel(textwrap.fill(f"learned from {found.source}", 85), fontsize=7, color=GREY)
    return figure
